"""gshard-train: trains a run, or resumes it from its last checkpoint."""

import contextlib
import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt import paths
from gshard_nmt.data.batching.batches import TrainBatches
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.errors import TryAgain, UserError, did_you_mean
from gshard_nmt.evaluation.validation import Validation
from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run import divergence, training_state
from gshard_nmt.run.arrays import parameter_table, state_specs, step_functions, training_arrays
from gshard_nmt.run.compiled_steps import CompiledSteps
from gshard_nmt.run.divergence import Decision, Step, StepWatch
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.lock import RunLock, run_lock
from gshard_nmt.run.log import progress as messages
from gshard_nmt.run.log.clock import TimeLimit
from gshard_nmt.run.log.line_log import MetricsLog
from gshard_nmt.run.log.monitor import FigureNames, Monitor
from gshard_nmt.run.log.progress import Interrupt, TrainingProgress
from gshard_nmt.run.profile import Profile
from gshard_nmt.run.starting_point import Init, StartingPoint
from gshard_nmt.run.together import Stopped
from gshard_nmt.run.training_state import TrainingState
from gshard_nmt.settings.config import Config, Key, Train, differences
from gshard_nmt.settings.divides import check_can_decode, check_divides, check_validation
from gshard_nmt.settings.values import read_run_config
from gshard_nmt.spmd import machine, runtime
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
    _check_metric(config.train, prepared.languages(config.data))
    run = RunFolder(workdir)
    config = with_precision(config, run, processes)
    functions = step_functions(config, prepared.summary())
    check_divides(config, training_arrays(config, functions))
    check_validation(config)
    check_can_decode(config)
    run.check(config, prepared, is_first)
    origin = StartingPoint.find(run, start.init, config, prepared, functions)
    progress = TrainingProgress(paths.absolute(workdir).name, quiet=not is_first)
    for line in differences(wanted, config.data):
        progress.note(f"--data was prepared with another value of {line}, which holds")
    if is_first:
        run.path.mkdir(parents=True, exist_ok=True)
    with run_lock(run.path, is_first, progress.note) as lock:
        if is_first:
            run.check(config, prepared)  # now under the lock
            if origin:
                origin.record(run)
            run.claim(config, prepared)
        trainer = _Trainer(config, prepared, run, lock, progress, processes, start)
        return trainer.train(functions, origin)


def _check_metric(train: Train, languages: Sequence[str]) -> None:
    """Raises UserError if Train.best_metric is the score of a language that the run does not have."""
    _, slash, language = train.best_metric.partition("/")
    if slash and language not in languages:
        raise UserError(
            f"Train.best_metric is {train.best_metric!r}, and the run has no language {language!r}"
            f"{did_you_mean(language, languages)} It has {', '.join(languages)}; choose one of them.",
            ["Train.best_metric"],
        )


