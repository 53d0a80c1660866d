"""The part of the report on the use of experts by each language: a map of each layer, and two tables.

It computes shares, the similarity of languages, and experts that nobody uses from the counts of the
router (`decoding/expert_use.py`).
"""

import dataclasses
import functools
import html
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt.decoding.expert_use import ExpertUse
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.report import figures, web_page
from gshard_nmt.evaluation.report.report import Section
from gshard_nmt.evaluation.texts.translations import TestSet
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.values import read_run_config

CountExperts = Callable[[Path, Sequence[Sequence[Any]], str], ExpertUse]
"""(run folder, tests, --checkpoint) -> the counts of the router; see `RunTranslators.expert_use`."""

NEIGHBORS = 3
"""The number of nearest languages that the report names."""

_DEAD = 0.01
"""An expert is dead if it gets less than this part of an equal share of the choices."""
_FEWEST_CHOICES = 200
"""The mean number of choices of an expert in a layer, below which no expert is called dead."""
_COLLAPSED = 0.25
"""A layer has collapsed if its effective experts are fewer than this part of E."""
_HARDLY = 1.5
"""Distances of less than this multiple of what chance gives are not called differences."""
_MOST_NUMBERS = 1_000_000
"""bleu.json has the shares of all experts if they are at most this number."""
_WIDTH = 9.0
"""Inches of the maps."""


def has_experts(run: RunFolder) -> bool:
    return read_run_config(run.config).model.experts > 0


def check_any_has_experts(runs: Sequence[RunFolder]) -> None:
    if not any(has_experts(run) for run in runs):
        named = " and ".join(str(run.path) for run in runs)
        are = "is a dense model" if len(runs) == 1 else "are dense models"
        raise UserError(
            f"--routing: {named} {are} (Model.experts is 0); only a model with experts has a router. "
            "Leave --routing out, or give the --workdir of a run with experts."
        )


def sections(
    runs: Sequence[tuple[str, RunFolder, Sequence[TestSet]]], count: CountExperts, checkpoint: str
) -> list[Section]:
    """Returns the sections of the report for all runs: (name in the report, run, test sets).

    The section of the first run is "routing" in bleu.json. The others add their names. A dense run has a
    note instead of maps.
    """
    parts = []
    for i, (name, run, tests) in enumerate(runs):
        key = f"routing of {name}" if i else "routing"
        title = "Which experts each language uses" + (f": {name}" if len(runs) > 1 else "")
        if not has_experts(run):
            note = f"<p>{html.escape(name)} is a dense model, so it has no router.</p>"
            parts.append(Section(key, title, note, None))
            continue
        ordered = sorted(tests, key=lambda test: (-test.train_pairs, test.source, test.target))
        texts = [(test.source, test.target, test.sources, test.references) for test in ordered]
        router = RouterMap(count(run.path, texts, checkpoint), direction_names(ordered))
        alarms = tuple(f"{name}, {alarm}" if i else alarm for alarm in router.alarms())
        parts.append(Section(key, title, page_part(router), router.data(), alarms))
    return parts


def direction_names(tests: Sequence[TestSet]) -> list[str]:
    """Returns the name of each direction: the language that differs, or both languages."""
    if len({test.target for test in tests}) == 1:
        return [test.source for test in tests]
    is_from_one = len({test.source for test in tests}) == 1
    return [test.target if is_from_one else test.direction_name for test in tests]


