"""Trains a model on a mesh, or compiles it for a machine: the part that all examples share.

An example declares its weights and its batch, and computes a loss. This module makes the training step
of it, which is one function of the weights, their velocities and a batch:

    loss, and its gradients        TensorFlow's GradientTape
    velocity = 0.9 velocity + gradient
    weight = weight - learning rate * velocity

`gshard_nmt.spmd.lowering.lower` lowers that function with its annotations, and `Runtime.compile` makes
one program of it for all devices of the mesh.
"""

import argparse
import dataclasses
import functools
import json
import math
import pathlib
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gshard_nmt import files, outputs
from gshard_nmt.errors import UserError
from gshard_nmt.inspection.program_cost import ProgramCost, cost_of
from gshard_nmt.quantities import flops_text, seconds_text, size_text
from gshard_nmt.spmd import ahead_of_time, runtime
from gshard_nmt.spmd.lowering import ArraySpec, LoweredFunction, lower
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.program import COLLECTIVE_KINDS, Program
from gshard_nmt.spmd.runtime import Runtime
from gshard_nmt.spmd.topology import Topology

if TYPE_CHECKING:
    import tensorflow as tf

MOMENTUM = 0.9

Tensors = Mapping[str, "tf.Tensor"]
Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Weight:
    """A weight: its shape, its letters, and how it is initialized."""

    letters: str
    shape: tuple[int, ...]
    fan_in: int = 0
    """The number of inputs of each output. The initial values are normal with a variance of 1 / fan_in;
    0 means that all are `constant`."""
    constant: float = 0.0

    def initial(self, numbers: np.random.Generator) -> np.ndarray:
        """Returns the initial values, float32[shape]."""
        if not self.fan_in:
            return np.full(self.shape, self.constant, np.float32)
        return numbers.standard_normal(self.shape, np.float32) / np.float32(math.sqrt(self.fan_in))


@dataclasses.dataclass(frozen=True)
class Model:
    """A model that this module can train."""

    weights: Mapping[str, Weight]
    """The weights by name."""
    batch: Mapping[str, ArraySpec]
    """The arrays of a batch by name."""
    loss: Callable[[Tensors, Tensors], "tf.Tensor"]
    """Takes the weights and a batch, and returns the loss, float32[]."""
    make_batch: Callable[[np.random.Generator], Arrays]
    """Makes a batch from random numbers."""
    learning_rate: float

    def weight_specs(self) -> dict[str, ArraySpec]:
        """Returns the shapes and letters of the weights. The velocities have the same."""
        return {
            name: ArraySpec(weight.shape, np.dtype(np.float32), weight.letters)
            for name, weight in self.weights.items()
        }

    def initial_weights(self, seed: int) -> Arrays:
        """Returns the initial weights."""
        numbers = np.random.default_rng(seed)
        return {name: weight.initial(numbers) for name, weight in self.weights.items()}


def train_step(model: Model) -> Callable[[Tensors, Tensors, Tensors], list[Tensors]]:
    """Returns the function (weights, velocities, batch) -> [weights, velocities, {"loss": loss}]."""

    def step(weights: Tensors, velocities: Tensors, batch: Tensors) -> list[Tensors]:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(weights)
            loss = model.loss(weights, batch)
        gradients = tape.gradient(loss, weights)
        velocities = {name: MOMENTUM * velocities[name] + gradients[name] for name in weights}
        weights = {name: weights[name] - model.learning_rate * velocities[name] for name in weights}
        return [weights, velocities, {"loss": loss}]

    return step


def lower_step(model: Model, mesh: Mesh) -> LoweredFunction:
    """Lowers the training step with its annotations."""
    specs = model.weight_specs()
    letters = {name: spec.letters for name, spec in specs.items()}
    return lower(train_step(model), [specs, specs, model.batch], [letters, letters, {}], mesh)


def check_divides(model: Model, mesh: Mesh) -> None:
    """Checks that the weights and the batch divide over the mesh.

    Only arrays that enter or leave a program must divide. Inside, the compiler pads.

    Raises:
      UserError: a dimension of an array does not divide.
    """
    for name, spec in [*model.weight_specs().items(), *model.batch.items()]:
        for dimension in mesh.uneven(spec.letters, spec.shape, name):
            raise UserError(dimension.describe(name))


def compile_step(model: Model, mesh: Mesh) -> tuple[Runtime, Program]:
    """Starts the devices of a mesh, and compiles the training step for them.

    On a CPU host they are virtual devices of this process.
    """
    devices = runtime.start(mesh)
    # The weights and the velocities are the input groups 0 and 1: the new ones take over their memory.
    program = devices.compile("train_step", lambda: lower_step(model, mesh), donate=(0, 1))
    return devices, program


def data_numbers(seed: int) -> np.random.Generator:
    """Returns the random numbers that batches are made from; the weights have others."""
    return np.random.default_rng((seed, 1))


def train(
    model: Model, devices: Runtime, program: Program, steps: int, seed: int = 0
) -> tuple[list[float], Arrays, Arrays]:
    """Trains the model from its initial weights and prints the loss of each step.

    Args:
      model: the model.
      devices, program: as `compile_step` returned them.
      steps: the number of steps.
      seed: the seed of the initial weights and of the batches.

    Returns:
      The loss of each step, the last weights and the last velocities. After one step, the velocities
      are the gradients.
    """
    specs, initial = model.weight_specs(), model.initial_weights(seed)
    weights = devices.put(initial, specs)
    velocities = devices.put({name: np.zeros_like(w) for name, w in initial.items()}, specs)
    numbers, losses = data_numbers(seed), []
    for step in range(1, steps + 1):
        began = time.perf_counter()
        batch = devices.put(model.make_batch(numbers), model.batch)
        weights, velocities, metrics = program(weights, velocities, batch)
        losses.append(float(metrics["loss"]))
        print(
            f"step {step}  loss {losses[-1]:.4f}  {time.perf_counter() - began:.2f} s", flush=True
        )
    return losses, devices.fetch(weights), devices.fetch(velocities)


