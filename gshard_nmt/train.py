"""gshard-train: trains a run, or resumes it from its last checkpoint."""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from gshard_nmt import paths
from gshard_nmt.data.batching.batches import TrainBatches
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.evaluation.validation import Validation
from gshard_nmt.model.figures import moe_layer_names
from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run import progress as messages
from gshard_nmt.run import training_state
from gshard_nmt.run.arrays import parameter_table, state_specs, step_functions, training_arrays
from gshard_nmt.run.compiled_steps import CompiledSteps
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.lock import RunLock, run_lock
from gshard_nmt.run.log import MetricsLog
from gshard_nmt.run.monitor import FigureNames, Monitor, Profile, StepWatch, reason_of
from gshard_nmt.run.progress import Interrupt, TimeLimit, TrainingProgress
from gshard_nmt.run.starting_point import Init, StartingPoint
from gshard_nmt.run.together import Stopped
from gshard_nmt.run.training_state import MOST_BAD_STEPS
from gshard_nmt.settings.config import Config, Key, differences
from gshard_nmt.settings.divides import (
    check_can_decode,
    check_divides,
    check_shared_embedding,
    check_validation,
)
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.processes import ALONE, Processes


@dataclasses.dataclass(frozen=True)
class Start:
    """What the user asks of one start of a run."""

    # the time that it may take; then it saves and ends
    limit: TimeLimit = dataclasses.field(default_factory=TimeLimit)
    profile: bool = False  # whether to write a trace of a few steps
    command: str = ""  # what the user typed, for the run folder
    init: Init | None = None
    set_by_user: Collection[Key] = ()  # the settings of --gin
    is_part: bool = False  # whether the program goes on when the run is finished
    waits: bool = True  # whether it waits for the lock of a machine that may be lost


def train(
    config: Config,
    data: Path,
    workdir: Path,
    processes: Processes = ALONE,
    start: Start | None = None,
) -> bool:
    """Trains until Train.steps, Train.tokens or Train.patience, and saves checkpoints on the way.

    An unfinished run of the same model and data in `workdir` is resumed. All processes see the same
    folders, and the first one writes. We claim the folder before any slow work, and start the devices
    before anything else starts jax. Returns whether the run is finished: not if the time limit of this
    start was over.

    Raises:
      UserError: the data, the folder, the mesh and the model do not fit, or the run has diverged.
      TryAgain: another process died or stopped answering.
      KeyboardInterrupt: on SIGINT, SIGTERM or SIGHUP, after saving.
    """
    # 1. Data and run folder
    start = start or Start()
    is_first = processes.is_first
    prepared = PreparedData.open(data, check_files=is_first)
    set_by_user = [field for class_name, field in start.set_by_user if class_name == "Data"]
    wanted, config = config.data, config.replace(data=prepared.fitted(config.data, set_by_user))
    for problem in config.train.metric_problems(prepared.languages(config.data, "dev")):
        raise UserError(problem, ["Train.best_metric"])
    run = RunFolder(workdir)
    config = run.with_precision(config, processes)
    functions = step_functions(config, prepared.summary(config.data.in_run(config.train.steps)))
    check_divides(config, training_arrays(config, functions))
    check_validation(config)
    check_can_decode(config)
    check_shared_embedding(config, prepared.folder)
    run.check(config, prepared, is_first)
    origin = StartingPoint.find(run, start.init, config, prepared, functions)
    progress = TrainingProgress(paths.absolute(workdir).name, quiet=not is_first)
    for line in differences(config.data, wanted):
        progress.note(f"the value that --data was prepared with holds, not the new one: {line}")
    if is_first:
        run.path.mkdir(parents=True, exist_ok=True)
    with run_lock(run.path, is_first, progress.note, start.waits) as lock:
        if is_first:
            run.check(config, prepared)  # now under the lock
            if origin:
                origin.record(run)
            run.claim(config, prepared, origin.inherited if origin else None)
        trainer = _Trainer(config, prepared, run, lock, progress, processes, start)
        return trainer.train(functions, origin)


