"""Which experts each language uses: shares, similarity of languages, and experts that nobody uses.

It computes figures from the counts of the router (`decoding/expert_use.py`). `evaluation/routing_page.py`
shows them.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gshard_nmt.decoding.expert_use import ExpertUse
from gshard_nmt.errors import UserError
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.values import read_run_config

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


def has_experts(run: RunFolder) -> bool:
    """Returns whether the model of a run has experts, and so a router."""
    return read_run_config(run.config).model.experts > 0


def check_any_has_experts(runs: Sequence[RunFolder]) -> None:
    """Checks that the model of at least one run has a router.

    Raises:
      UserError: all of them are dense models.
    """
    if not any(has_experts(run) for run in runs):
        named = " and ".join(str(run.path) for run in runs)
        are = "is a dense model" if len(runs) == 1 else "are dense models"
        raise UserError(
            f"--routing: {named} {are} (Model.experts is 0); only a model with experts has a router. "
            "Leave --routing out, or give the --workdir of a run with experts."
        )


@dataclasses.dataclass(frozen=True)
class RouterMap:
    """The use of the experts by each direction, in each MoE layer.

    Attributes:
      use: the counts of the router.
      names: the name of each direction, in the order of the counts.
    """

    use: ExpertUse
    names: Sequence[str]

    @functools.cached_property
    def by_choice(self) -> np.ndarray:
        """float64[layers, directions, A, E], the share of each expert in the choices of a direction.

        First and second choices each sum to 1. They sum to 0 if the direction has none.
        """
        return _shares(self.use.chosen)

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
        distance = np.mean([divergence(layer) for layer in self.weight], axis=0)
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
    def chance_distance(self) -> float:
        """The median distance of two languages that use the experts alike, because the text is short.

        It is the first term of the bias of the divergence for independent tokens.
        """
        tokens = self.use.tokens[:, self.has_text]
        used = (self.load > 0).sum(axis=1) - 1
        means = (used[:, np.newaxis] / np.maximum(tokens, 1)).mean(axis=0)
        return float(np.median(means)) / (4 * math.log(2)) if means.size else 0.0

    @property
    def is_within_chance(self) -> bool:
        """Whether the distances of the languages are hardly larger than `chance_distance`."""
        pairs = np.triu_indices(len(self.names), 1)
        known = self.distance[pairs][~np.isnan(self.distance[pairs])]
        return bool(known.size and np.median(known) < _HARDLY * self.chance_distance)

    @property
    def chance_specialization(self) -> np.ndarray:
        """float64[layers], the `specialization` of a router that all languages use alike; see above."""
        tokens = self.use.tokens[:, self.has_text]
        used = (self.load > 0).sum(axis=1) - 1
        count = max(tokens.shape[1], 1)
        by_language = used[:, np.newaxis] / np.maximum(tokens, 1) * (1 - 1 / count)
        return by_language.sum(axis=1) / (2 * math.log(2) * count)

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
            equal = chosen.mean()
            few = np.flatnonzero(chosen < _DEAD * equal).tolist()
            if few and equal >= _FEWEST_CHOICES:
                dead[name] = few
        return dead

    def collapsed_layers(self) -> dict[str, float]:
        """Returns the effective experts, exp(entropy of the load), of each layer that has collapsed."""
        limit = max(_COLLAPSED * self.load.shape[-1], 1.1)
        effective = np.exp2(_entropy(self.load))
        pairs = zip(self.use.layers, effective.tolist(), strict=True)
        return {name: value for name, value in pairs if value < limit and self.has_text.any()}

    def alarms(self) -> tuple[str, ...]:
        """Returns a sentence for each fault of the router that a user should look at."""
        experts = self.load.shape[-1]
        dead = [
            f"{name}: {len(numbers)} of {experts} experts get almost no token "
            f"({', '.join(map(str, numbers[:8]))}{', ...' if len(numbers) > 8 else ''})"
            for name, numbers in self.dead_experts().items()
        ]
        collapsed = [
            f"{name}: few experts get most tokens ({value:.1f} effective experts of {experts})"
            for name, value in self.collapsed_layers().items()
        ]
        return (*dead, *collapsed)

    def data(self) -> dict[str, Any]:
        """Returns the value of "routing" in bleu.json. Numbers have 4 digits after the point.

        The shares of the experts are null if there are more than a million of them.
        """
        is_small = self.weight.size <= _MOST_NUMBERS
        shares: dict[str, Any] = {"first": self.by_choice[:, :, 0], "weight": self.weight}
        shares["second"] = self.by_choice[:, :, 1] if self.by_choice.shape[2] > 1 else None
        columns = {
            "entropy": self.entropy,
            "load": self.load,
            "lost_one": self.lost[..., 0],
            "lost_both": self.lost[..., 1],
            "specialization": self.specialization,
            "chance_specialization": self.chance_specialization,
            "distance": self.distance,
        }
        numbers = range(len(self.names))
        return {
            "checkpoint": self.use.origin,
            "layers": list(self.use.layers),
            "directions": list(self.names),
            "tokens": self.use.tokens.astype(int).tolist(),
            "left_out": self.use.left_out.tolist(),
            **{name: _rounded(share) if is_small else None for name, share in shares.items()},
            **{name: _rounded(column) for name, column in columns.items()},
            "chance_distance": round(self.chance_distance, 4),
            "nearest": {self.names[i]: [self.names[j] for j in self.nearest(i)] for i in numbers},
            "dead_experts": self.dead_experts(),
        }


def divergence(shares: np.ndarray) -> np.ndarray:
    """Returns the Jensen-Shannon divergence of each two rows in bits: [n, E] -> float64[n, n]."""
    entropy = _entropy(shares)
    mixed = np.stack([_entropy((shares + row) / 2) for row in shares])
    return np.maximum(mixed - (entropy[:, np.newaxis] + entropy) / 2, 0.0)


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
    values = np.round(array, 4) + 0.0
    if not np.isnan(values).any():
        return values.tolist()
    numbers = values.astype(object)
    numbers[np.isnan(values)] = None
    return numbers.tolist()
