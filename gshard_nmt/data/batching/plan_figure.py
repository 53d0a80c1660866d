"""The figure of a plan: the shares of the languages over the steps, and their epochs."""

import io
from typing import Any

import numpy as np

from gshard_nmt.data.batching.plan import MANY_EPOCHS, Plan

_NAMED = 10
"""Components with a color of their own: the most drawn ones. The others share the last color."""
_OTHERS = "#c4c9cf"
_TEXT, _FAINT = "#1c1c1c", "#999999"


def image(plan: Plan, kind: str) -> bytes:
    """Returns the figure as "png" or "svg". The same plan always gives the same bytes."""
    import matplotlib

    content = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {}
    with matplotlib.rc_context({"font.size": 9, "svg.hashsalt": "gshard-nmt"}):
        draw(plan).savefig(content, format=kind, dpi=130, metadata=metadata)
    return content.getvalue()


def draw(plan: Plan) -> Any:
    """Returns the figure, a matplotlib Figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    shares, epochs = figure.subplots(1, 2, width_ratios=[1.1, 1])
    colors = _colors(plan)
    _draw_shares(shares, plan, colors)
    _draw_epochs(epochs, plan, colors)
    return figure


def _colors(plan: Plan) -> dict[int, Any]:
    """Returns the color of each component that has one, most drawn first."""
    import matplotlib

    palette = matplotlib.colormaps["tab10"]
    order = np.argsort(-plan.draws[-1], kind="stable")[:_NAMED]
    return {int(place): palette(rank) for rank, place in enumerate(order)}


def _draw_shares(axes: Any, plan: Plan, colors: dict[int, Any]) -> None:
    """Draws the parts of the components on top of each other, over the steps."""
    named = list(colors)
    columns: list[Any] = [plan.shares[:, place] for place in named]
    labels = [plan.components[place].name for place in named]
    fills = [colors[place] for place in named]
    rest = len(plan.components) - len(named)
    if rest:
        columns.append(1 - sum(columns))
        labels.append(f"{rest} others")
        fills.append(_OTHERS)
    # Each point holds the share of the steps before it, so it is drawn as a step.
    steps = np.concatenate([[0], plan.points])
    stacked = [np.concatenate([column[:1], column]) for column in columns]
    axes.stackplot(steps, stacked, labels=labels, colors=fills, step="pre", lw=0)
    for phase in plan.phases[1:]:
        axes.axvline(phase.first - 1, color=_TEXT, lw=0.8, ls="--")
    axes.set(xlim=(0, plan.steps), ylim=(0, 1), xlabel="step", ylabel="part of the examples")
    axes.set_title("What training draws")
    handles, names = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1], names[::-1], loc="center left", bbox_to_anchor=(1, 0.5), frameon=False
    )


def _draw_epochs(axes: Any, plan: Plan, colors: dict[int, Any]) -> None:
    """Draws how often each component is seen, against its size."""
    uses = plan.uses
    sizes = np.array([use.examples for use in uses])
    epochs = np.array([use.epochs for use in uses])
    seen = epochs > 0
    fills = np.array([colors.get(n, _OTHERS) for n in range(len(uses))], dtype=object)
    axes.scatter(sizes[seen], epochs[seen], c=list(fills[seen]), s=26, edgecolors=_TEXT, lw=0.4)
    axes.set(xscale="log", yscale="log", xlabel="training examples", ylabel="epochs")
    # The dots run from the upper left to the lower right, so the other two corners are free.
    for level, text, place, side in (
        (1, "every example once", 0.01, "left"),
        (MANY_EPOCHS, f"{MANY_EPOCHS} times", 0.99, "right"),
    ):
        axes.axhline(level, color=_FAINT, lw=0.8, ls="--")
        at = {"xycoords": ("axes fraction", "data"), "ha": side, "va": "bottom", "color": _FAINT}
        axes.annotate(text, (place, level), **at)
    labeled: list[float] = []
    for n in (*np.argsort(-sizes, kind="stable")[:3], *np.argsort(-epochs, kind="stable")[:3]):
        if seen[n] and all(abs(np.log10(sizes[n]) - other) > 0.5 for other in labeled):
            dot = (float(sizes[n]), float(epochs[n]))
            axes.annotate(uses[n].name, dot, xytext=(5, 3), textcoords="offset points")
            labeled.append(float(np.log10(sizes[n])))
    axes.margins(x=0.12, y=0.12)
    axes.set_title("How often each example is seen")