@dataclasses.dataclass
class _Trainer:
    """One start of a run, in a run folder that this process has claimed and locked."""

    config: Config
    prepared: PreparedData
    run: RunFolder
    lock: RunLock
    progress: TrainingProgress
    processes: Processes
    start: Start
    watch: StepWatch = dataclasses.field(default_factory=StepWatch)

    def train(self, functions: StepFunctions, origin: StartingPoint | None) -> bool:
        """Does stages 2 to 6 of `train`."""
        config, run, is_first = self.config, self.run, self.processes.is_first
        workdir, note = run.path, self.progress.note
        self.languages = self.prepared.languages(config.data)

        # 2. Devices, before anything else starts jax
        devices = runtime.start(config.mesh, run.programs, self.processes)
        run.wait_for("data.json")
        # Only now the folder of a new run says what the others must have too.
        run.check(config, self.prepared, is_first)
        if is_first:
            run.write_text("parameters.txt", parameter_table(state_specs(functions), config.mesh))
        self.checkpoints = training_state.open_checkpoints(run, config.train, self.processes, note)
        resumes, newest = bool(self.checkpoints.steps()), self.checkpoints.newest()
        self.state = training_state.without_arrays(newest, config.train.metric)
        if self._over() and not self.state.owes_validation:
            if is_first:  # the checkpoints that stay are those of the settings that it says
                run.write_config(config)
            self.checkpoints.remove_superseded()
            note(f"{workdir} is finished: {self.state.counters.step} steps, nothing to do")
            return True

        # 3. Compiled programs
        note(messages.starting(workdir, self.state.counters, config.mesh))
        old = origin.read(devices, self.processes) if origin and not resumes else None
        if old:
            old.report(run, is_first, note)
            self.state.moment_steps = old.moment_steps
        functions = dataclasses.replace(functions, moment_steps=self.state.moment_steps)
        self.programs = CompiledSteps(config, functions, devices, is_new=not resumes)
        note(messages.compiled(self.programs.train_step))
        devices.check_fits(self.programs.train_step)

        # 4. State and position in the data: from the last checkpoint, or new
        if resumes:
            self.state = training_state.restore(self.checkpoints, self.programs, note)
        else:
            self.state.arrays = self.programs.initialize()
            if old:  # the weights of another run
                self.state.arrays = old.applied_to(self.state.arrays)
        self.lock.check()  # what is removed next may be another's
        training_state.start_saving(self.checkpoints, self.programs, note)
        self.rows = devices.local_rows(self.programs.batch_specs["source_ids"]).tolist()
        interrupt = Interrupt(self.processes)
        self.validation = Validation(run, self.programs, self.prepared, interrupt.stops_at_once)
        self.has_validations = bool(config.train.dev_every) and not self.validation.warning
        notes = messages.void_settings(config, self.start.set_by_user)
        for line in filter(None, (self.validation.warning, *notes)):
            note(line)
        self.lock.check()
        if is_first:
            run.write_config(config)
            run.record_command(self.start.command)
        self.log = MetricsLog(
            run, self.state.counters.step, is_first, note, self.state.owes_validation
        )
        names = FigureNames(moe_layer_names(functions.model), self.languages)
        self.monitor = Monitor(
            self.log, self.progress, self.processes, self.start.limit, names, config.model.experts
        )
        self.profile = Profile(workdir / "tensorboard", self.start.profile, self.processes.index)
        data, apart = config.data.in_run(config.train.steps), not devices.is_cpu
        position = self.state.position
        self.batches = TrainBatches(self.prepared, data, self.rows, position, apart=apart)

        # 5. The loop
        with self.progress.bar, interrupt:
            try:
                ending = self._loop(interrupt)

                # 6. Wait until the last checkpoint is on the disk
                self.checkpoints.close()
            finally:
                self._release()
        is_finished = self._end(ending)
        # A signal may have come while the last checkpoint was saved.
        if self.start.is_part and interrupt.requested:
            raise KeyboardInterrupt(f"{workdir} is saved; the same command goes on from there")
        return is_finished

    def _loop(self, interrupt: Interrupt) -> str:
        """Trains until the run or this start of it ends.

        Returns why: "done", "patience", "diverged", "interrupted" or "time".
        """
        limits, control = self.config.train, self.programs.control()
        # The validation of the last checkpoint may have failed, or was stopped. Now it gets its scores.
        owes = self.state.owes_validation and self.has_validations
        ending = self._validate() if owes else self._over()
        self.state.counters.skip_time()
        self.monitor.start(self.state.counters)
        if not ending and self.processes.count > 1:
            # On CPU devices the first collective fails if a process comes to it 30 seconds late.
            self.batches.wait()
            self.processes.barrier("all have a batch")
        while not ending:
            metrics = self._train_step(self._next_batch(), control)
            step, ending = self.state.counters.step, self._ending(interrupt)
            logs = step % limits.log_every == 0 or ending == "done"
            saves = step % limits.checkpoint_every == 0
            validates = self.has_validations and (step % limits.dev_every == 0 or ending == "done")
            # To read the counters and the status is to wait for the step, so we do it only if needed.
            if logs or validates or saves or ending:
                self.state.counters.read()
                self.watch.settle()
            if self._diverges():
                ending = "diverged"
                self.watch.settle()  # this step may be a bad one too
                self._diverges()
            self.progress.advance(step)
            if logs or validates or ending:
                self.lock.check()
            if logs:
                self.monitor.log_step(self.state.counters, metrics)
            if saves or validates or ending:
                # A machine that is taken away leaves less time than a validation may need, so we save
                # first. The checkpoint gets its scores later.
                self.state.owes_validation = validates
                self._save()
            if validates and ending not in ("interrupted", "diverged", "time"):
                ending = self._validate() or ending
            if logs:
                self.checkpoints.check_for_errors()
            if line := self.profile.count_step(step):
                self.progress.note(line)
        return ending

    def _next_batch(self) -> dict[str, Any]:
        """Returns the next batch. If the data cannot be read, it saves the steps so far."""
        began = time.perf_counter()
        try:
            batch = next(self.batches)
        except (UserError, TryAgain) as error:
            self._save_alone(error)
            raise
        self.monitor.input_seconds += time.perf_counter() - began
        return batch

    def _train_step(self, batch: dict[str, Any], control: dict[str, Any]) -> dict[str, Any]:
        """Starts a step on the devices, and looks at the status of the step before it."""
        programs, counters = self.programs, self.state.counters
        placed = programs.devices.put(batch, programs.batch_specs, self.rows)
        self.state.arrays, metrics = programs.train_step(self.state.arrays, placed, control)
        counters.count(metrics["tokens_seen"], self.languages)
        self.watch.add(counters.step, metrics)
        return metrics

    def _ending(self, interrupt: Interrupt) -> str:
        """Returns "done", "interrupted" or "time" if the run ends after this step, otherwise ""."""
        interrupted = interrupt.stops_now()
        if self._is_complete():
            return "done"
        if interrupted:
            return "interrupted"
        return "time" if self.monitor.time_is_up() else ""

    def _over(self) -> str:
        """Returns "done" or "patience" if the run is finished, otherwise ""."""
        if self._is_complete():
            return "done"
        return "patience" if self.state.patience.is_over(self.config.train.patience) else ""

    def _is_complete(self) -> bool:
        limits, batch_tokens = self.config.train, self.config.data.batch_tokens
        return self.state.counters.is_complete(limits.steps, limits.tokens, batch_tokens)

    def _diverges(self) -> bool:
        """Records the steps whose update was withheld. Returns whether there were too many in a row."""
        diverges = False
        if self.watch.bad:
            self.lock.check()
        for step, metrics in self.watch.bad:
            reason = reason_of(metrics)
            diverges = self.state.count_bad_step(step)
            decision = "stop" if diverges else "skip"
            self.progress.note(f"step {step}: {reason}; its update was left out")
            event = {"reason": reason, "decision": decision, "bad_step": step}
            self.log.write_event(step, "divergence", event | self.monitor.names.values(metrics))
        self.watch.bad.clear()
        return diverges

    def _validate(self) -> str:
        """Gives the checkpoint of this step its scores. Returns why the run ends, as `_loop` does, or "".

        If a signal stops the validation ("interrupted"), the next start does it.
        """
        try:
            line, scores, values = self.validation.run(self.state.counters, self.state.arrays)
        except Stopped:
            return "interrupted"
        self.lock.check()  # a validation takes minutes
        if values:
            self.log.write(self.state.counters.step, values)
            self.log.flush()
        self.state.owes_validation = False
        self.progress.note(line)
        self.state.patience.count(scores)
        training_state.update(self.checkpoints, self.state, scores)
        self.state.counters.skip_time()
        return self._over()

    def _save(self) -> None:
        self.lock.check()
        self.state.counters.read()
        self.log.flush()
        self.run.check_data(self.prepared)
        self.state.position = self.batches.position()
        training_state.save(self.checkpoints, self.programs, self.state)

    def _save_alone(self, error: Exception) -> None:
        """Saves before this process ends with an error. Other processes would have to save with it."""
        if self.processes.count > 1 or not self.state.counters.step:
            return
        try:
            self.watch.settle()
            if not self._diverges():  # else the next start comes to the bad steps again, and ends
                self._save()
                self.checkpoints.close()
        except (UserError, TryAgain, OSError) as second:
            error.add_note(f"The steps since the last checkpoint are not saved: {second}")

    def _release(self) -> None:
        self.batches.close()
        self.log.close()
        if line := self.profile.close():
            self.progress.note(line)
        if self.processes.count == 1 and not isinstance(sys.exception(), Stopped):
            # If the run ends because of an error, an error of the last checkpoint comes second. To close
            # is to remove old checkpoints, so it needs the lock.
            with contextlib.suppress(UserError, TryAgain, OSError):
                self.lock.check()
                self.checkpoints.close()

    def _end(self, ending: str) -> bool:
        """Says why the run or this start of it has ended. Returns whether the run is finished."""
        counters, train, workdir = self.state.counters, self.config.train, self.run.path
        saved = f"saved {workdir} at step {counters.step}"
        if ending == "diverged":
            raise UserError(
                f"{workdir}: training has diverged: {MOST_BAD_STEPS} updates in a row were left out, up "
                f"to step {self.state.last_bad_step}. metrics.jsonl has the reasons. Lower "
                "Optimizer.learning_rate or set Optimizer.linear_warmup_steps, and start again with a "
                "new --workdir."
            )
        if ending == "interrupted":
            raise KeyboardInterrupt(f"{saved}; the same command goes on from there")
        if ending == "time":
            self.progress.note(
                f"{saved}, because the {self.start.limit.minutes:g} minutes of --max_minutes are over; "
                "the same command goes on from there"
            )
            return False
        if ending == "patience":
            self.progress.note(
                f"{train.patience} validations in a row without a better {train.metric} than "
                f"{self.state.patience.best:.3f}: the run ends early (Train.patience)"
            )
        self.progress.note(
            f"{workdir}: {counters.step} steps, {counters.total_tokens:,} tokens, "
            f"{counters.seconds:.0f} s of training"
        )
        return True
