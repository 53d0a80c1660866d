"""Writes the sections of the Switch Transformer in docs/paper_tables.md: its table 9 and Figure 9."""

import json
import math
import pathlib
from collections.abc import Mapping

import numpy as np
import paper_notes as notes
from paper_page import ROOT, Figures, billions, size_of, table, usable
from paper_rows import SWITCH, SWITCH_FLOPS, Row

from gshard_nmt.run.arrays import step_functions, weight_specs
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.gin_reader import load_config

STRATEGIES = {
    "data": (16, 1, 1),
    "model": (1, 1, 16),
    "model and data": (4, 1, 4),
    "expert and data": (1, 16, 1),
    "expert, model and data": (1, 4, 4),
}
"""The strategies of Figure 9 on 16 cores: the devices of the axes data, expert and tensor."""

MESH = ROOT / "configs" / "meshes" / "data_expert_tensor.gin"
STRATEGY_TOPOLOGY = "v3:2x4"
ROWS, LENGTH, MODEL_DIM, HIDDEN_DIM, EXPERTS = 64, 512, 1024, 2816, 16
"""One MoE layer of Switch-Large with an expert for each core, and 2,048 tokens for each core."""


def sections(folder: pathlib.Path, figures: Mapping[str, Figures]) -> list[str]:
    """Returns the sections of the Switch Transformer."""
    return [
        "## Switch table 9: Switch and T5 models\n\n" + notes.SWITCH,
        table9_section(figures),
        "## Switch Figure 9: five ways to split a layer\n\n" + notes.SWITCH_FIGURE9,
        figure9_section(folder),
    ]


def table9_section(figures: Mapping[str, Figures]) -> str:
    header = ["model", "cores", "weights, printed", "built", "FLOPs a sequence, printed"]
    header += ["2 x weights x tokens", "compiled forward", "of it dispatch"]
    header += ["slots a token: encoder", "decoder", "GiB a core", "predicted step s"]
    return table(header, [_table9_line(row, figures.get(row.name)) for row in SWITCH])


def _table9_line(row: Row, figures: Figures | None) -> list[str]:
    config = load_config(row.config, row.settings)
    weights, flops = SWITCH_FLOPS[row.config]
    total = sum(math.prod(spec.shape) for spec in weight_specs(step_functions(config)).values())
    needed = billions(flops_of_weights(config))
    cells = [row.name, f"{config.mesh.num_devices:,}", weights, billions(total), flops, needed]
    if figures is None or not usable(figures):
        why = "not compiled" if figures is None else "does not fit"
        return [*cells, why, "-", *slots_of_a_token(config), "-", "-"]
    forward = figures["directions"]["forward"]
    sequences = config.data.rows / figures["devices"]
    compiled = sum(work["flops"] for work in forward.values()) / sequences
    dispatch = forward.get("gate einsums", {"flops": 0})["flops"] / sequences
    return [
        *cells,
        billions(compiled),
        f"{dispatch / compiled:.0%}" if dispatch else "-",
        *slots_of_a_token(config),
        size_of(figures),
        f"{figures['estimated_step_seconds']:.2f}",
    ]


def flops_of_weights(config: Config) -> float:
    """Returns the FLOPs of a sequence, forward: two for each weight that a token of its stack uses.

    The decoder's weights, and the output embedding, count once for each target token. The attention's
    scores and the gates are left out.
    """
    flops, data = 0, config.data
    for name, spec in weight_specs(step_functions(config)).items():
        if name == "source_embedding" or name.endswith("/gate"):
            continue
        size = math.prod(spec.shape)
        if spec.letters.removeprefix("R").startswith("E"):
            size = size * config.model.moe(training=True).gating.choices // config.model.experts
        if name.startswith("encoder/"):
            flops += 2 * size * data.source_length
        else:
            flops += 2 * size * data.target_length
    return flops


def slots_of_a_token(config: Config) -> list[str]:
    if not config.model.experts:
        return ["-", "-"]
    moe, rows = config.model.moe(training=True), config.data.rows
    cells = []
    for length in (config.data.source_length, config.data.target_length):
        group_size = rows * length // moe.groups(rows, length)
        cells.append(f"{moe.gating.slots(group_size) * config.model.experts / group_size:.2f}")
    return cells


