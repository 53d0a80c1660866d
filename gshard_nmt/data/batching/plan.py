"""The plan of a mixture: how often training will see each language pair, computed before training.

The counts of the mixture up to any draw are exact, and need no loop over the draws. A step takes as many
draws as fit into its rows; that number is an average.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gshard_nmt.data.batching.mixture import Mixture

POINTS = 48
"""Points over the steps at which shares are computed."""
MANY_EPOCHS = 100
_FEW_NAMES = 5


@dataclasses.dataclass(frozen=True)
class Phase:
    """Steps with the same weights: the first and the last, from 1, and the settings in words."""

    first: int
    last: int
    about: str


@dataclasses.dataclass(frozen=True)
class Use:
    """How training uses the examples of one direction and subset, such as "de-en.back".

    `share` and `natural_share` are its parts of the draws and of the examples, and `oversampling` their
    quotient.
    """

    name: str
    examples: int
    draws: int
    epochs: float
    share: float
    natural_share: float
    tokens: float
    oversampling: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run will see.

    int64[points, components] `draws` are those up to the steps int64[points] `points`, the last of which
    is `steps`. They are exact at the end of each phase.
    """

    steps: int
    examples_per_step: float
    phases: tuple[Phase, ...]
    uses: tuple[Use, ...]
    points: np.ndarray
    draws: np.ndarray

    def warnings(self) -> Iterator[str]:
        often = sorted((u for u in self.uses if u.epochs > MANY_EPOCHS), key=lambda u: -u.epochs)
        if often:
            yield (
                f"{_listed([f'{u.name} ({u.epochs:,.0f} times)' for u in often])}: each example is seen "
                f"more than {MANY_EPOCHS} times, so the model may learn them by heart. Lower the "
                "temperature, or train fewer steps."
            )
        if never := [u.name for u in self.uses if not u.draws]:
            yield f"{_listed(never)}: never seen in these steps. Raise its weight, or train longer."
        largest = max(self.uses, key=lambda u: (bool(u.draws), u.examples))
        if 0 < largest.epochs < 1:
            # With several phases, the rates of these steps say nothing about later steps.
            remedy = "Train longer, or raise its weight, to see all of them."
            if len(self.phases) == 1:
                steps = self.steps / largest.epochs
                remedy = f"Train about {steps:,.0f} steps to see all of them."
            yield (
                f"{largest.name}, the largest: only {largest.epochs:.1%} of its examples are seen. "
                f"{remedy}"
            )

    def to_json(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "examples_per_step": self.examples_per_step,
            "phases": [dataclasses.asdict(phase) for phase in self.phases],
            "pairs": [dataclasses.asdict(use) for use in self.uses],
            "points": self.points.tolist(),
            "draws": self.draws.tolist(),
            "warnings": list(self.warnings()),
        }


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _FEW_NAMES
    return ", ".join(names[:_FEW_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def make_plan(
    sizes: Sequence[tuple[str, int, float]],
    mixture: Mixture,
    phases: Sequence[Phase],
    examples_per_step: Sequence[float],
) -> Plan:
    """Computes the draws of each component in the phases that the run reaches.

    `sizes` has the name, the examples and the mean tokens of an example of each component.
    """
    steps = phases[-1].last
    ends = [phase.last for phase in phases]
    points = np.unique([*np.linspace(0, steps, POINTS + 1)[1:].astype(np.int64), *ends])
    points = points[points > 0]
    draws = np.zeros((len(points), len(sizes)), np.int64)
    for number, (phase, per_step) in enumerate(zip(phases, examples_per_step, strict=True)):
        lasting = phase.last - phase.first + 1
        counts = counts_until(mixture, number, round(lasting * per_step))
        # The rates of a phase are constant, so inside it the draws grow evenly, up to a few draws.
        done = np.clip(points - phase.first + 1, 0, lasting) / lasting
        draws += np.rint(done[:, None] * counts).astype(np.int64)
    total, every = draws[-1].sum(), sum(examples for _, examples, _ in sizes)
    uses = []
    for (name, examples, tokens), count in zip(sizes, draws[-1], strict=True):
        share, natural = float(count / total), examples / every
        epochs, factor = float(count / examples), share / natural if natural else 0.0
        use = Use(name, examples, int(count), epochs, share, natural, float(count * tokens), factor)
        uses.append(use)
    return Plan(steps, float(total / steps), tuple(phases), tuple(uses), points, draws)


def counts_until(mixture: Mixture, phase: int, draws: int) -> np.ndarray:
    """Returns int64[components], the first draws of a phase; streams take turns."""
    each, rest = divmod(draws, mixture.streams)
    streams = np.arange(mixture.streams)
    return mixture.counts_until(streams, phase, each + (streams < rest)).sum(0)
