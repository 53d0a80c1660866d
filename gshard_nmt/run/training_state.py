"""Saves and restores the state of a training run.

The groups of arrays in a checkpoint are `parameters` (the weights), `ema` (their moving average, if
`Train.ema` is set), `optimizer` (the rest of the training state) and `input` (the position in the data).
The facts are the counters of the run, its patience, its bad steps, and whether it owes a validation.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gshard_nmt.data.batching.batches import new_position
from gshard_nmt.data.config import Data
from gshard_nmt.errors import UserError
from gshard_nmt.run.arrays import as_groups, from_groups, letters_of
from gshard_nmt.run.checkpoint.checkpoint import flat
from gshard_nmt.run.checkpoint.checkpoint_writer import CheckpointWriter
from gshard_nmt.run.checkpoint.checksums import NotFiniteError, prepare_checksums
from gshard_nmt.run.checkpoint.manifest import Manifest, Scores
from gshard_nmt.run.checkpoint.tensor_files import COMMIT_FILE
from gshard_nmt.run.compiled_steps import CompiledSteps
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.config import Train
from gshard_nmt.spmd.lowering import ArraySpec, ArraySpecs
from gshard_nmt.spmd.processes import Processes
from gshard_nmt.spmd.runtime import Runtime

MOST_BAD_STEPS = 50
"""If this number of updates in a row has been withheld, a run stops: it learns nothing."""


@dataclasses.dataclass
class RunCounters:
    """The host's view of the counters of a run. They are saved with each checkpoint.

    The devices count the tokens in the training step. Reading their count waits for the step, so the
    host reads it only when it must.
    """

    step: int = 0
    # tokens of each language, source and target, without padding, as of the last `read`
    tokens: dict[str, int] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0  # of training, without validations, summed over all starts of the run

    def __post_init__(self) -> None:
        self._counted_at = time.perf_counter()
        self._unread: Any = None
        self._unread_steps = 0
        self._languages: Sequence[str] = ()

    @property
    def total_tokens(self) -> int:
        return sum(self.tokens.values())

    def count(self, tokens_seen: Any, languages: Sequence[str]) -> None:
        """Counts one more step without waiting for it. `tokens_seen` is a uint32[languages, 2]."""
        self.step += 1
        self._unread, self._languages = tokens_seen, languages
        self._unread_steps += 1
        now = time.perf_counter()
        self.seconds += now - self._counted_at
        self._counted_at = now

    def read(self) -> None:
        """Brings `tokens` up to date; waits until the devices have finished the last counted step."""
        if self._unread is None:
            return
        # uint32[languages, 2], the low word first -> uint64[languages]
        numbers = np.ascontiguousarray(self._unread, "<u4").view("<u8")[:, 0].tolist()
        pairs = zip(self._languages, numbers, strict=True)
        self.tokens = {language: number for language, number in pairs if number}
        self._unread, self._unread_steps = None, 0

    def skip_time(self) -> None:
        """Leaves the time since the last step out of `seconds`, because it was not training."""
        self._counted_at = time.perf_counter()

    def is_complete(self, max_steps: int, max_tokens: int, batch_tokens: int) -> bool:
        """Returns whether the run has reached either limit; the same at the same step in every process.

        It reads the tokens, and so waits for the step, only if the limit may have been reached since they
        were last read. `max_tokens` of 0 is no limit; `batch_tokens` is the most that a step can add.
        """
        if self.step >= max_steps:
            return True
        if max_tokens and self.total_tokens + self._unread_steps * batch_tokens >= max_tokens:
            self.read()
        return bool(max_tokens) and self.total_tokens >= max_tokens


@dataclasses.dataclass
class Patience:
    """Counts validations in a row without a better score. It is saved with each checkpoint.

    If the settings of the best score, `scored_with`, change, the count starts anew.
    """

    metric: str
    best: float | None = None
    scored_with: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    validations: int = 0

    def count(self, scores: Scores) -> None:
        """Counts a validation, unless it has no score, or BLEU has been 0 until now."""
        score = scores.values.get(self.metric)
        if score is None:
            return
        if self.best is None or dict(self.scored_with) != dict(scores.scored_with):
            improves = True
        elif self.metric.startswith("dev_bleu"):
            # Until the first n-grams match, BLEU is 0, whatever the model learns.
            improves = score > self.best or score == self.best == 0
        else:
            improves = score < self.best
        if improves:
            self.best, self.scored_with, self.validations = score, dict(scores.scored_with), 0
        else:
            self.validations += 1

    def is_over(self, limit: int) -> bool:
        return bool(limit) and self.validations >= limit


@dataclasses.dataclass
class TrainingState:
    """The state of a training run after a step."""

    arrays: dict[str, Any]
    position: np.ndarray | None  # in the data, see `TrainBatches.position`; None at the beginning
    counters: RunCounters
    patience: Patience
    last_bad_step: int = -1
    bad_in_row: int = 0  # bad steps up to that one
    owes_validation: bool = False  # whether the checkpoint of this step must still get its scores
    moment_steps: int = 0  # updates that the moments had seen before the run; 0 if they were new

    def count_bad_step(self, step: int) -> bool:
        """Counts a step whose update was withheld. Returns whether there were too many in a row."""
        self.bad_in_row = self.bad_in_row + 1 if step == self.last_bad_step + 1 else 1
        self.last_bad_step = step
        return self.bad_in_row >= MOST_BAD_STEPS


def without_arrays(manifest: Manifest | None, metric: str) -> TrainingState:
    """Returns the state that a manifest records, or that of a new run, without the arrays."""
    facts: Mapping[str, Any] = manifest.facts if manifest else {}
    names = {field.name for field in dataclasses.fields(RunCounters)}
    counters = RunCounters(**{name: facts[name] for name in facts if name in names})
    patience = Patience(metric)
    if facts.get("patience", {}).get("metric") == metric:  # else the run now follows another metric
        patience = Patience(**facts["patience"])
    bad = facts.get("divergence", {})
    return TrainingState(
        {},
        None,
        counters,
        patience,
        bad.get("last_bad_step", -1),
        bad.get("skips_in_row", 0),
        facts.get("owes_validation", False),
        facts.get("moment_steps", 0),
    )


def restore(
    checkpoints: CheckpointWriter, programs: CompiledSteps, note: Callable[[str], None]
) -> TrainingState:
    """Reads the newest sound checkpoint; raises UserError if there is none.

    `Train.ema` may have been switched on or off since it was saved. A new moving average begins as the
    weights of the checkpoint. `note` gets a line about it, and for each checkpoint that cannot be used.
    """
    specs = {group: programs.devices.abstract(arrays) for group, arrays in _specs(programs).items()}
    restored = checkpoints.restore(
        lambda manifest: {g: a for g, a in specs.items() if g != "ema" or g in manifest.tensors}
    )
    groups = restored.groups
    state = without_arrays(restored.manifest, programs.config.train.metric)
    for problem in restored.passed_over:
        note(f"{problem}. Going on from step {state.counters.step}")
    if "ema" in specs and "ema" not in groups:
        groups["ema"] = copied(groups["parameters"])
        note(f"Train.ema is new: the average begins as the weights of step {state.counters.step}")
    if "ema" in restored.manifest.tensors and "ema" not in specs:
        note(f"Train.ema is off: the average of step {state.counters.step} is left out")
    state.arrays = from_groups(groups)
    state.position = position_from_devices(groups["input"]["position"])
    return state


def copied(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Returns copies of arrays on the devices, split as they are. A step reuses the memory of both."""
    import jax

    return {name: jax.numpy.copy(array) for name, array in arrays.items()}