def figure9_section(folder: pathlib.Path) -> str:
    file = folder / "strategies.json"
    header = ["strategy", "n x m", "experts", "weights of a core", "tokens of a core"]
    header += ["forward, MiB", "backward, MiB", "links, ms"]
    return table(header, json.loads(file.read_text()) if file.exists() else [])


def compile_strategies(folder: pathlib.Path) -> None:
    lines = [_strategy_line(name, shape) for name, shape in STRATEGIES.items()]
    (folder / "strategies.json").write_text(json.dumps(lines, indent=1) + "\n")


def _strategy_line(name: str, shape: tuple[int, int, int]) -> list[str]:
    import ml_dtypes

    from gshard_nmt.inspection import causes, communication, hlo
    from gshard_nmt.model.moe import declare_moe
    from gshard_nmt.spmd import ahead_of_time
    from gshard_nmt.spmd.lowering import ArraySpec, lower
    from gshard_nmt.spmd.topology import Topology

    sizes = zip(("DATA_DEVICES", "EXPERT_DEVICES", "TENSOR_DEVICES"), shape, strict=True)
    mesh = load_config(str(MESH), [f"{k} = {v}" for k, v in sizes]).mesh
    float32, bfloat16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)
    weights = {
        key: ArraySpec(p.shape, float32, p.letters)
        for key, p in declare_moe(MODEL_DIM, _layer()).items()
    }
    specs = {**weights, "x": ArraySpec((ROWS, LENGTH, MODEL_DIM), bfloat16, "BLM")}
    letters = {key: spec.letters for key, spec in specs.items()}
    topology = Topology.parse(STRATEGY_TOPOLOGY)
    devices = ahead_of_time.devices_of(topology, mesh)
    program = lower(_gradients, [specs], [letters], mesh)
    module = hlo.parse(ahead_of_time.compile_for(topology, devices, program).text)
    context = causes.Context(
        topology, mesh, weights, ahead_of_time.coordinates_of(topology, devices), program.annotated
    )
    sources = communication.collectives(module, context)
    data, expert, tensor = shape
    shards = sum(
        math.prod(spec.shape) // math.prod(map(mesh.axis_size, mesh.partition(spec.letters)))
        for spec in weights.values()
    )
    return [
        name,
        f"{data * expert} x {tensor}",
        f"{EXPERTS // expert}" if tensor == 1 else f"1/{tensor} of {EXPERTS // expert}",
        f"{shards / 1e6:,.1f}M",
        f"{ROWS * LENGTH // (data * expert):,}",
        _messages([source for source in sources if not source.origin.backward]),
        _messages([source for source in sources if source.origin.backward]),
        f"{sum(source.seconds or 0 for source in sources) * 1e3:.2f}",
    ]


def _messages(sources) -> str:
    bytes_of: dict[str, int] = {}
    for source in sources:
        bytes_of[source.kind] = bytes_of.get(source.kind, 0) + source.bytes_per_step
    shown = (f"{kind} {n / 2**20:,.1f}" for kind, n in bytes_of.items() if n >= 2**20 / 20)
    return ", ".join(shown) or "none"


def _layer():
    from gshard_nmt.model.gating import Gating
    from gshard_nmt.model.moe import MoE

    gating = Gating(EXPERTS, routing="switch", capacity_factor=1.25)
    return MoE(gating, HIDDEN_DIM, num_groups=16, dispatch="einsum", activation="geglu")


def _gradients(arrays):
    import tensorflow as tf

    from gshard_nmt.model.layers import Mode
    from gshard_nmt.model.moe import moe_layer

    is_token = tf.ones([ROWS, LENGTH], tf.bool)
    with tf.GradientTape() as tape, tf.name_scope("encoder_0_moe_0"):
        tape.watch(arrays)
        y, routing = moe_layer(arrays, arrays["x"], is_token, _layer(), Mode())
        loss = tf.reduce_sum(tf.square(tf.cast(y, tf.float32))) + routing.aux_loss
    return [tape.gradient(loss, arrays)]
