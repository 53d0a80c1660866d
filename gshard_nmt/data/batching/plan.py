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
    """How training uses the examples of one direction and subset.

    Attributes:
      name: the direction and subset, such as "fr-en" or "de-en.back".
      examples: number of training examples.
      draws: number of examples that are drawn.
      epochs: how often each example is seen, on average.
      share, natural_share: its part of the draws, and of the examples.
      tokens: number of tokens of the draws.
      oversampling: how much more often it is drawn than its size asks for.
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

    Attributes:
      steps: number of training steps.
      examples_per_step: mean number of examples in a step.
      phases: the phases of the mixture.
      uses: the use of each component of the mixture.
      points: int64[points], the steps at which the draws are known; the last is `steps`.
      draws: int64[points, components], the draws of each component up to each of these steps. They are
        exact at the end of each phase.
    """

    steps: int
    examples_per_step: float
    phases: tuple[Phase, ...]
    uses: tuple[Use, ...]
    points: np.ndarray
    draws: np.ndarray

    def warnings(self) -> Iterator[str]:
        """Yields a sentence for each thing that a user should think about."""
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
    """Computes the draws of each component.

    Args:
      sizes: for each component of the mixture its name, the number of its examples, and the mean number
        of source and target tokens of an example.
      mixture: the mixture of the run.
      phases: those of its phases that the run reaches.
      examples_per_step: mean number of examples in a step, in each phase.
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
    """Returns int64[components]: how often each component is drawn in the first draws of a phase.

    `draws` counts those of all streams together, which take turns.
    """
    each, rest = divmod(draws, mixture.streams)
    streams = np.arange(mixture.streams)
    return mixture.counts_until(streams, phase, each + (streams < rest)).sum(0)
