"""The compiled programs of a training run: initialize, train, evaluate."""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run.arrays import CONTROL, batch_specs, state_specs, weights_of
from gshard_nmt.run.checkpoint import tensor_files
from gshard_nmt.settings.config import Config
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpecs, LoweredFunction, lower
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.program import Program


def lower_train_step(config: Config, functions: StepFunctions, mesh: Mesh) -> LoweredFunction:
    state = state_specs(functions)
    inputs = [state, batch_specs(config), CONTROL]
    return lower(functions.train_step, inputs, [_letters(state), {}], mesh)


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
        return self._compile(
            "train",
            lambda: lower_train_step(self.config, self.functions, self.devices.mesh),
            donate=(0,),
            meanwhile=self._get_ready,
        )

    def _get_ready(self) -> None:
        """Does what the start of a run needs next, while XLA compiles the training step or reads it."""
        tensor_files.orbax()
        if self.is_new:
            _ = self._initializer

    def compile_eval_step(self, meanwhile: Callable[[], object]) -> Program:
        """Returns (weights, batch) -> (nll_sum, tokens). It calls `meanwhile` while XLA compiles."""

        def lowered() -> LoweredFunction:
            inputs = [weights_of(self.state_specs), self.batch_specs]
            return lower(self.functions.eval_step, inputs, [{}], self.devices.mesh)

        return self._compile("evaluate", lowered, meanwhile=meanwhile)

    def initialize(self) -> dict:
        """Returns the state of step 0, with random weights, made on the devices."""
        (state,) = self._initializer(self.control())
        return state

    @functools.cached_property
    def _initializer(self) -> Program:
        """(control) -> (state)."""
        outputs = [_letters(self.state_specs)]
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
    ) -> Program:
        """Compiles a function of arrays for the devices of the run, or takes it from the cache.

        It takes one mapping of tensors for each of `inputs`; `letters` are those of the arrays of each
        output.
        """
        return self._compile(name, lambda: lower(function, inputs, letters, self.devices.mesh))

    def _compile(
        self,
        name: str,
        lower_function: Callable[[], LoweredFunction],
        donate: tuple[int, ...] = (),
        meanwhile: Callable[[], object] | None = None,
    ) -> Program:
        data = self.config.data
        lengths = (data.source_length, data.target_length)
        key = json.dumps([name, repr(self.functions), data.rows, lengths])
        return self.devices.compile(key, lower_function, donate, meanwhile=meanwhile)


def _letters(specs: ArraySpecs) -> dict[str, str]:
    return {name: spec.letters for name, spec in specs.items()}
