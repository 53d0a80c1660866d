"""The part of the report on the use of experts by each language: a map of each layer, and two tables.

It computes shares, the experts that hold most of a language, and experts that nobody uses from the counts
of the router (`decoding/expert_use.py`).
"""

import html
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt.decoding.expert_use import ExpertUse
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.report import figures, web_page
from gshard_nmt.evaluation.report.report import Section
from gshard_nmt.evaluation.systems import Result, labels
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.monitor import fewest_effective_experts
from gshard_nmt.settings.values import read_run_config

CountExperts = Callable[[Path, Sequence[Sequence[Any]], str], ExpertUse]
"""(run folder, tests, --checkpoint) -> the counts of the router; see `RunTranslators.expert_use`."""

HALF = 0.5
"""The report names the fewest experts that hold this part of a language's gate weight."""
_SHOWN = 4
"""The experts that a cell of a table names at most."""
_DEAD = 0.01
"""An expert is dead if it gets less than this part of an equal share of the choices."""
_FEWEST_CHOICES = 200
"""The mean number of choices of an expert in a layer, below which no expert is called dead."""
_MOST_NUMBERS = 1_000_000
"""bleu.json has the shares of all experts if they are at most this number."""
_WIDTH = 9.0
"""Inches of the maps."""


def check_has_experts(run: RunFolder) -> None:
    if not read_run_config(run.config).model.experts:
        raise UserError(
            f"--routing: {run.path} is a dense model (Model.experts is 0); only a model with experts has "
            "a router. Leave --routing out, or give the --workdir of a run with experts first."
        )


def section(
    run: RunFolder, results: Sequence[Result], count: CountExperts, checkpoint: str
) -> Section:
    """Returns the section of the report on the experts of a run, which it chooses for test sets."""
    texts = [(*r.direction, r.test.sources, r.test.references) for r in results]
    use, names = count(run.path, texts, checkpoint), labels(results)
    title, alarms = "Which experts each language uses", tuple(alarms_of(use))
    return Section("routing", title, page_part(use, names), data_of(use, names), alarms)


def load_of(use: ExpertUse) -> np.ndarray:
    """Returns float64[layers, E], the share of each expert in the choices of all tokens."""
    return _shares(use.chosen.sum(axis=1))


def _shares(counts: np.ndarray) -> np.ndarray:
    """Returns counts[..., E] divided by their sum over E, or 0 if the sum is 0."""
    total = counts.sum(axis=-1, keepdims=True)
    return counts / np.where(total > 0, total, 1.0)


def effective_experts(load: np.ndarray) -> np.ndarray:
    """Returns float64[layers], exp(entropy of the load): E if all experts get equal shares."""
    return np.exp(-(load * np.log(np.where(load > 0, load, 1.0))).sum(axis=-1))


def main_experts(weight: np.ndarray) -> list[list[list[int]]]:
    """Returns the fewest experts that hold `HALF` of the gate weight, the largest first.

    They are a list for each layer and direction; a direction without text has none.
    """
    order = np.argsort(-weight, axis=-1, kind="stable")
    held = np.cumsum(np.take_along_axis(weight, order, axis=-1), axis=-1)
    # Less than a rounding error is no expert.
    counts = np.where(held[..., -1] > 0, (held < HALF - 1e-9).sum(axis=-1) + 1, 0)
    return [
        [experts[:count].tolist() for experts, count in zip(*of_layer, strict=True)]
        for of_layer in zip(order, counts, strict=True)
    ]


def dead_experts(use: ExpertUse) -> dict[str, list[int]]:
    """Returns the experts that almost no token chooses, by layer. Layers without them are left out.

    If the text is too short to tell, no expert is called dead.
    """
    dead = {}
    for name, chosen in zip(use.layers, use.chosen.sum(axis=1), strict=True):
        few = np.flatnonzero(chosen < _DEAD * chosen.mean()).tolist()
        if few and chosen.mean() >= _FEWEST_CHOICES:
            dead[name] = few
    return dead


def alarms_of(use: ExpertUse) -> list[str]:
    load = load_of(use)
    experts = load.shape[-1]
    dead = [
        f"{name}: {len(numbers)} of {experts} experts get almost no token "
        f"({', '.join(map(str, numbers[:8]))}{', ...' if len(numbers) > 8 else ''})"
        for name, numbers in dead_experts(use).items()
    ]
    return dead + [
        f"{name}: few experts get most tokens ({value:.1f} effective experts of {experts})"
        for name, shares, value in zip(use.layers, load, effective_experts(load), strict=True)
        if shares.any() and value < fewest_effective_experts(experts)
    ]


