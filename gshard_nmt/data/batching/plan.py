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
class Component:
    """What the mixture draws from: the training examples of one direction and subset.

    Attributes:
      name: its name, such as "fr-en" or "de-en.back".
      examples: number of training examples.
      tokens: mean number of source and target tokens of an example.
    """

    name: str
    examples: int
    tokens: float


@dataclasses.dataclass(frozen=True)
class Phase:
    """Steps with the same weights of the mixture.

    Attributes:
      first, last: its first and its last step, from 1.
      about: its settings in words.
    """

    first: int
    last: int
    about: str


@dataclasses.dataclass(frozen=True)
class Use:
    """How training uses a component.

    Attributes:
      name, examples: those of the component.
      draws: number of examples that are drawn.
      epochs: how often each example is seen, on average.
      share, natural_share: its part of the draws, and of the examples.
      tokens: number of tokens of the draws.
    """

    name: str
    examples: int
    draws: int
    epochs: float
    share: float
    natural_share: float
    tokens: float

    @property
    def oversampling(self) -> float:
        """How much more often it is drawn than its size asks for."""
        return self.share / self.natural_share if self.natural_share else 0.0


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run will see.

    Attributes:
      components: what the mixture draws from.
      steps: number of training steps.
      examples_per_step: mean number of examples in a step.
      phases: the phases of the mixture.
      points: int64[points], the steps at which the draws are known; the last is `steps`.
      draws: int64[points, components], the draws of each component up to each of these steps. They are
        exact at the end of each phase.
    """

    components: tuple[Component, ...]
    steps: int
    examples_per_step: float
    phases: tuple[Phase, ...]
    points: np.ndarray
    draws: np.ndarray

    @property
    def uses(self) -> list[Use]:
        """The use of each component, in their order."""
        total, examples = self.draws[-1].sum(), sum(c.examples for c in self.components)
        return [
            Use(
                component.name,
                component.examples,
                int(count),
                float(count / component.examples),
                float(count / total),
                component.examples / examples,
                float(count * component.tokens),
            )
            for component, count in zip(self.components, self.draws[-1], strict=True)
        ]

    @property
    def shares(self) -> np.ndarray:
        """float64[points, components], the part of each component in the draws up to each point."""
        before = np.concatenate([np.zeros_like(self.draws[:1]), self.draws[:-1]])
        drawn = self.draws - before
        return drawn / np.maximum(drawn.sum(1, keepdims=True), 1)

    def warnings(self) -> Iterator[str]:
        """Yields a sentence for each thing that a user should think about."""
        uses = self.uses
        often = sorted((u for u in uses if u.epochs > MANY_EPOCHS), key=lambda u: -u.epochs)
        if often:
            yield (
                f"{_listed([f'{u.name} ({u.epochs:,.0f} times)' for u in often])}: each example is seen "
                f"more than {MANY_EPOCHS} times, so the model may learn them by heart. Lower the "
                "temperature, or train fewer steps."
            )
        if never := [u.name for u in uses if not u.draws]:
            yield f"{_listed(never)}: never seen in these steps. Raise its weight, or train longer."
        largest = max(uses, key=lambda u: (bool(u.draws), u.examples))
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
        """Returns the plan as values for JSON."""
        return {
            "steps": self.steps,
            "examples_per_step": self.examples_per_step,
            "phases": [dataclasses.asdict(phase) for phase in self.phases],
            "pairs": [
                dataclasses.asdict(use) | {"oversampling": use.oversampling} for use in self.uses
            ],
            "points": self.points.tolist(),
            "draws": self.draws.tolist(),
            "warnings": list(self.warnings()),
        }


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _FEW_NAMES
    return ", ".join(names[:_FEW_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def make_plan(
    components: Sequence[Component],
    mixture: Mixture,
    phases: Sequence[Phase],
    examples_per_step: Sequence[float],
) -> Plan:
    """Computes the draws of each component.

    Args:
      components: in the order of the rates of the mixture.
      mixture: the mixture of the run.
      phases: those of its phases that the run reaches.
      examples_per_step: mean number of examples in a step, in each phase.
    """
    steps = phases[-1].last
    ends = [phase.last for phase in phases]
    points = np.unique([*np.linspace(0, steps, POINTS + 1)[1:].astype(np.int64), *ends])
    points = points[points > 0]
    draws = np.zeros((len(points), len(components)), np.int64)
    for number, (phase, per_step) in enumerate(zip(phases, examples_per_step, strict=True)):
        lasting = phase.last - phase.first + 1
        counts = counts_until(mixture, number, round(lasting * per_step))
        # The rates of a phase are constant, so inside it the draws grow evenly, up to a few draws.
        done = np.clip(points - phase.first + 1, 0, lasting) / lasting
        draws += np.rint(done[:, None] * counts).astype(np.int64)
    mean = float(draws[-1].sum() / steps)
    return Plan(tuple(components), steps, mean, tuple(phases), points, draws)


def counts_until(mixture: Mixture, phase: int, draws: int) -> np.ndarray:
    """Returns int64[components]: how often each component is drawn in the first draws of a phase.

    Args:
      mixture: the mixture.
      phase: the number of the phase.
      draws: the draws of all streams together, which take turns.
    """
    each, rest = divmod(draws, mixture.streams)
    streams = np.arange(mixture.streams)
    return mixture.counts_until(streams, phase, each + (streams < rest)).sum(0)