def open_checkpoints(
    run: RunFolder, limits: Train, processes: Processes, note: Callable[[str], None]
) -> CheckpointWriter:
    """Returns the checkpoints of a run. It commits those that are complete but were not committed.

    Raises UserError if the run has saved one and there is none: it is lost, or on a missing disk.
    """
    checkpoints = CheckpointWriter.of(run, limits, processes)
    checkpoints.on_commit = functools.partial(write_budget, run)
    for step in checkpoints.adopt():
        file = run.checkpoints / str(step) / COMMIT_FILE
        note(f"{file} was missing; the checkpoint is complete, and is used")
    if not checkpoints.steps() and (steps := run.budget().get("steps", 0)):
        raise UserError(
            f"{run.path / 'budget.json'} says that this run has saved step {steps}, but "
            f"{run.checkpoints} has no checkpoint. Mount or restore this folder, or give a new "
            "--workdir; to train this run from step 0 again, remove budget.json."
        )
    newest = checkpoints.newest()
    if newest and processes.is_first:
        # A kill just before a commit may have left the budget of a checkpoint that does not exist.
        write_budget(run, newest)
    return checkpoints


def start_saving(
    checkpoints: CheckpointWriter, programs: CompiledSteps, note: Callable[[str], None]
) -> None:
    """Gets ready to save checkpoints, and removes those that are not complete.

    If a program computes the checksums, it is compiled here: the first checkpoint does not wait for it.
    """
    specs = _specs(programs)
    abstract = {group: programs.devices.abstract(arrays) for group, arrays in specs.items()}
    prepare_checksums(flat(abstract), flat(_letters(specs)))
    for step in checkpoints.start_saving():
        note(f"{checkpoints.folder / str(step)} was not finished; it is removed")