def compile_for(model: Model, mesh: Mesh, name: str) -> ProgramCost:
    """Compiles the training step for a machine that does not have to exist, and returns its cost.

    Args:
      model: the model.
      mesh: a mesh with the devices of that machine.
      name: the name of the machine, such as "v3:4x4" or "cpu:8".

    Raises:
      UserError: there is no such machine, its number of devices differs from that of the mesh, or the
        program does not fit into its memory.
    """
    topology = Topology.parse(name)
    devices = ahead_of_time.devices_of(topology, mesh)
    lowered = lower_step(model, mesh)
    try:
        compiled = ahead_of_time.compile_for(topology, devices, lowered, donate=(0, 1))
    except ahead_of_time.DoesNotFit as error:
        raise UserError(
            f"the step needs {size_text(error.needed_bytes)} for {error.what}, and a device of {name} "
            f"has {size_text(error.available_bytes)}. Use more devices or a smaller model."
        ) from error
    return cost_of(compiled, devices, lowered)


def _at_least(smallest: int, text: str) -> int:
    if not text.isdecimal() or int(text) < smallest:
        raise argparse.ArgumentTypeError(f"{text!r}; give a whole number from {smallest} up")
    return int(text)


_NATURAL, _POSITIVE = functools.partial(_at_least, 0), functools.partial(_at_least, 1)


def flags(description: str) -> argparse.ArgumentParser:
    """Returns a parser with the flags that all examples have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--mesh", default="1x1", help="the sizes of the two mesh axes")
    parser.add_argument("--steps", type=_POSITIVE, default=20, help="the number of training steps")
    parser.add_argument("--seed", type=_NATURAL, default=0, help="the seed of weights and data")
    parser.add_argument(
        "--compile_for",
        metavar="TOPOLOGY",
        help="do not train; compile the step for a machine, such as v3:4x4, and print its cost",
    )
    parser.add_argument("--json", type=pathlib.Path, help="with --compile_for: a file for the cost")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="dtype of activations"
    )
    return parser


def sizes(parser: argparse.ArgumentParser, **defaults: tuple[int, str]) -> None:
    """Adds flags for the sizes of a model: name=(default, help)."""
    for name, (default, words) in defaults.items():
        parser.add_argument(f"--{name}", type=_POSITIVE, default=default, help=words)


def mesh_shape(text: str) -> tuple[int, int]:
    """Returns the sizes of the mesh axes: (2, 4) for "2x4".

    Raises:
      UserError: the text is no two sizes.
    """
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if not match:
        raise UserError(f"--mesh {text}: give the sizes of two axes, for instance --mesh 2x4.")
    return int(match[1]), int(match[2])


def run(
    parser: argparse.ArgumentParser,
    build: Callable[[argparse.Namespace], tuple[Model, Mesh]],
    arguments: Sequence[str] | None = None,
) -> int:
    """Runs an example as a program and returns its exit code: 2 if the user made a mistake.

    Args:
      parser: the flags of the example.
      build: makes the model and the mesh from the parsed flags.
      arguments: the words of the command line; None means those of this process.
    """
    options = parser.parse_args(arguments)
    try:
        if options.json is not None:
            outputs.check_file("--json", options.json)
        model, mesh = build(options)
        check_divides(model, mesh)
        if options.compile_for is None:
            devices, program = compile_step(model, mesh)
            print(
                f"compiled in {program.lower_seconds + program.compile_seconds:.1f} s", flush=True
            )
            train(model, devices, program, options.steps, options.seed)
        else:
            _show(compile_for(model, mesh, options.compile_for), model, options.json)
    except UserError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0


def _show(cost: ProgramCost, model: Model, json_file: pathlib.Path | None) -> None:
    weights = sum(math.prod(weight.shape) for weight in model.weights.values())
    print(f"{weights:,} weights")
    compilation, memory, recomputed = cost.compilation, cost.memory, cost.recomputed
    sent = {kind: (cost.count(kind), cost.bytes_of(kind)) for kind in COLLECTIVE_KINDS}
    peak, inputs = size_text(memory.peak), size_text(memory.argument or 0)
    print(f"memory of a device: {peak} at the peak, {inputs} of it are inputs")
    print(f"work of a device: {flops_text(cost.total.flops)}")
    for kind, (tensors, nbytes) in sent.items():
        if tensors:
            print(f"{kind}: {tensors} tensors, {size_text(nbytes)} of a device")
    if cost.step_seconds is not None:
        print(f"predicted time: {seconds_text(cost.step_seconds)}")
    seconds = f"{compilation.compile_seconds or 0:.0f} s"
    print(f"compiled in {seconds}, {compilation.instructions:,} instructions")
    if json_file is not None:
        record: dict[str, Any] = {
            "weights": weights,
            "topology": cost.topology.name,
            "devices": cost.topology.num_devices,
            "argument_bytes": memory.argument,
            "peak_bytes": memory.peak,
            "flops": cost.total.flops,
            "recomputed_flops": recomputed.flops,
            "seconds": cost.step_seconds,
            "recomputed_seconds": recomputed.seconds,
            "compile_seconds": round(compilation.compile_seconds or 0, 2),
            "instructions": compilation.instructions,
            "collectives": {kind: {"tensors": n, "bytes": b} for kind, (n, b) in sent.items()},
        }
        with files.reported_as(f"--json {json_file}"):
            files.write(json_file, json.dumps(record, indent=1) + "\n")
