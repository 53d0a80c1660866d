"""The part of the report that shows which experts each language uses: maps, and tables."""

import dataclasses
import html
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt import web_page
from gshard_nmt.decoding.expert_use import ExpertUse
from gshard_nmt.evaluation import routing
from gshard_nmt.evaluation.report.report import Section
from gshard_nmt.evaluation.routing import RouterMap
from gshard_nmt.evaluation.texts.translations import TestSet
from gshard_nmt.run.folder import RunFolder

_TITLE = "Which experts each language uses"
_WIDTH = 9.0
"""Inches of a figure."""


CountExperts = Callable[[Path, Sequence[Sequence[Any]], str], ExpertUse]
"""(run folder, tests, --checkpoint) -> the counts of the router; see `RunTranslators.expert_use`."""


def sections(
    runs: Sequence[tuple[str, RunFolder, Sequence[TestSet]]],
    count: CountExperts,
    checkpoint: str,
) -> list[Section]:
    """Returns the sections of the report for all runs that are evaluated.

    The section of the first run is "routing" in bleu.json. The others add their names. A dense run
    has a note instead of maps.

    Args:
      runs: the name of each run in the report, different from all others; the run; its test sets.
      count: counts the choices of the router.
      checkpoint: the value of --checkpoint.
    """
    parts = []
    for i, (name, run, tests) in enumerate(runs):
        title = _TITLE if len(runs) == 1 else f"{_TITLE}: {name}"
        if routing.has_experts(run):
            part = study(run, tests, count, checkpoint)
        else:
            note = f"<p>{html.escape(name)} is a dense model, so it has no router.</p>"
            part = Section("routing", title, note, None)
        key = "routing" if i == 0 else f"routing of {name}"
        alarms = tuple(alarm if i == 0 else f"{name}, {alarm}" for alarm in part.alarms)
        parts.append(dataclasses.replace(part, name=key, title=title, alarms=alarms))
    return parts


def study(
    run: RunFolder, tests: Sequence[TestSet], count: CountExperts, checkpoint: str
) -> Section:
    """Returns the section of the report for a run with experts.

    Args:
      run: the run.
      tests: the test sets, in any order.
      count: counts the choices of the router.
      checkpoint: the value of --checkpoint.
    """
    ordered = sorted(tests, key=lambda test: (-test.train_pairs, test.source, test.target))
    texts = [(test.source, test.target, test.sources, test.references) for test in ordered]
    use = count(run.path, texts, checkpoint)
    return section(RouterMap(use, direction_names(ordered)))


def direction_names(tests: Sequence[TestSet]) -> list[str]:
    """Returns the name of each direction: the language that differs, or both languages."""
    if len({test.target for test in tests}) == 1:
        return [test.source for test in tests]
    if len({test.source for test in tests}) == 1:
        return [test.target for test in tests]
    return [f"{test.source}-{test.target}" for test in tests]


def section(router: RouterMap) -> Section:
    """Returns the section of the report, with maps, tables, the data for bleu.json, and alarms."""
    alt = "The share of each expert in the gate weight of each language, one map for each MoE layer"
    words = (
        f"<p>The choices of the router of {html.escape(router.use.origin)} on the test text: the encoder "
        "reads the sources, and the decoder reads the references. A row is a language, and the language "
        "with most training pairs is first. A column is an expert. The color is the share of the "
        "language's gate weight that goes to the expert. With equal shares, each expert would get "
        f"{1 / router.weight.shape[-1]:.3f}. Decoding gives each token all experts that it chooses. The "
        "tables say which tokens would lose experts if these had the capacity of evaluation.</p>"
    )
    image = web_page.image(draw_maps(router.weight, router.use.layers, router.names), "png", alt)
    parts = [words, image, _layer_table(router), _language_table(router)]
    return Section("routing", _TITLE, "\n".join(parts), router.data(), router.alarms())


