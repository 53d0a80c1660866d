"""Compiles single layers for docs/paper_tables.md: GShard's table 4, Figure 9 of both papers."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

from gshard_nmt.inspection import causes, communication, hlo, links
from gshard_nmt.inspection.program_cost import cost_of
from gshard_nmt.model.gating import MoE
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.moe import declare_moe, moe_layer
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd import ahead_of_time
from gshard_nmt.spmd.lowering import ArraySpec, lower
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.sharding import annotate
from gshard_nmt.spmd.topology import Topology

Line = tuple[str, str, dict[int, str]]
"""The beginning of a section's title, the first cells of a line there, and its other cells."""

# The name of an operator, its equation, and its split letters of size O(D).
OPERATORS = (
    ("Add(A,A->A)", "A,A->A", "A"),
    ("Matmul(AB,BC->AC), B split", "AB,BC->AC", "B"),
    ("Matmul(AB,BC->AC), A split", "AB,BC->AC", "A"),
    ("Matmul(AB,BC->AC), A and B split", "AB,BC->AC", "AB"),
    ("Matmul(AB,BC->AC), A and C split", "AB,BC->AC", "AC"),
    ("Reduce(AB->A), A split", "AB->A", "A"),
    ("Reduce(AB->B), A split", "AB->B", "A"),
    ("Einsum(GSEC,GSM->EGCM)", "GSEC,GSM->EGCM", "GE"),
    ("Convolution(BIXY,xyIO->BOXY), X split", "BXYI,xyIO->BXYO", "X"),
)
SPLIT_SIZE = 64
"""Elements of a core along a letter that is split. A letter that is not split has four times as many."""

LOOP_NAME = "the same on v5e:4x8, 16 times the elements"
LOOP = ("AB,BC->AC", "AC", "v5e:4x8", 16 * SPLIT_SIZE)
"""A product of which the compiler makes a loop of slices (GShard Figure 4c)."""

STRATEGIES = {
    "data": (16, 1, 1),
    "model": (1, 1, 16),
    "model and data": (4, 1, 4),
    "expert and data": (1, 16, 1),
    "expert, model and data": (1, 4, 4),
}
"""The strategies of Switch Figure 9 on 16 cores: the devices of the axes data, expert and tensor."""
MESH = Path(__file__).parents[1] / "configs" / "meshes" / "data_expert_tensor.gin"
ROWS, LENGTH, MODEL_DIM = 64, 512, 1024
# One MoE layer of Switch-Large with an expert for each core, and 2,048 tokens for each core.
SWITCH_LAYER = MoE(
    16,
    2816,
    routing="switch",
    capacity_factor=1.25,
    num_groups=16,
    dispatch="einsum",
    activation="geglu",
)


def links_lines() -> Iterator[Line]:
    """Yields the predicted times of collectives on slices of 16 to 2,048 cores."""
    for name in ("v3:2x4", "v3:4x4", "v3:8x8", "v3:8x16", "v3:16x16", "v3:16x32", "v3:32x32"):
        topology = Topology.parse(name)
        chips = np.array(list(itertools.product(*map(range, topology.shape))))
        members = np.repeat(np.arange(topology.num_chips), topology.chip.devices_per_chip)
        placement = links.place(members, chips, topology)
        kinds = itertools.product(("all-to-all", "all-reduce"), (8, 32))
        seconds = [links.seconds(kind, n * 2**20, placement, topology.chip) for kind, n in kinds]
        cells = dict(enumerate((f"{s * 1e3:.2f}" for s in seconds), 2))
        yield "GShard Figure 9", f"{topology.num_devices:,} | {name}", cells


def operator_lines() -> Iterator[Line]:
    """Compiles each operator for 8, 32 and 128 cores; a cell has one figure if all three are equal."""
    operators = {
        name: [(*operator, machine, SPLIT_SIZE) for machine in ("v3:2x2", "v3:4x4", "v3:8x8")]
        for name, *operator in OPERATORS
    }
    for name, machines in (operators | {LOOP_NAME: [LOOP]}).items():
        costs = [cost_of(*compiled_operator(*each)) for each in machines]
        flops = [f"{cost.total.flops / 1e6:,.1f}" for cost in costs]
        messages = [
            ", ".join(f"{kind} {cost.bytes_of(kind) / 2**20:.2f} MiB" for kind in kinds) or "none"
            for cost in costs
            for kinds in [dict.fromkeys(source.kind for source in cost.sources)]
        ]
        cells = {2: " / ".join(dict.fromkeys(flops)), 3: " / ".join(dict.fromkeys(messages))}
        yield "GShard table 4", name, cells


