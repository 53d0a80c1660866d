"""Which experts a trained model uses for text: the counts of its router, by layer and direction.

The sources are read by the encoder, and the references by the decoder (teacher forcing). The sentences of
all directions take turns, so that they share the rows and the groups of a batch as in training.
"""

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gshard_nmt.data.batching.batches import packed_batches
from gshard_nmt.data.sets.examples import Example
from gshard_nmt.model.figures import moe_layer_names
from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run.arrays import batch_specs, weight_specs
from gshard_nmt.settings.config import Config
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import lower

ENOUGH_ROWS = 64
"""A batch need not have more rows than this, unless the devices ask for them."""


@dataclasses.dataclass(frozen=True)
class ExpertUse:
    """The choices of the router on some text, which it makes as in decoding: no choice is dropped."""

    layers: Sequence[str]  # the names of the MoE layers, encoder first, such as "decoder_3"
    tokens: np.ndarray  # float64[layers, directions], the tokens that visit a layer
    chosen: np.ndarray  # float64[layers, directions, E], the tokens that choose an expert
    weight: np.ndarray  # float64[layers, directions, E], the sum of the weights of these choices
    left_out: np.ndarray  # int64[directions], sentences that are empty or too long for a row
    origin: str = ""  # the weights in words, such as "step 500"


def count(
    config: Config,
    functions: StepFunctions,
    devices: runtime.Runtime,
    weights: Mapping[str, Any],
    texts: Sequence[Sequence[tuple[Sequence[int], Sequence[int]]]],
) -> ExpertUse:
    """Counts the choices of the router for pairs of each direction: ids of both sides, with EOS."""
    functions = dataclasses.replace(functions, languages=len(texts))
    shards = devices.mesh.axis_size(devices.mesh.partition("B")[0])
    rows = shards * max(1, min(config.data.rows, ENOUGH_ROWS) // shards)
    config = config.replace(data={"rows": rows})
    examples, left_out = _fitting(config, texts)
    specs, data = batch_specs(config), config.data
    key = [repr(functions), [data.rows, data.source_length, data.target_length]]
    program = devices.compile(
        json.dumps(["expert use", *key]),
        lambda: lower(functions.expert_use, [weight_specs(functions), specs], [{}], devices.mesh),
    )
    layers = moe_layer_names(functions.model)
    by_expert = (len(layers), len(texts), config.model.experts)
    shapes = {"tokens": by_expert[:2], "chosen": by_expert, "weight": by_expert}
    totals = {name: np.zeros(shape) for name, shape in shapes.items()}
    for batch in packed_batches(examples, data):
        (counts,) = program(weights, devices.put(batch, specs))
        for name, array in devices.fetch(counts).items():
            totals[name] += array
    return ExpertUse(layers, totals["tokens"], totals["chosen"], totals["weight"], left_out)


def _fitting(
    config: Config, texts: Sequence[Sequence[tuple[Sequence[int], Sequence[int]]]]
) -> tuple[list[Example], np.ndarray]:
    """Returns the examples that fit into a row, directions in turns, and the number of the others."""
    data = config.data
    by_direction = [
        [
            Example(np.array(source), np.array(target), number)
            for source, target in pairs
            if 0 < len(source) <= data.source_length and 0 < len(target) <= data.target_length
        ]
        for number, pairs in enumerate(texts)
    ]
    left_out = [len(pairs) - len(kept) for pairs, kept in zip(texts, by_direction, strict=True)]
    turns = itertools.zip_longest(*by_direction)
    examples = [example for turn in turns for example in turn if example is not None]
    return examples, np.array(left_out, np.int64)