@dataclasses.dataclass(frozen=True)
class RouterMap:
    """The counts of the router, and the name of each direction in their order."""

    use: ExpertUse
    names: Sequence[str]

    @functools.cached_property
    def weight(self) -> np.ndarray:
        """float64[layers, directions, E], the share of each expert in the gate weight of a direction."""
        return _shares(self.use.weight.sum(axis=2))

    @functools.cached_property
    def entropy(self) -> np.ndarray:
        """float64[layers, directions], the entropy of `weight` in bits; at most log2(E)."""
        return _entropy(self.weight)

    @functools.cached_property
    def load(self) -> np.ndarray:
        """float64[layers, E], the share of each expert in the choices of all tokens."""
        return _shares(self.use.chosen.sum(axis=(1, 2)))

    @functools.cached_property
    def effective(self) -> np.ndarray:
        """float64[layers], the effective experts: exp(entropy of the load)."""
        return np.exp2(_entropy(self.load))

    @functools.cached_property
    def lost(self) -> np.ndarray:
        """float64[layers, directions, 2], the share of tokens that would lose one, or both, experts."""
        return self.use.lost / np.maximum(self.use.tokens, 1)[..., np.newaxis]

    @property
    def has_text(self) -> np.ndarray:
        """bool[directions], whether tokens of the direction were counted in every layer."""
        return np.all(self.use.tokens > 0, axis=0)

    @functools.cached_property
    def distance(self) -> np.ndarray:
        """float64[directions, directions], the mean over layers of the Jensen-Shannon divergence.

        It compares the `weight` of two directions in bits: 0 if they use the experts alike, and 1 if
        they share no expert. It is NaN for a direction without text.
        """
        mixed = [[_entropy((layer + row) / 2) for row in layer] for layer in self.weight]
        own = (self.entropy[:, :, np.newaxis] + self.entropy[:, np.newaxis]) / 2
        distance = np.maximum(np.array(mixed) - own, 0.0).mean(axis=0)
        distance[~self.has_text, :] = np.nan
        distance[:, ~self.has_text] = np.nan
        return distance

    @functools.cached_property
    def specialization(self) -> np.ndarray:
        """float64[layers], the mutual information of language and expert in bits.

        All languages count alike. It is 0 if all languages use the experts alike, and at most
        log2(number of languages).
        """
        weight = self.weight[:, self.has_text]
        if not weight.shape[1]:
            return np.zeros(len(weight))
        return _entropy(weight.mean(axis=1)) - _entropy(weight).mean(axis=1)

    @property
    def _noise(self) -> np.ndarray:
        """float64[layers, directions with text], (experts in use - 1) / tokens.

        The bias of an entropy in nats is half of it, for independent tokens, in first order.
        """
        used = (self.load > 0).sum(axis=1) - 1
        return used[:, np.newaxis] / np.maximum(self.use.tokens[:, self.has_text], 1)

    @property
    def chance_distance(self) -> float:
        """The median distance of two languages that use the experts alike, because the text is short."""
        means = self._noise.mean(axis=0)
        return float(np.median(means)) / (4 * math.log(2)) if means.size else 0.0

    @property
    def chance_specialization(self) -> np.ndarray:
        """float64[layers], the `specialization` of a router that all languages use alike."""
        count = max(self._noise.shape[1], 1)
        return self._noise.sum(axis=1) * (1 - 1 / count) / (2 * math.log(2) * count)

    @property
    def is_within_chance(self) -> bool:
        """Whether the distances of the languages are hardly larger than `chance_distance`."""
        of_pairs = self.distance[np.triu_indices(len(self.names), 1)]
        known = of_pairs[~np.isnan(of_pairs)]
        return bool(known.size and np.median(known) < _HARDLY * self.chance_distance)

    def nearest(self, direction: int) -> list[int]:
        """Returns the directions that use the experts most like this one, the nearest first."""
        order = np.argsort(self.distance[direction], kind="stable").tolist()
        others = [other for other in order if other != direction and self.has_text[other]]
        return others[:NEIGHBORS] if self.has_text[direction] else []

    def dead_experts(self) -> dict[str, list[int]]:
        """Returns the experts that almost no token chooses, by layer. Layers without them are left out.

        If the text is too short to tell, no expert is called dead.
        """
        dead = {}
        for name, chosen in zip(self.use.layers, self.use.chosen.sum(axis=(1, 2)), strict=True):
            few = np.flatnonzero(chosen < _DEAD * chosen.mean()).tolist()
            if few and chosen.mean() >= _FEWEST_CHOICES:
                dead[name] = few
        return dead

    def alarms(self) -> list[str]:
        experts = self.load.shape[-1]
        dead = [
            f"{name}: {len(numbers)} of {experts} experts get almost no token "
            f"({', '.join(map(str, numbers[:8]))}{', ...' if len(numbers) > 8 else ''})"
            for name, numbers in self.dead_experts().items()
        ]
        return dead + [
            f"{name}: few experts get most tokens ({value:.1f} effective experts of {experts})"
            for name, value in zip(self.use.layers, self.effective, strict=True)
            if self.has_text.any() and value < max(_COLLAPSED * experts, 1.1)
        ]

    def data(self) -> dict[str, Any]:
        """Returns the value of "routing" in bleu.json. Numbers have 4 digits after the point.

        The shares of the experts are null if there are more than a million of them.
        """
        # float64[layers, directions, A, E]: each choice sums to 1, or to 0 if there is none.
        by_choice = _shares(self.use.chosen)
        second = by_choice[:, :, 1] if by_choice.shape[2] > 1 else None
        shares = {"first": by_choice[:, :, 0], "weight": self.weight, "second": second}
        columns = {
            "entropy": self.entropy,
            "load": self.load,
            "lost_one": self.lost[..., 0],
            "lost_both": self.lost[..., 1],
            "specialization": self.specialization,
            "chance_specialization": self.chance_specialization,
            "distance": self.distance,
        }
        if self.weight.size > _MOST_NUMBERS:
            shares = dict.fromkeys(shares)
        near = {n: [self.names[j] for j in self.nearest(i)] for i, n in enumerate(self.names)}
        return {
            "checkpoint": self.use.origin,
            "layers": list(self.use.layers),
            "directions": list(self.names),
            "tokens": self.use.tokens.astype(int).tolist(),
            "left_out": self.use.left_out.tolist(),
            **{name: _rounded(array) for name, array in (shares | columns).items()},
            "chance_distance": round(self.chance_distance, 4),
            "nearest": near,
            "dead_experts": self.dead_experts(),
        }


