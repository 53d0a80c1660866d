"""`gshard-data plan`: computes what a run will see of each language, before it is trained."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from gshard_nmt import files
from gshard_nmt.data import schedule
from gshard_nmt.data.batching.batches import TrainBatches
from gshard_nmt.data.batching.mixture import Mixture
from gshard_nmt.data.batching.plan import Phase, Plan, make_plan
from gshard_nmt.data.batching.streams import streams_of
from gshard_nmt.data.config import Data
from gshard_nmt.data.reading.layout import split_pair
from gshard_nmt.data.sets.corpus import ENGLISH
from gshard_nmt.data.sets.directions import directions_of
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.errors import UserError
from gshard_nmt.quantities import count_text, short_count
from gshard_nmt.terminal import Terminal, table

_FILL = 0.95
"""The part of a row that is not padding, before it is measured."""
_MEASURED_ROWS = 1024
"""Rows that are filled to measure how many examples a row has."""
_HEADER = ("pair", "examples", "drawn", "epochs", "share", "natural", "factor", "tokens")


def plan_data(config: Data, steps: int, folder: Path) -> Plan:
    """Returns the plan of a run on prepared data. The first batches give the examples of a step."""
    data = PreparedData.open(folder)
    trains = [pair.splits["train"] for pair in data.pairs_of(config)]
    tokens = np.array(
        [[train.source_tokens, train.target_tokens] for train in trains], np.float64
    ) / [[max(train.examples, 1)] for train in trains]
    components = data.components(config)
    estimates = _in_a_step(config, components, tokens)
    scale = _measured(data, config) / estimates[0]
    return _plan(config, steps, components, tokens, [scale * number for number in estimates])


def plan_sizes(
    config: Data, steps: int, sizes: Mapping[str, int], pair_tokens: float = 60.0
) -> Plan:
    """Returns the plan of a run on data that is not there yet.

    `sizes` has the training examples of each language or pair, or of each subset such as "fr.back", and
    `pair_tokens` is the mean number of tokens of an example, source and target together.
    """
    components = [
        component for name, size in sizes.items() for component in _components(config, name, size)
    ]
    for name in (names := [_name(component) for component in components]):
        if names.count(name) > 1:
            raise UserError(
                f"--sizes has {name} twice, for instance as fr and fr-en. Name it once."
            )
    for error in schedule.wrong_names(config.phases, components):
        raise error
    tokens = np.full((len(components), 2), pair_tokens / 2)
    return _plan(config, steps, components, tokens, _in_a_step(config, components, tokens))


def _components(config: Data, name: str, size: int) -> Iterator[schedule.Component]:
    name, _, subset = name.partition(".")
    source, target = split_pair(name) or (name, ENGLISH)
    language = f"{source}-{target}"
    if ENGLISH in (source, target):
        language = target if source == ENGLISH else source
    directions = list(directions_of(config.direction, source, target))
    if not directions:
        raise UserError(
            f"--sizes has {name}, a pair without English, but Data.direction is {config.direction!r}. "
            "Leave the pair out, or set Data.direction = 'all'."
        )
    for first, second in directions:
        yield schedule.Component(first, second, language, subset, size)


def _in_a_step(
    config: Data, components: Sequence[schedule.Component], tokens: np.ndarray
) -> list[float]:
    """Estimates the number of examples of a step in each phase.

    `tokens` is float64[components, 2], the mean number of source and of target tokens of an example.
    """
    lengths = np.array([config.source_length, config.target_length])
    means = [phase.rates(components) @ tokens for phase in config.phases]
    return [config.rows * _FILL * float((lengths / np.maximum(mean, 1)).min()) for mean in means]


def _measured(data: PreparedData, config: Data) -> float:
    rows = min(config.rows, _MEASURED_ROWS)
    batches = TrainBatches(data, config, range(rows))
    try:
        first = itertools.islice(batches, max(1, _MEASURED_ROWS // rows))
        counts = [arrays["source_segments"].max(1).sum() for arrays in first]
    finally:
        batches.close()
    return float(np.mean(counts)) * config.rows / rows


def _plan(
    config: Data,
    steps: int,
    components: Sequence[schedule.Component],
    tokens: np.ndarray,
    examples_per_step: Sequence[float],
) -> Plan:
    order = sorted(range(len(components)), key=lambda n: -components[n].examples)
    rates = [phase.rates(components) for phase in config.phases]
    mixture = Mixture(
        tuple(tuple(rate[order]) for rate in rates), streams_of(config.rows), config.seed
    )
    begins = [phase.from_step for phase in config.phases if phase.from_step < steps]
    phases = [
        Phase(begin + 1, end, _about(phase))
        for begin, end, phase in zip(begins, [*begins[1:], steps], config.phases, strict=False)
    ]
    sizes = [(_name(components[n]), components[n].examples, float(tokens[n].sum())) for n in order]
    return make_plan(sizes, mixture, phases, examples_per_step[: len(phases)])


def _name(component: schedule.Component) -> str:
    return component.direction + (f".{component.subset}" if component.subset else "")


def _about(phase: schedule.Phase) -> str:
    weights = ", ".join(f"{name} {weight:g}" for name, weight in phase.weights.items())
    about = f"temperature {phase.temperature:g}" + (f", weights {weights}" if weights else "")
    return f"{about}, {phase.fraction:.0%} of a ramp" if phase.previous is not None else about


def read_sizes(text: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = (word.strip() for word in part.partition("="))
        try:
            size = int(float(number))
        except (ValueError, OverflowError):
            size = 0
        if not name or size < 1 or name in sizes:
            raise UserError(
                f"--sizes has {part!r}; it must name each language once with its number of training "
                "examples. Write, for example, --sizes fr=1000000,de=20000."
            )
        sizes[name] = size
    if not sizes:
        raise UserError(
            "--sizes names no language. Write, for example, --sizes fr=1000000,de=20000."
        )
    return sizes


def show(plan: Plan, out: Path | None) -> None:
    console = Terminal()
    title = f"the mixture in {plan.steps:,} step{'' if plan.steps == 1 else 's'}"
    rows = [
        (
            use.name,
            short_count(use.examples),
            short_count(use.draws),
            _digits(use.epochs),
            f"{use.share:.2%}",
            f"{use.natural_share:.2%}",
            _digits(use.oversampling),
            short_count(use.tokens),
        )
        for use in plan.uses
    ]
    console.print(table(title, _HEADER, rows))
    for phase in plan.phases:
        steps = f"steps {phase.first:,} to {phase.last:,}"
        if phase.first == phase.last:
            steps = f"step {phase.first:,}"
        console.print(f"{steps}: {phase.about}")
    console.print(
        f"about {plan.examples_per_step:,.0f} examples a step; "
        f"{count_text(sum(use.draws for use in plan.uses))} examples and "
        f"{count_text(sum(use.tokens for use in plan.uses))} tokens in all. Epochs: how often each "
        "example is seen. Natural: the part of all examples. Factor: the share divided by the natural "
        "share.",
        soft_wrap=True,
        markup=False,
    )
    for warning in plan.warnings():
        console.print(warning, style="bold")
    if out:
        files.write(out, json.dumps(plan.to_json(), indent=1, ensure_ascii=False) + "\n")
        console.print(f"plan: {out}")


def _digits(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
