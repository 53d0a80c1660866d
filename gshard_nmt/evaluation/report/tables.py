"""The tables of a comparison: cost of each system, means by resources, tokens to a cross-entropy."""

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from gshard_nmt import quantities, web_page
from gshard_nmt.evaluation.report import cost_figure, figure
from gshard_nmt.evaluation.report.report import Section
from gshard_nmt.evaluation.systems.convergence import DEV, Curve
from gshard_nmt.evaluation.systems.systems import (
    System,
    as_json,
    common_directions,
    missing_labels,
    ordered_directions,
    resource_groups,
)

_DASH = "–"
"""Shown for a value that is unknown."""
_NARROW = "\u202f"
"""A space at which no line is broken."""
_DAYS = 365.25
"""Days of a year."""


def systems_section(systems: Sequence[System], baselines: System | None) -> Section:
    """Returns the table of size, cost and quality of each system, as GShard Table 3.

    Args:
      systems: the main system first.
      baselines: all bilingual baselines together; None if there are none.
    """
    everywhere = common_directions(systems)
    differ = any(len(system.results) != len(everywhere) for system in systems)
    rows = [*systems, *([baselines] if baselines else [])]
    cost, per_year = cost_figure.cost_unit(max(_known(s.budget.device_years for s in rows)))
    time, per_long = cost_figure.cost_unit(max(_known(s.budget.days for s in rows)) / _DAYS)
    columns: list[tuple[str, Callable[[System], str]]] = [
        ("weights", lambda s: _count(s.budget.weights)),
        ("experts", lambda s: "dense" if s.is_dense else _plain(s.budget.experts)),
        ("layers", lambda s: _plain(s.budget.layers)),
        ("devices", lambda s: _plain(s.budget.devices)),
        ("steps per second", lambda s: _digits(s.budget.steps_per_second)),
        ("tokens of a step", lambda s: _count(s.budget.batch_tokens)),
        ("tokens", lambda s: _count(s.budget.tokens)),
        (f"device-{cost}", lambda s: _digits(s.budget.device_years, per_year)),
        (time, lambda s: _digits(s.budget.days, per_long / _DAYS)),
        ("BLEU", lambda s: _score(s.average(), "bleu")),
    ]
    if differ:
        columns.insert(-1, ("directions", lambda s: f"{len(s.results):,}"))
        columns.append(("BLEU, common", lambda s: _score(s.average(everywhere), "bleu")))
    columns.append(("gain", lambda s: _score(s.average(), "delta")))
    notes = [
        "<p>Layers are those of encoder and decoder together. Tokens are those of source and target "
        "without padding. BLEU and gain are means over the directions. The "
        f"{time} are those of training; device-{cost} are devices multiplied by time.</p>"
    ]
    if differ:
        notes.append(
            f"<p>“BLEU, common” is the mean over the {len(everywhere)} directions that all systems "
            "have.</p>"
        )
    if baselines:
        notes.append(
            f"<p>The row “{html.escape(baselines.name)}” adds up all bilingual models, trained one after "
            "the other.</p>"
        )
    notes += [
        f"<p>{html.escape(system.name)} has no scores of {html.escape(', '.join(labels))}.</p>"
        for system in systems[1:]
        if (labels := missing_labels(systems, system))
    ]
    table = web_page.table(
        ["system", *(name for name, _ in columns)],
        [[system.name, *(cell(system) for _, cell in columns)] for system in rows],
    )
    content = "\n".join(
        [table, *notes, _resources_table(systems), _cost_figure(systems, baselines)]
    )
    return Section("systems", "Systems", content, as_json(systems))


def _resources_table(systems: Sequence[System]) -> str:
    """Returns the means over languages with high, middle and low resources; "" if they are too few."""
    groups = resource_groups(systems)
    if not groups:
        return ""
    shows_gains = figure.has_gains(systems[0].results)
    key = "delta" if shows_gains else "bleu"
    pairs = {result.direction: result.train_pairs for result in ordered_directions(systems)}
    heads = [
        f"{name} ({len(directions)} of {pairs[directions[-1]]:,} to {pairs[directions[0]]:,} pairs)"
        for name, directions in groups.items()
    ]
    rows = []
    for system in systems:
        cells = []
        for directions in groups.values():
            text = _score(system.average(directions), key)
            present = len(set(directions) & set(system.by_direction()))
            cells.append(text if present == len(directions) else f"{text} (of {present})")
        rows.append([system.name, *cells])
    what = "gain over the baselines" if shows_gains else "BLEU"
    return (
        f"<h3>High, middle and low resources</h3>\n{web_page.table(['system', *heads], rows)}\n"
        f"<p>Mean {what}. The directions are sorted by training pairs and cut into thirds.</p>"
    )