def with_precision(config: Config, run: RunFolder, processes: Processes) -> Config:
    """Replaces Model.matmul_precision = 'auto' by what a run has, or what is fast on this CPU."""
    if config.model.matmul_precision != "auto":
        return config

    def decide() -> str:
        if (run.path / "data.json").exists():
            return read_run_config(run.config).model.matmul_precision
        return "bfloat16" if machine.multiplies_bfloat16() else "default"

    return config.replace(model={"matmul_precision": processes.from_first(decide)})


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
    failure: str = ""

    def train(self, functions: StepFunctions, origin: StartingPoint | None) -> bool:
        """Does stages 2 to 6 of `train`."""
        config, run, is_first = self.config, self.run, self.processes.is_first
        workdir, note = run.path, self.progress.note
        self.languages = self.prepared.languages(config.data)

        # 2. Devices, before anything else starts jax
        devices = runtime.start(config.mesh, run.programs, self.processes)
        self.processes.barrier("the run folder is claimed")
        run.wait_for("data.json")
        # Only now the folder of a new run says what the others must have too.
        run.check(config, self.prepared, is_first)
        if is_first:
            run.write_text("parameters.txt", parameter_table(state_specs(functions), config.mesh))
        self.checkpoints = training_state.open_checkpoints(run, config.train, self.processes, note)
        resumes, newest = bool(self.checkpoints.steps()), self.checkpoints.newest()
        self.state = training_state.without_arrays(newest, config.train.metric)
        if self._over() and not self.state.owes_validation:
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
            self.state = self._restore()
        else:
            self.state.arrays = self.programs.initialize()
            if old:  # the weights of another run
                self.state.arrays = old.applied_to(self.state.arrays)
        training_state.start_saving(self.checkpoints, self.programs, note)
        self.rows = devices.local_rows(self.programs.batch_specs["source_ids"]).tolist()
        self.batches = TrainBatches(self.prepared, config.data, self.rows, state=self.state.cursors)
        interrupt = Interrupt(self.processes)
        self.validation = Validation(run, self.programs, self.prepared, interrupt.stops_at_once)
        has_dev_text = not self.validation.warning
        self.has_validations = bool(config.train.dev_every) and has_dev_text
        notes = messages.void_settings(config, has_dev_text, self.start.set_by_user)
        for line in filter(None, (self.validation.warning, *notes)):
            note(line)
        self.lock.check()
        if is_first:
            run.write_config(config)
            run.record_command(self.start.command)
        rollbacks = self.state.divergence.total_rollbacks
        self.log = MetricsLog(run, self.state.counters.step, is_first, note, rollbacks)
        names = FigureNames(functions.moe_layer_names(), self.languages)
        self.monitor = Monitor(
            self.log, self.progress, self.processes, self.start.limit, names, config.model.experts
        )
        self.profile = Profile(workdir / "tensorboard", self.start.profile, self.processes.index)

        # 5. The loop
        with self.progress, interrupt:
            try:
                ending = self._loop(interrupt)

                # 6. Wait until the last checkpoint is on the disk
                self.checkpoints.close()
            finally:
                self._release()
        return self._close(ending)

    def _loop(self, interrupt: Interrupt) -> str:
        """Trains until the run or this start of it ends.

        Returns why: "done", "patience", "diverged", "interrupted" or "time".
        """
        limits, clock = self.config.train, self.monitor.clock
        control = self.programs.control()
        # The validation of the last checkpoint may have failed, or was stopped. Now it gets its scores.
        ending = self._validate() if self.state.owes_validation else self._over()
        self.state.counters.skip_time()
        self.monitor.start(self.state.counters)
        while not ending:
            with clock.phase("input"):
                batch = self._next_batch()
            with clock.phase("step"):
                metrics = self._train_step(batch, control)
            step, ending = self.state.counters.step, self._ending(interrupt)
            logs = step % limits.log_every == 0 or ending == "done"
            saves = step % limits.checkpoint_every == 0
            validates = self.has_validations and (step % limits.dev_every == 0 or ending == "done")
            # To read the counters and the status is to wait for the step, so we do it only if needed.
            if logs or validates or saves or ending:
                with clock.phase("step"):
                    self.state.counters.read()
                    self.watch.settle()
            if self.watch.bad and (decision := self._react()) != "skip":
                if decision == "rollback":
                    # A start that ends here leaves the bad step, and this decision, to the next one.
                    ending = ending if ending in ("interrupted", "time") else ""
                    continue
                ending = "diverged"
            self.progress.advance(step)
            if logs or validates or ending:
                self.lock.check()
            if logs:
                self.monitor.log_step(self.state.counters, metrics)
            if saves or validates or ending:
                # A machine that is taken away leaves less time than a validation may need, so we save
                # first. The checkpoint gets its scores later.
                self.state.owes_validation = validates
                with clock.phase("save"):
                    self._save()
            if validates and ending not in ("interrupted", "diverged"):
                with clock.phase("validation"):
                    ending = self._validate() or ending
            if logs:
                self.checkpoints.check_for_errors()
            if line := self.profile.count_step(step):
                self.progress.note(line)
        return ending

    def _next_batch(self) -> dict[str, Any]:
        """Returns the next batch. If the data cannot be read, it saves the steps so far."""
        try:
            return next(self.batches)
        except (UserError, TryAgain) as error:
            self._save_alone(error)
            raise

    def _train_step(self, batch: dict[str, Any], control: dict[str, Any]) -> dict[str, Any]:
        """Starts a step on the devices, and looks at the status of the step before it."""
        programs, counters = self.programs, self.state.counters
        placed = programs.devices.put(batch, programs.batch_specs, self.rows)
        self.state.arrays, metrics = programs.train_step(self.state.arrays, placed, control)
        counters.count(metrics["tokens_seen"], self.languages)
        self.watch.add(Step(counters.step, batch, metrics, self.rows))
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

    def _react(self) -> Decision:
        """Decides what to do about the steps whose update was withheld, and records it.

        It keeps the batch of each such step, and goes back to a checkpoint if that is the decision.
        """
        policy, processes = self.config.train.on_divergence, self.processes
        for bad in self.watch.take_bad():
            back_to = self._newest_step() if policy == "rollback" else None
            decision = self.state.divergence.decide(policy, bad.number, back_to)
            self.progress.note(divergence.explanation(bad, decision, back_to))
            metrics = divergence.as_json(self.monitor.names.values(bad.metrics))
            facts = {"reason": bad.reason(), "decision": decision}
            try:
                record = facts | {"metrics": metrics}
                file = divergence.record(self.run, bad, record, self.languages, processes.index)
            except OSError as error:
                file = ""
                self.progress.note(
                    f"the batch of step {bad.number} cannot be kept: {error.strerror}"
                )
            if decision == "rollback":
                self._go_back()
            event = facts | {"bad_step": bad.number} | metrics
            event |= {"batch": file, "rollbacks": self.state.divergence.total_rollbacks}
            self.log.write_event(min(bad.number, self.state.counters.step), "divergence", event)
            if decision == "stop":
                workdir = str(self.run.path)
                self.failure = divergence.stop_message(bad, policy, workdir, file)
            if decision != "skip":
                return decision
        return "skip"

    def _newest_step(self) -> int | None:
        self.checkpoints.wait()
        newest = self.checkpoints.newest()
        return newest.step if newest else None

    def _go_back(self) -> None:
        """Restores the newest checkpoint. The next batch is the one that would have come anyway."""
        seconds, counts = self.state.counters.seconds, self.state.divergence
        self.watch = StepWatch()  # the step that has been started meanwhile is undone too
        # Two states may not fit into the memory.
        self.state.arrays.clear()
        self.state = self._restore()
        self.state.counters.seconds, self.state.divergence = seconds, counts
        self.log.go_back(self.state.counters.step)
        self.monitor.start(self.state.counters)

    def _restore(self) -> TrainingState:
        return training_state.restore(self.checkpoints, self.programs, self.progress.note)

    def _validate(self) -> str:
        """Gives the checkpoint of this step its scores. Returns why the run ends, as `_loop` does, or "".

        If a signal stops the validation ("interrupted"), the next start does it.
        """
        try:
            line, scores = self.validation.run(self.state.counters, self.state.arrays, self.log)
        except Stopped:
            return "interrupted"
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
        self.state.cursors = self.batches.state()
        training_state.save(self.checkpoints, self.programs, self.state)

    def _save_alone(self, error: Exception) -> None:
        """Saves before this process ends with an error. Other processes would have to save with it."""
        self.watch.settle()
        if self.processes.count > 1 or not self.state.counters.step or self.watch.bad:
            return  # after a bad step, the next start comes to it again and decides
        try:
            self._save()
            self.checkpoints.close()
        except (UserError, TryAgain, OSError) as second:
            error.add_note(f"The steps since the last checkpoint are not saved: {second}")

    def _release(self) -> None:
        self.batches.close()
        self.log.close()
        if line := self.profile.close():
            self.progress.note(line)
        if self.processes.count == 1:
            # If the run ends because of an error, an error of the last checkpoint comes second. To close
            # is to remove old checkpoints, so it needs the lock.
            with contextlib.suppress(UserError):
                self.lock.check()
                self.checkpoints.close()

    def _close(self, ending: str) -> bool:
        counters, workdir, note = self.state.counters, self.run.path, self.progress.note
        if ending == "diverged":
            raise UserError(self.failure)
        if ending == "interrupted":
            raise KeyboardInterrupt(messages.interrupted(workdir, counters))
        if ending == "time":
            note(messages.out_of_time(workdir, counters, self.start.limit))
            return False
        if ending == "patience":
            note(messages.out_of_patience(self.config.train, self.state.patience))
        note(messages.finished(workdir, counters))
        return True
