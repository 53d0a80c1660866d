"""Tells whether a mesh and one device may send a token to different experts because of rounding.

If two logits of a gate are almost equal, a sum in another order may swap their experts. Everything that
follows is then different, and this is no error of the program.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from gshard_nmt.model import transformer
from gshard_nmt.model.config import STACK_NAMES
from gshard_nmt.model.counter_random import Key
from gshard_nmt.model.figures import row_of
from gshard_nmt.model.gating import Routing
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.stack import Index, Total, Totals
from gshard_nmt.run.arrays import CONTROL, weights_of
from gshard_nmt.run.compiled_steps import CompiledSteps

ROUNDING = 4.0
"""Two logits are a tie if their gap is at most this many times the largest difference between the mesh
and one device. Another program with the same sums, such as the training step, may round a bit more."""


@dataclasses.dataclass(frozen=True)
class _Recorder:
    """Records the logits of the gates as a total of a stack, float32[R, G, S, E]."""

    shape: tuple[int, int, int]  # G, S and E

    def declare(self, repeats: int) -> dict[str, Total]:
        """Declares `logits`."""
        return {"logits": Total((repeats, *self.shape))}

    def totals_of(self, routing: Routing, repeat: Index, repeats: int) -> Totals:
        """Returns the logits of one layer."""
        return {"logits": row_of(routing.logits, repeat, repeats)}


def near_ties(
    on_one: CompiledSteps, on_mesh: CompiledSteps, batch: Mapping[str, np.ndarray], tolerance: float
) -> str:
    """Returns in words how many tokens have a tie of experts in the first training step.

    It looks at the first layer that has ties. "" means that rounding does not explain a difference: no
    layer has ties, or the logits before it differ by more than rounding. It is also "" if the model
    accumulates gradients or is a pipeline of microbatches, which show no logits.

    Args:
      on_one, on_mesh: the programs of one device and of the mesh.
      batch: int32[B, L] each.
      tolerance: the difference of logits that is rounding, relative to the largest logit.
    """
    functions = on_one.functions
    if not functions.model.experts or functions.microbatches > 1:
        return ""
    choices = functions.model.moe(training=True).gating.choices
    for (is_token, logits), (_, mesh_logits) in zip(
        _logits(on_one, batch), _logits(on_mesh, batch), strict=True
    ):
        difference = np.max(np.abs(logits - mesh_logits))
        if not difference <= tolerance * np.max(np.abs(logits)):
            return ""
        best = np.sort(logits[is_token], axis=-1)[:, -choices - 1 :]
        ties = (np.diff(best) <= ROUNDING * difference).any(axis=-1)
        if ties.any():
            return f"{ties.sum()} of {ties.size} tokens"
    return ""


def _logits(
    programs: CompiledSteps, batch: Mapping[str, np.ndarray]
) -> Sequence[tuple[np.ndarray, np.ndarray]]:
    """Returns bool[G, S], which tokens are not padding, and the logits [G, S, E] of each MoE layer."""
    model = programs.functions.model
    moe = model.moe(training=True)
    rows, length = batch["target_segments"].shape
    groups = moe.groups(rows, length)
    recorder = _Recorder((groups, rows * length // groups, moe.gating.experts))
    stacks = [stack for stack in STACK_NAMES if model.has_experts(stack)]

    def forward(state, batch, control):
        # The random numbers are those of step 1.
        mode = Mode(True, Key(control["seed"][0], control["seed"][1] ^ tf.constant(1, tf.uint32)))
        weights, memory, totals = weights_of(state), None, {}
        inputs = batch, mode, moe, recorder
        if model.encoder_layers:
            memory, totals["encoder"] = transformer.encode(model, weights, *inputs)
        _, totals["decoder"] = transformer.decode(model, weights, memory, *inputs)
        return [{stack: totals[stack]["logits"] for stack in stacks}]

    arguments = [programs.state_specs, programs.batch_specs, CONTROL]
    program = programs.compile("logits of gates", forward, arguments, [{}])
    placed = programs.devices.put(batch, programs.batch_specs)
    (results,) = program(programs.initialize(), placed, programs.control())
    segments = {"encoder": "source_segments", "decoder": "target_segments"}
    return [
        (batch[segments[stack]].reshape(recorder.shape[:2]) > 0, layer)
        for stack in stacks
        for layer in np.asarray(results[stack])
    ]