def _shares(counts: np.ndarray) -> np.ndarray:
    """Returns counts[..., E] divided by their sum over E, or 0 if the sum is 0."""
    total = counts.sum(axis=-1, keepdims=True)
    return counts / np.where(total > 0, total, 1.0)


def _entropy(shares: np.ndarray) -> np.ndarray:
    """Returns the entropy over the last dimension, in bits."""
    return -(shares * np.log2(np.where(shares > 0, shares, 1.0))).sum(axis=-1)


def _rounded(array: np.ndarray | None) -> list | None:
    """Returns nested lists of numbers with 4 digits after the point; None for NaN."""
    if array is None:
        return None
    # Adding 0 turns -0.0 into 0.0.
    numbers = (np.round(array, 4) + 0.0).astype(object)
    numbers[np.isnan(array)] = None
    return numbers.tolist()


def page_part(router: RouterMap) -> str:
    """Returns the part of the page: the maps, a row for each layer, and a row for each language."""
    alt = "The share of each expert in the gate weight of each language, one map for each MoE layer"
    words = (
        f"<p>The choices of the router of {html.escape(router.use.origin)} on the test text: the encoder "
        "reads the sources, and the decoder reads the references. A row is a language, and the language "
        "with most training pairs is first. A column is an expert. The color is the share of the "
        "language's gate weight that goes to the expert. With equal shares, each expert would get "
        f"{1 / router.weight.shape[-1]:.3f}. Decoding gives each token all experts that it chooses. The "
        "tables say which tokens would lose experts if these had the capacity of evaluation.</p>"
    )
    maps = figures.image(lambda: draw_maps(router.weight, router.use.layers, router.names), "png")
    doubt = ""
    if router.is_within_chance:
        doubt = " The differences of these languages are hardly larger, so do not rely on them."
    note = (
        "<p>The divergence is the mean over the layers of the Jensen-Shannon divergence of two rows, in "
        "bits: 0 if two languages use the experts alike, 1 if they share no expert. On text of this "
        f"size, chance alone gives about {router.chance_distance:.4f}.{doubt}</p>"
    )
    parts = (words, web_page.image(maps, "png", alt), "<h3>Layers</h3>", _layer_table(router))
    return "\n".join((*parts, "<h3>Languages</h3>", note, _language_table(router)))


def draw_maps(shares: np.ndarray, layers: Sequence[str], names: Sequence[str]) -> Any:
    """Returns a figure with a map, float64[directions, E] of `shares`, for each layer."""
    from matplotlib.colors import PowerNorm

    count, directions, experts = shares.shape
    columns = max(1, min(count, int((_WIDTH - 1) / min(max(0.04 * experts + 0.6, 2.0), 8.0))))
    lines = -(-count // columns)
    inches, font_size = (0.16, 8) if directions <= 40 else (0.075, 4.8)
    height = lines * (max(inches * directions, 0.8) + 0.45) + 0.3
    figure = figures.new_figure((_WIDTH, height), figures.LIGHT)
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


def _layer_table(router: RouterMap) -> str:
    dead, tokens = router.dead_experts(), np.maximum(router.use.tokens.sum(axis=1), 1)
    lost = router.use.lost.sum(axis=1) / tokens[:, np.newaxis]
    # fmt: off
    head = (
        "layer", f"effective experts of {router.load.shape[-1]}", "busiest expert", "dead experts",
        "bits that the expert tells about the language (by chance)",
        "would lose one expert", "would lose both",
    )
    # fmt: on
    rows = [
        [
            name.replace("_", " "),
            f"{router.effective[i]:.1f}",
            f"{int(router.load[i].argmax())} ({_percent(router.load[i].max())})",
            str(len(dead.get(name, []))),
            f"{router.specialization[i]:.3f} ({router.chance_specialization[i]:.3f})",
            *(_percent(share) for share in lost[i]),
        ]
        for i, name in enumerate(router.use.layers)
    ]
    return web_page.table(head, rows)


def _language_table(router: RouterMap) -> str:
    tokens = router.use.tokens.max(axis=0).astype(int)
    effective = np.exp2(router.entropy).mean(axis=0)
    lost = router.use.lost.sum(axis=(0, 2)) / np.maximum(router.use.tokens.sum(axis=0), 1)
    # fmt: off
    head = (
        "language", "tokens", "left out", "experts in use", "would lose experts",
        "languages with the most similar use (divergence)",
    )
    # fmt: on
    rows = [
        [
            name,
            f"{tokens[i]:,}",
            f"{router.use.left_out[i]:,}",
            f"{effective[i]:.1f}",
            _percent(lost[i]),
            ", ".join(
                f"{router.names[j]} ({router.distance[i, j]:.3f})" for j in router.nearest(i)
            ),
        ]
        for i, name in enumerate(router.names)
    ]
    return web_page.table(head, rows)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