def draw_maps(shares: np.ndarray, layers: Sequence[str], names: Sequence[str]) -> bytes:
    """Draws one small map for each layer.

    Args:
      shares: float64[layers, directions, E].
      layers: the name of each layer.
      names: the name of each direction.

    Returns:
      A PNG image.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    count, directions, experts = shares.shape
    panel = min(max(0.04 * experts + 0.6, 2.0), _WIDTH - 1)
    columns = max(1, min(count, int((_WIDTH - 1) / panel)))
    lines = -(-count // columns)
    inches, font_size = (0.16, 8) if directions <= 40 else (0.075, 4.8)
    height, margin = max(inches * directions, 0.8), 0.45
    total = lines * (height + margin) + 0.3
    with matplotlib.rc_context({"font.size": 8}):
        figure = Figure(figsize=(_WIDTH, total))
        grid = figure.add_gridspec(
            lines,
            columns,
            left=0.09,
            right=0.9,
            top=1 - 0.3 / total,
            bottom=margin / total,
            hspace=margin / height,
            wspace=0.08,
        )
        first = None
        # A few large shares would make all others pale.
        largest = max(np.quantile(shares, 0.995), 1e-9)
        norm = matplotlib.colors.PowerNorm(0.5, vmin=0, vmax=largest)
        for i, name in enumerate(layers):
            first = axes = figure.add_subplot(grid[i // columns, i % columns], sharex=first)
            image = axes.imshow(shares[i], norm=norm, cmap="YlGnBu", aspect="auto")
            axes.set_title(name.replace("_", " "), fontsize=8, pad=3)
            axes.tick_params(length=2)
            axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True))
            has_names = i % columns == 0
            axes.set_yticks(range(directions), names if has_names else [""] * directions)
            axes.tick_params(axis="y", labelsize=font_size, length=0)
        bar = figure.add_axes(
            (0.92, 1 - (0.3 + min(height, 3)) / total, 0.014, min(height, 3) / total)
        )
        extend = "max" if shares.max() > largest else "neither"
        figure.colorbar(image, cax=bar, extend=extend).ax.tick_params(labelsize=7)
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=150 if total < 60 else 100)
    return content.getvalue()


def _layer_table(router: RouterMap) -> str:
    """Returns a table with a row for each layer."""
    experts = router.load.shape[-1]
    effective = np.exp2(-(router.load * np.log2(np.maximum(router.load, 1e-30))).sum(axis=-1))
    dead, chance = router.dead_experts(), router.chance_specialization
    tokens = np.maximum(router.use.tokens.sum(axis=1), 1)
    lost = router.use.lost.sum(axis=1) / tokens[:, np.newaxis]
    head = (
        *("layer", f"effective experts of {experts}", "busiest expert", "dead experts"),
        *(
            "bits that the expert tells about the language (by chance)",
            "would lose one expert",
            "would lose both",
        ),
    )
    rows = [
        [
            name.replace("_", " "),
            f"{effective[i]:.1f}",
            f"{int(router.load[i].argmax())} ({_percent(router.load[i].max())})",
            str(len(dead.get(name, []))),
            f"{router.specialization[i]:.3f} ({chance[i]:.3f})",
            *(_percent(share) for share in lost[i]),
        ]
        for i, name in enumerate(router.use.layers)
    ]
    return "<h3>Layers</h3>\n" + web_page.table(head, rows)


def _language_table(router: RouterMap) -> str:
    """Returns a table with a row for each language, with its nearest languages."""
    tokens = router.use.tokens.max(axis=0).astype(int)
    effective = np.exp2(router.entropy).mean(axis=0)
    visits = np.maximum(router.use.tokens.sum(axis=0), 1)
    lost = router.use.lost.sum(axis=(0, 2)) / visits
    head = (
        *("language", "tokens", "left out", "experts in use", "would lose experts"),
        "languages with the most similar use (divergence)",
    )
    rows = []
    for i, name in enumerate(router.names):
        near = [f"{router.names[j]} ({router.distance[i, j]:.3f})" for j in router.nearest(i)]
        counted = [f"{tokens[i]:,}", f"{router.use.left_out[i]:,}"]
        shares = [f"{effective[i]:.1f}", _percent(lost[i])]
        rows.append([name, *counted, *shares, ", ".join(near)])
    doubt = ""
    if router.is_within_chance:
        doubt = " The differences of these languages are hardly larger, so do not rely on them."
    note = (
        "<p>The divergence is the mean over the layers of the Jensen-Shannon divergence of two rows, in "
        "bits: 0 if two languages use the experts alike, 1 if they share no expert. On text of this "
        f"size, chance alone gives about {router.chance_distance:.4f}.{doubt}</p>"
    )
    return "\n".join(["<h3>Languages</h3>", note, web_page.table(head, rows)])


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