def compiled_operator(equation: str, split: str, name: str, size: int):
    """Returns an operator as `cost_of` reads it; letters that are split have `size` elements a core."""
    topology = Topology.parse(name)
    d = topology.num_devices
    mesh = Mesh(("x",), (d,), rules=dict.fromkeys(split, "x"))
    sizes = dict.fromkeys(split, size * d)
    if "G" in split:
        sizes |= {"G": d, "E": d, "C": 512 // d}  # G, E = O(D) and C = O(1 / D)
    if "Y" in equation:
        sizes |= {"B": 8, "I": 64, "O": 64, "x": 3, "y": 3}
    inputs, output = equation.split("->")
    specs = {
        str(i): ArraySpec(
            tuple(sizes.get(letter, 4 * size) for letter in letters), np.dtype(np.float32), letters
        )
        for i, letters in enumerate(inputs.split(","))
    }
    program = lower(
        lambda arrays: [{"out": _operator(equation, arrays)}], [specs], [{"out": output}], mesh
    )
    devices = ahead_of_time.devices_of(topology, mesh)
    return ahead_of_time.compile_for(topology, devices, program), devices, program


def _operator(equation: str, arrays):
    import tensorflow as tf

    inputs, output = equation.split("->")
    operands = [annotate(arrays[str(i)], letters) for i, letters in enumerate(inputs.split(","))]
    if equation.startswith("A,A"):
        result = operands[0] + operands[1]
    elif "x" in equation:
        result = tf.nn.conv2d(*operands, 1, "SAME")
    else:
        result = tf.einsum(equation, *operands)
    return annotate(result, output)


def strategy_lines() -> Iterator[Line]:
    """Compiles an MoE layer forward and backward with each strategy of Switch Figure 9."""
    for name, shape in STRATEGIES.items():
        sizes = zip(("DATA_DEVICES", "EXPERT_DEVICES", "TENSOR_DEVICES"), shape, strict=True)
        mesh = load_config(str(MESH), [f"{k} = {v}" for k, v in sizes]).mesh
        weights = {
            key: ArraySpec(p.shape, np.dtype(np.float32), p.letters)
            for key, p in declare_moe(MODEL_DIM, SWITCH_LAYER).items()
        }
        x = ArraySpec((ROWS, LENGTH, MODEL_DIM), np.dtype(ml_dtypes.bfloat16), "BLM")
        specs = {**weights, "x": x}
        letters = {key: spec.letters for key, spec in specs.items()}
        topology = Topology.parse("v3:2x4")
        devices = ahead_of_time.devices_of(topology, mesh)
        program = lower(_gradients, [specs], [letters], mesh)
        module = hlo.parse(ahead_of_time.compile_for(topology, devices, program).text)
        places = ahead_of_time.coordinates_of(topology, devices)
        context = causes.Context(topology, mesh, weights, places, program.annotated)
        sources = communication.collectives(module, context)
        cells = {
            5: _messages([source for source in sources if not source.origin.backward]),
            6: _messages([source for source in sources if source.origin.backward]),
            7: f"{sum(source.seconds or 0 for source in sources) * 1e3:.2f}",
        }
        yield "Switch Figure 9", name, cells


def _messages(sources) -> str:
    bytes_of: dict[str, int] = {}
    for source in sources:
        bytes_of[source.kind] = bytes_of.get(source.kind, 0) + source.bytes_per_step
    shown = (f"{kind} {n / 2**20:,.1f}" for kind, n in bytes_of.items() if n >= 2**20 / 20)
    return ", ".join(shown) or "none"


def _gradients(arrays):
    import tensorflow as tf

    is_token = tf.ones([ROWS, LENGTH], tf.bool)
    with tf.GradientTape() as tape, tf.name_scope("encoder_0_moe_0"):
        tape.watch(arrays)
        y, routing = moe_layer(arrays, arrays["x"], is_token, SWITCH_LAYER, Mode())
        loss = tf.reduce_sum(tf.square(tf.cast(y, tf.float32))) + routing.aux_loss
    return [tape.gradient(loss, arrays)]
