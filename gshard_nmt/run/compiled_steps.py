"""The compiled programs of a training run: initialize, train, evaluate."""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run.arrays import CONTROL, batch_specs, letters_of, state_specs, weights_of
from gshard_nmt.run.checkpoint import tensor_files
from gshard_nmt.settings.config import Config
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpecs, LoweredFunction, lower
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.program import Program


def lower_train_step(config: Config, functions: StepFunctions, mesh: Mesh) -> LoweredFunction:
    return lower(*_train_step(config, functions), mesh)


def _train_step(config: Config, functions: StepFunctions) -> tuple[Callable, list, list]:
    """Returns the training step, the specs of its inputs and the letters of its outputs."""
    state = state_specs(functions)
    return (functions.train_step, [state, batch_specs(config), CONTROL], [letters_of(state), {}])


@dataclasses.dataclass(frozen=True)
class CompiledSteps:
    """The programs of a run on its devices. Those of training are compiled when they are first used.

    If the run `is_new`, the program that makes its first state is compiled beside the training step.
    """

    config: Config
    functions: StepFunctions
    devices: runtime.Runtime
    is_new: bool = False

    @functools.cached_property
    def state_specs(self) -> ArraySpecs:
        return state_specs(self.functions)

    @functools.cached_property
    def batch_specs(self) -> ArraySpecs:
        return batch_specs(self.config)

    @functools.cached_property
    def train_step(self) -> Program:
        """(state, batch, control) -> (state, metrics). The memory of the old state is reused."""
        step = _train_step(self.config, self.functions)
        return self.compile("train", *step, donate=(0,), meanwhile=self._get_ready)

    def _get_ready(self) -> None:
        """Does what the start of a run needs next, while XLA compiles the training step or reads it."""
        tensor_files.orbax()
        if self.is_new:
            _ = self._initializer

    def compile_eval_step(self, meanwhile: Callable[[], object]) -> Program:
        """Returns (weights, batch) -> (nll_sum, tokens). It calls `meanwhile` while XLA compiles."""
        inputs = [weights_of(self.state_specs), self.batch_specs]
        return self.compile("evaluate", self.functions.eval_step, inputs, [{}], meanwhile=meanwhile)

    def initialize(self) -> dict:
        """Returns the state of step 0, with random weights, made on the devices."""
        (state,) = self._initializer(self.control())
        return state

    @functools.cached_property
    def _initializer(self) -> Program:
        """(control) -> (state)."""
        outputs = [letters_of(self.state_specs)]
        return self.compile("initialize", self.functions.initialize, [CONTROL], outputs)

    def control(self) -> dict:
        """Returns the control arrays of the training steps of the run, on the devices."""
        train = self.config.train
        values = {
            "seed": np.array([train.seed, 0], np.uint32),
            "max_steps": np.array(train.steps, np.int32),
            "max_tokens": np.array([train.tokens], "<u8").view("<u4"),
            "one": np.array(1.0, np.float32),
        }
        return self.devices.put(values, CONTROL)

    def compile(
        self,
        name: str,
        function: Callable,
        inputs: Sequence[ArraySpecs],
        letters: Sequence[Mapping[str, str]],
        donate: tuple[int, ...] = (),
        meanwhile: Callable[[], object] | None = None,
    ) -> Program:
        """Compiles a function of arrays for the devices of the run, or takes it from the cache.

        It takes one mapping of tensors for each of `inputs`; `letters` are those of the arrays of each
        output. The memory of the inputs with the numbers `donate` is reused. XLA compiles while this
        thread calls `meanwhile`.
        """
        data, mesh = self.config.data, self.devices.mesh
        lengths = (data.source_length, data.target_length)
        key = json.dumps([name, repr(self.functions), data.rows, lengths])
        return self.devices.compile(
            key, lambda: lower(function, inputs, letters, mesh), donate, meanwhile=meanwhile
        )
