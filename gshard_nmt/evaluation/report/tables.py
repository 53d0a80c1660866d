"""The tables of the systems: cost of each, means by resources."""

import html
from collections.abc import Callable, Iterable, Sequence

from gshard_nmt import quantities
from gshard_nmt.evaluation.report import figures, web_page
from gshard_nmt.evaluation.report.figures import cost_unit
from gshard_nmt.evaluation.report.report import Section, average_text, has_gains
from gshard_nmt.evaluation.systems import System, Systems, as_json, missing_labels, resource_groups
from gshard_nmt.quantities import YEAR_DAYS

_DASH = "–"
"""Shown for a value that is unknown."""
_NARROW = "\u202f"
"""A space at which no line is broken."""


def systems_section(every: Systems, alarms: Iterable[str] = ()) -> Section:
    """Returns the table of size, cost and quality of each system, as GShard Table 3."""
    systems = every.compared
    main, baselines = systems[0], every.baselines_together()
    everywhere = set.intersection(*(set(system.by_direction()) for system in systems))
    differ = any(len(system.results) != len(everywhere) for system in systems)
    rows = [*systems, *([baselines] if baselines else [])]
    cost, per_year = cost_unit(_largest(s.budget.device_years for s in rows))
    time, per_long = cost_unit(_largest(s.budget.days for s in rows) / YEAR_DAYS)
    columns: list[tuple[str, Callable[[System], str]]] = [
        ("weights", lambda s: count_text(s.budget.weights)),
        ("experts", lambda s: "dense" if s.is_dense else _plain(s.budget.experts)),
        ("layers", lambda s: _plain(s.budget.layers)),
        ("devices", lambda s: _plain(s.budget.devices)),
        ("steps per second", lambda s: digits_text(s.budget.steps_per_second)),
        ("tokens of a step", lambda s: count_text(s.budget.batch_tokens)),
        ("tokens", lambda s: count_text(s.budget.tokens)),
        (f"device-{cost}", lambda s: digits_text(s.budget.device_years, per_year)),
        (time, lambda s: digits_text(s.budget.days, per_long / YEAR_DAYS)),
        ("BLEU", lambda s: average_text(s.average(), "bleu")),
    ]
    if differ:
        columns.insert(-1, ("directions", lambda s: f"{len(s.results):,}"))
        columns.append(("BLEU, common", lambda s: average_text(s.average(everywhere), "bleu")))
    columns.append(("gain", lambda s: average_text(s.average(), "delta")))
    notes = [
        "Layers are those of encoder and decoder together. Tokens are those of source and target without "
        f"padding. BLEU and gain are means over the directions. The {time} are those of training; "
        f"device-{cost} are devices multiplied by time."
    ]
    if differ:
        notes.append(
            f"“BLEU, common” is the mean over the {len(everywhere)} directions that all systems have."
        )
    if baselines:
        notes.append(
            f"The row “{baselines.name}” adds up all bilingual models, trained one after the other."
        )
    notes += [
        f"{system.name} has no scores of {', '.join(names)}."
        for system in systems[1:]
        if (names := missing_labels(main, system))
    ]
    table = web_page.table(
        ["system", *(name for name, _ in columns)],
        [[system.name, *(cell(system) for _, cell in columns)] for system in rows],
    )
    content = [table, *(f"<p>{html.escape(note)}</p>" for note in notes)]
    # Two points would say no more than the table.
    known = sum(system.budget.device_years is not None for system in rows)
    content.append(_resources_table(systems))
    if known > 2:
        image = figures.image(lambda: figures.draw_cost(systems, baselines), "png")
        alt = "Quality of each system above the cost of its training"
        content.append(f"<h3>Cost and quality</h3>\n{web_page.image(image, 'png', alt)}")
    return Section("systems", "Systems", "\n".join(content), as_json(systems), tuple(alarms))


def _resources_table(systems: Sequence[System]) -> str:
    """Returns the means over languages with high, middle and low resources; "" if they are too few."""
    groups = resource_groups(systems[0])
    if not groups:
        return ""
    shows_gains = has_gains(systems[0].results)
    pairs = {r.direction: r.test.train_pairs for r in systems[0].results}
    heads = [
        f"{name} ({len(directions)} of {pairs[directions[-1]]:,} to {pairs[directions[0]]:,} pairs)"
        for name, directions in groups.items()
    ]
    rows = []
    for system in systems:
        cells = []
        for directions in groups.values():
            text = average_text(system.average(directions), "delta" if shows_gains else "bleu")
            present = len(set(directions) & set(system.by_direction()))
            cells.append(text if present == len(directions) else f"{text} (of {present})")
        rows.append([system.name, *cells])
    what = "gain over the baselines" if shows_gains else "BLEU"
    return (
        f"<h3>High, middle and low resources</h3>\n{web_page.table(['system', *heads], rows)}\n"
        f"<p>Mean {what}. The directions are sorted by training pairs and cut into thirds.</p>"
    )


def _largest(values: Iterable[float | None]) -> float:
    return max([value for value in values if value is not None], default=1.0)


def _plain(value: int | None) -> str:
    return _DASH if value is None else f"{value:,}"


def count_text(value: float | None) -> str:
    return _DASH if value is None else quantities.count_text(value).replace(" ", _NARROW)


def digits_text(value: float | None, factor: float = 1.0) -> str:
    """Returns a number, multiplied by a factor, with three digits that matter."""
    if value is None:
        return _DASH
    value *= factor
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
