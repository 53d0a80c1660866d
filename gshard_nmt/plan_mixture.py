"""`gshard-data plan`: computes what a run will see of each language, before it is trained.

The counts of the mixture up to any draw are exact, and need no loop over the draws. A step takes as many
draws as fit into its rows; that number is an average, which the first batches give.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt import files
from gshard_nmt.data import schedule
from gshard_nmt.data.batching.batches import TrainBatches
from gshard_nmt.data.batching.mixture import Mixture
from gshard_nmt.data.batching.streams import streams_of
from gshard_nmt.data.config import Data
from gshard_nmt.data.reading.rows import listed
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.quantities import count_text, short_count
from gshard_nmt.terminal import Terminal, table

_MANY_EPOCHS = 100
_MEASURED_ROWS = 1024
"""Rows that are filled to measure how many examples a row has."""
_HEADER = ("pair", "examples", "drawn", "epochs", "share", "tokens")


@dataclasses.dataclass(frozen=True)
class Phase:
    """Steps with the same weights: the first and the last, from 1, and the settings in words."""

    first: int
    last: int
    about: str


@dataclasses.dataclass(frozen=True)
class Use:
    """How training uses the examples of one direction and subset, such as "de-en.back".

    `share` is its part of the draws.
    """

    name: str
    examples: int
    draws: int
    epochs: float
    share: float
    tokens: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run will see. `uses` has the directions with many examples first."""

    steps: int
    examples_per_step: float
    phases: Sequence[Phase]
    uses: Sequence[Use]

    def warnings(self) -> Iterator[str]:
        often = sorted((u for u in self.uses if u.epochs > _MANY_EPOCHS), key=lambda u: -u.epochs)
        if often:
            yield (
                f"{listed([f'{u.name} ({u.epochs:,.0f} times)' for u in often])}: each example is seen "
                f"more than {_MANY_EPOCHS} times, so the model may learn them by heart. Lower the "
                "temperature, or train fewer steps."
            )
        if never := [u.name for u in self.uses if not u.draws]:
            yield f"{listed(never)}: never seen in these steps. Raise its weight, or train longer."
        largest = max(self.uses, key=lambda u: (bool(u.draws), u.examples))
        if 0 < largest.epochs < 1:
            yield (
                f"{largest.name}, the largest: only {largest.epochs:.1%} of its examples are seen. "
                "Train longer, or raise its weight, to see all of them."
            )

    def to_json(self) -> dict[str, Any]:
        values = dataclasses.asdict(self) | {"warnings": list(self.warnings())}
        return values | {"pairs": values.pop("uses")}


def plan_data(config: Data, steps: int, folder: Path) -> Plan:
    """Returns the plan of a run on prepared data."""
    data, config = PreparedData.open(folder), config.in_run(steps)
    trains = [pair.splits["train"] for pair in data.pairs_of(config)]
    components = data.components(config)
    # float64[components, side]: the mean number of tokens of an example.
    tokens = np.array(
        [[train.source_tokens, train.target_tokens] for train in trains], np.float64
    ) / [[max(train.examples, 1)] for train in trains]
    rates = [phase.rates(components) for phase in config.phases]
    # A phase with longer examples has fewer in a row.
    lengths = np.array([config.source_length, config.target_length])
    room = [(lengths / np.maximum(rate @ tokens, 1)).min() for rate in rates]
    in_first = _examples_of_first_steps(data, config)
    mixture = Mixture(tuple(map(tuple, rates)), streams_of(config.rows), config.seed)
    begins = [int(phase.from_step) for phase in config.phases if phase.from_step < steps]
    draws = np.zeros(len(components), np.int64)
    phases = []
    for n, (begin, end) in enumerate(itertools.pairwise([*begins, steps])):
        phases.append(Phase(begin + 1, end, _about(config.phases[n])))
        per_step = in_first * room[n] / room[0]
        draws += counts_until(mixture, n, round((end - begin) * per_step))
    names = [c.direction + (f".{c.subset}" if c.subset else "") for c in components]
    sizes = [component.examples for component in components]
    uses = uses_of(names, sizes, draws.tolist(), tokens.sum(1).tolist())
    return Plan(steps, float(draws.sum() / steps), phases, uses)


def uses_of(
    names: Sequence[str], sizes: Sequence[int], draws: Sequence[int], tokens: Sequence[float]
) -> list[Use]:
    """Returns the uses of components with these examples, draws, and mean tokens of an example."""
    total = sum(draws)
    uses = [
        Use(name, examples, count, count / max(examples, 1), count / total, count * mean)
        for name, examples, count, mean in zip(names, sizes, draws, tokens, strict=True)
    ]
    return sorted(uses, key=lambda use: -use.examples)


def _examples_of_first_steps(data: PreparedData, config: Data) -> float:
    """Returns the mean number of examples of a step."""
    rows = min(config.rows, _MEASURED_ROWS)
    batches = TrainBatches(data, config, range(rows))
    try:
        first = itertools.islice(batches, max(1, _MEASURED_ROWS // rows))
        counts = [arrays["source_segments"].max(1).sum() for arrays in first]
    finally:
        batches.close()
    return float(np.mean(counts)) * config.rows / rows


def counts_until(mixture: Mixture, phase: int, draws: int) -> np.ndarray:
    """Returns int64[components], the first draws of a phase; streams take turns."""
    each, rest = divmod(draws, mixture.streams)
    streams = np.arange(mixture.streams)
    return mixture.counts_until(streams, phase, each + (streams < rest)).sum(0)


def _about(phase: schedule.Phase) -> str:
    weights = ", ".join(f"{name} {weight:g}" for name, weight in phase.weights.items())
    return f"temperature {phase.temperature:g}" + (f", weights {weights}" if weights else "")


def show(plan: Plan, out: Path | None) -> None:
    console = Terminal()
    rows = []
    for use in plan.uses:
        examples, draws, tokens = map(short_count, (use.examples, use.draws, use.tokens))
        rows.append((use.name, examples, draws, f"{use.epochs:,.2f}", f"{use.share:.2%}", tokens))
    console.print(table(f"the mixture in {plan.steps:,} steps", _HEADER, rows))
    for phase in plan.phases:
        console.print(f"steps {phase.first:,} to {phase.last:,}: {phase.about}")
    console.print(
        f"about {plan.examples_per_step:,.0f} examples a step; "
        f"{count_text(sum(use.draws for use in plan.uses))} examples and "
        f"{count_text(sum(use.tokens for use in plan.uses))} tokens in all. Epochs: how often each "
        "example is seen. Share: the part of all draws."
    )
    for warning in plan.warnings():
        console.print(f"warning: {warning}")
    if out:
        files.write_json(out, plan.to_json())
        console.print(f"plan: {out}")