def save(checkpoints: CheckpointWriter, programs: CompiledSteps, state: TrainingState) -> None:
    """Saves a checkpoint in the background. `state.position` must be that after the last batch."""
    specs = _specs(programs)
    assert state.position is not None
    groups = as_groups(state.arrays)
    groups["input"] = position_to_devices(state.position, specs["input"], programs.devices)
    try:
        checkpoints.save(state.counters.step, groups, _letters(specs), _facts(state))
    except NotFiniteError as error:
        raise UserError(
            f"the state of step {state.counters.step} is damaged and is not saved ({error}). A training "
            "step never makes such values, so a device or its memory may be faulty. The same command "
            "goes on from the last checkpoint; if this happens again, use another machine."
        ) from None


def update(checkpoints: CheckpointWriter, state: TrainingState, scores: Scores) -> None:
    """Gives the checkpoint of this step its scores, and the facts of the state after its validation."""
    checkpoints.change(state.counters.step, _facts(state), scores)
    checkpoints.remove_superseded()


def write_budget(run: RunFolder, manifest: Manifest) -> None:
    """Writes budget.json: the steps, seconds and tokens of the run up to a checkpoint."""
    weights = manifest.tensors["parameters"].values()
    budget: dict[str, Any] = {
        "steps": manifest.facts["step"],
        "seconds": round(manifest.facts["seconds"], 1),
        "parameters": sum(math.prod(tensor.shape) for tensor in weights),
        "tokens_by_language": dict(sorted(manifest.facts["tokens"].items())),
    }
    run.write_json("budget.json", budget)


def _facts(state: TrainingState) -> dict[str, Any]:
    return dataclasses.asdict(state.counters) | {
        "patience": dataclasses.asdict(state.patience),
        "divergence": {"last_bad_step": state.last_bad_step, "skips_in_row": state.bad_in_row},
        "owes_validation": state.owes_validation,
        "moment_steps": state.moment_steps,
    }


def _specs(programs: CompiledSteps) -> dict[str, ArraySpecs]:
    return {**as_groups(programs.state_specs), "input": input_specs(programs.config.data)}


def _letters(specs: Mapping[str, ArraySpecs]) -> dict[str, dict[str, str]]:
    return {group: letters_of(arrays) for group, arrays in specs.items()}


_LITTLE_ENDIAN = np.dtype("<i8")


def input_specs(config: Data) -> dict[str, ArraySpec]:
    """Returns the spec of `position` int32[B, 2 + phases, 2]: `new_position` in words of 32 bits."""
    return {"position": ArraySpec((*new_position(config).shape, 2), np.dtype(np.int32), "B__")}


def position_to_devices(position: np.ndarray, specs: ArraySpecs, devices: Runtime) -> dict:
    """Places the result of `TrainBatches.position()`, int64[B, 2 + phases], on the devices."""
    words = np.ascontiguousarray(position, _LITTLE_ENDIAN).view(np.int32)
    return devices.put({"position": words.reshape(specs["position"].shape)}, specs)


def position_from_devices(array: Any) -> np.ndarray:
    """Returns the position in the data, int64[B, 2 + phases]; the rows of other processes are 0."""
    words = np.zeros(array.shape, np.int32)
    for shard in array.addressable_shards:
        words[shard.index] = shard.data
    return words.view(_LITTLE_ENDIAN).reshape(array.shape[:-1]).astype(np.int64)