def data_of(use: ExpertUse, names: Sequence[str]) -> Mapping[str, Any]:
    """Returns the value of "routing" in bleu.json."""
    weight = _shares(use.weight)  # float64[layers, directions, E]
    return {
        "checkpoint": use.origin,
        "layers": list(use.layers),
        "directions": list(names),
        "tokens": use.tokens.astype(int).tolist(),
        "left_out": use.left_out.tolist(),
        "weight": weight.round(4).tolist() if weight.size <= _MOST_NUMBERS else None,
        "load": load_of(use).round(4).tolist(),
        "main_experts": main_experts(weight),
        "dead_experts": dead_experts(use),
    }


def page_part(use: ExpertUse, names: Sequence[str]) -> str:
    """Returns the part of the page: the maps, a row for each layer, and a row for each language."""
    weight, load, dead = _shares(use.weight), load_of(use), dead_experts(use)
    experts, tokens = load.shape[-1], use.tokens.max(axis=0)
    effective, main = effective_experts(load), main_experts(weight)
    words = (
        f"<p>The choices of the router of {html.escape(use.origin)} on the test text: the encoder "
        "reads the sources, and the decoder reads the references. A row is a language, and the language "
        "with most training pairs is first. A column is an expert. The color is the share of the "
        "language's gate weight that goes to the expert. With equal shares, each expert would get "
        f"{1 / experts:.3f}. Decoding gives each token all experts that it chooses.</p>"
    )
    maps = figures.image(lambda: draw_maps(weight, use.layers, names), "png")
    alt = "The share of each expert in the gate weight of each language, one map for each MoE layer"
    layers = [name.replace("_", " ") for name in use.layers]
    busiest = (f"{int(shares.argmax())} ({100 * shares.max():.1f} %)" for shares in load)
    unused = (str(len(dead.get(name, []))) for name in use.layers)
    of_layers = zip(layers, (f"{n:.1f}" for n in effective), busiest, unused, strict=True)
    of_languages = [
        [name, f"{tokens[i]:,.0f}", f"{use.left_out[i]:,}", *(_named(layer[i]) for layer in main)]
        for i, name in enumerate(names)
    ]
    heads = ("layer", f"effective experts of {experts}", "busiest expert", "dead experts")
    note = (
        f"<p>In each layer, the fewest of the {experts} experts that hold half of the language's gate "
        "weight; the expert with the largest share is first.</p>"
    )
    parts = (
        words,
        web_page.image(maps, "png", alt),
        "<h3>Layers</h3>",
        web_page.table(heads, of_layers),
        "<h3>Languages</h3>",
        note,
        web_page.table(["language", "tokens", "left out", *layers], of_languages),
    )
    return "\n".join(parts)


def _named(experts: Sequence[int]) -> str:
    rest = len(experts) - _SHOWN
    return " ".join(map(str, experts[:_SHOWN])) + (f" and {rest:,} more" if rest > 0 else "")


def draw_maps(shares: np.ndarray, layers: Sequence[str], names: Sequence[str]) -> Any:
    """Returns a figure with a map, float64[directions, E] of `shares`, for each layer."""
    from matplotlib.colors import PowerNorm

    count, directions, experts = shares.shape
    columns = max(1, min(count, int((_WIDTH - 1) / min(max(0.04 * experts + 0.6, 2.0), 8.0))))
    lines = -(-count // columns)
    inches, font_size = (0.16, 8) if directions <= 40 else (0.075, 4.8)
    height = lines * (max(inches * directions, 0.8) + 0.45) + 0.3
    figure = figures.new_figure((_WIDTH, height))
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    # A few large shares would make all others pale.
    largest = max(np.quantile(shares, 0.995), 1e-9)
    norm = PowerNorm(0.5, vmin=0, vmax=largest)
    for axes, name, of_layer in zip(grid.flat, layers, shares, strict=False):
        image = axes.imshow(of_layer, norm=norm, cmap="YlGnBu", aspect="auto")
        axes.set_title(name.replace("_", " "), fontsize=8, pad=3)
        axes.set_yticks(range(directions), names)
        axes.tick_params(axis="y", labelsize=font_size, length=0)
        axes.xaxis.get_major_locator().set_params(integer=True)
    for axes in grid.flat[count:]:
        axes.set_axis_off()
    extend = "max" if shares.max() > largest else "neither"
    figure.colorbar(image, ax=grid, extend=extend, anchor=(0, 1), aspect=40)
    return figure