def _cost_figure(systems: Sequence[System], baselines: System | None) -> str:
    """Returns cost against quality as an image; "" if the cost of fewer than three systems is known."""
    rows = [*systems, *([baselines] if baselines else [])]
    if sum(system.budget.device_years is not None for system in rows) < 3:
        return ""
    alt = "Quality of each system above the cost of its training"
    light, dark = (cost_figure.cost(systems, baselines, "png", dark) for dark in (False, True))
    image = web_page.image(light, "png", alt, dark)
    return f"<h3>Cost and quality</h3>\n{image}"


def convergence_section(
    systems: Sequence[System],
    name: str,
    curves: Sequence[Curve | None],
    values: Sequence[float],
    incomparable: Sequence[str] = (),
) -> Section:
    """Returns the tokens that each run needed to reach some cross-entropies, as GShard Table 2.

    Args:
      systems: the systems that are runs.
      name: "dev_nll" or "nll".
      curves: the curve of each system.
      values: the cross-entropies.
      incomparable: names of the systems with other vocabularies than the main run.
    """
    reached = [
        [curve.tokens_to_reach(value) if curve else None for value in values] for curve in curves
    ]
    rows = []
    for system, curve, tokens in zip(systems, curves, reached, strict=True):
        missing = "not reached" if curve else "not logged"
        mark = " *" if system.name in incomparable else ""
        cells = [missing if count is None else _count(count) for count in tokens]
        rows.append([system.name + mark, *cells, _digits(curve.best) if curve else _DASH])
    which = (
        "on dev text"
        if name == DEV
        else "of the training batches, a mean of the last 10 logged values, because not every run has "
        "logged it on dev text"
    )
    note = (
        f"<p>Cross-entropy {which}, in nats for each target token, without auxiliary losses "
        f"(<code>{name}</code> of metrics.jsonl). A number is the source and target tokens that the run "
        "had seen when it was first as low.</p>"
    )
    if incomparable:
        note += "\n<p>* This run has other vocabularies, so its numbers cannot be compared.</p>"
    heads = ["system", *(f"{value:g}" for value in values), "lowest"]
    data = {
        "measure": name,
        "cross_entropies": list(values),
        "tokens": {s.name: row for s, row in zip(systems, reached, strict=True)},
        "other_vocabularies": list(incomparable),
    }
    title = "Tokens to reach a cross-entropy"
    return Section("tokens_to_cross_entropy", title, f"{web_page.table(heads, rows)}\n{note}", data)


def terminal_table(systems: Sequence[System]) -> Table:
    """Returns the means of each system, for the terminal."""
    table = Table(title="systems")
    for head in ("system", "directions", "BLEU", "gain"):
        table.add_column(head, justify="left" if head == "system" else "right")
    for system in systems:
        average = system.average()
        table.add_row(
            Text(system.name),
            f"{len(system.results):,}",
            _score(average, "bleu"),
            _score(average, "delta"),
        )
    return table


def _plain(value: int | None) -> str:
    return _DASH if value is None else f"{value:,}"


def _count(value: float | None) -> str:
    return _DASH if value is None else quantities.count_text(value).replace(" ", _NARROW)


def _known(values: Iterable[float | None]) -> list[float]:
    """Returns the values that are known, and 1 if there are none."""
    return [value for value in values if value is not None] or [1.0]


def _digits(value: float | None, factor: float = 1.0) -> str:
    """Returns a number, multiplied by a factor, with three digits that matter."""
    if value is None:
        return _DASH
    value *= factor
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _score(average: Mapping[str, Any], name: str) -> str:
    """Returns the mean BLEU, or the mean gain if the name is "delta", with its interval."""
    is_gain = name == "delta"
    form, value = "+.1f" if is_gain else ".1f", average["delta_bleu" if is_gain else "bleu"]
    if value is None:
        return _DASH
    interval = average[f"{name}_ci95"]
    bounds = f" ({interval[0]:{form}} to {interval[1]:{form}})" if interval else ""
    return f"{value:{form}}{bounds}"
