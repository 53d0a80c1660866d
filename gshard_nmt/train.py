"""gshard-train: trains a run, or resumes it from its last checkpoint."""

from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt.data.batches import TrainBatches
from gshard_nmt.data.shards import PreparedData
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.validation import Validation
from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run.arrays import (
    parameter_table,
    state_specs,
    step_functions,
    training_arrays,
    weights_of,
    with_weights,
    without_weights,
)
from gshard_nmt.run.bucket_lock import run_lock
from gshard_nmt.run.checkpoint import LAST, Checkpoints
from gshard_nmt.run.compiled_steps import CompiledSteps
from gshard_nmt.run.counters import RunCounters
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.lock import RunLock
from gshard_nmt.run.progress import Interrupt, MetricsLog, TrainingProgress
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.divides import check_divides, check_validation
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.processes import ALONE, Processes


def train(config: Config, data: Path, workdir: Path, processes: Processes = ALONE) -> None:
    """Trains until Train.steps or Train.tokens, and saves checkpoints on the way.

    The order of the stages matters. We claim the run folder before any slow work. We start the
    devices before anything else starts jax. We open the input after we have read its position from the
    checkpoint.

    Args:
      config: the run.
      data: a folder that gshard-data prepare made.
      workdir: the run folder. If it holds an unfinished run of the same model and data, that run is
        resumed.
      processes: the processes that train together. All of them see the same folders; the first one
        writes.

    Raises:
      UserError: the data, the folder, the mesh and the model do not fit each other.
      TryAgain: another process died or stopped answering.
      KeyboardInterrupt: on SIGINT or SIGTERM, after saving.
    """
    # 1. Data and run folder
    prepared = PreparedData.open(data)
    functions = step_functions(config, prepared.summary())
    check_divides(config, training_arrays(config, functions))
    check_validation(config)
    run = RunFolder(workdir)
    run.check(config, prepared)
    progress = TrainingProgress(workdir.name, quiet=not processes.is_first)
    if processes.is_first:
        run.path.mkdir(parents=True, exist_ok=True)
    with run_lock(run.path, processes.is_first, progress.note) as lock:
        run.claim(config, prepared, write=processes.is_first)
        _train(config, prepared, functions, run, lock, progress, processes)


def _train(
    config: Config,
    prepared: PreparedData,
    functions: StepFunctions,
    run: RunFolder,
    lock: RunLock,
    progress: TrainingProgress,
    processes: Processes,
) -> None:
    """Does the work of `train`, in a run folder that this process has claimed and locked."""
    limits, workdir = config.train, run.path

    # 2. Devices, before anything else starts jax
    devices = runtime.start(config.mesh, run.programs, processes)
    if processes.is_first:
        run.write_text("parameters.txt", parameter_table(state_specs(functions), config.mesh))
    checkpoints = Checkpoints(run.checkpoints)
    counters = RunCounters()
    if checkpoints.latest(LAST):
        counters = RunCounters(**checkpoints.metadata(LAST))
    if counters.is_complete(limits.steps, limits.tokens):
        progress.note(f"{workdir} is finished: {counters.step} steps, nothing to do")
        return

    # 3. Compiled programs
    progress.note(_starting(workdir, counters, config))
    programs = CompiledSteps(config, functions, devices)
    progress.note(_compiled(programs.train_step))

    # 4. State and position in the data: from the last checkpoint, or new
    state, cursors = _restore(checkpoints, programs) if counters.step else (None, None)
    state = state or programs.initialize()
    rows = devices.local_rows(programs.batch_specs["source_ids"])
    batches = TrainBatches(prepared, config.data, rows, state=cursors)
    validation = Validation(run, programs, prepared, checkpoints)
    lock.check()
    if processes.is_first:
        run.write_config(config)
    log = MetricsLog(run, counters, writes=processes.is_first, say=progress.note)

    # 5. The loop. A checkpoint holds the state, the position in the data, and the counters.
    counters.skip_time()
    log.restart_clock(counters)
    saved_step = counters.step
    with progress, Interrupt(processes) as interrupt:
        for batch, info in batches:
            last_step = counters.last_step(limits.steps, limits.tokens)
            placed = devices.put(batch, programs.batch_specs, rows.start)
            state, metrics = programs.train_step(state, placed, programs.control(last_step))
            counters.count(info.tokens)
            logs = counters.step % limits.log_every == 0
            validates = limits.dev_every and counters.step % limits.dev_every == 0
            saves = counters.step % limits.checkpoint_every == 0
            stops = interrupt.stops_after(counters.step)
            # A sum over processes blocks until the step has finished, so we do it only if needed.
            if processes.count == 1 or logs or validates or saves or stops:
                counters.add_counts_of_all_processes(processes.sum)
            done = counters.is_complete(limits.steps, limits.tokens)
            progress.advance(counters.step, last_step)
            if logs or validates or saves or stops or done:
                lock.check()
            if logs or done:
                progress.show(counters.step, last_step, log.step_metrics(counters, metrics))
            if validates or (limits.dev_every and done):
                progress.note(validation.run(counters, state, log))
                log.restart_clock(counters)
                counters.skip_time()
            if saves:
                log.flush()
                run.check_data(prepared)
                _save(run, checkpoints, counters, state, batches, processes)
                saved_step = counters.step
            if done or stops:
                break

        # 6. Save the steps since the last checkpoint, so that none is lost
        if counters.step != saved_step:
            counters.add_counts_of_all_processes(processes.sum)
            _save(run, checkpoints, counters, state, batches, processes)
        checkpoints.close()
        batches.close()
        log.close()
    if stops and not done:
        raise KeyboardInterrupt(
            f"saved {workdir} at step {counters.step}; the same command goes on from there"
        )
    progress.note(
        f"{workdir}: {counters.step} steps, {counters.total_tokens:,} tokens, "
        f"{counters.seconds:.0f} s of training"
    )


def train_baselines(
    config: Config, data: Path, multilingual: Path, workdir: Path, processes: Processes = ALONE
) -> None:
    """Trains one bilingual model for each language of a multilingual run.

    Each model sees the same number of tokens of its language as the multilingual run did.

    Args:
      config: the config of the bilingual models. Each model has its own Data.languages and
        Train.tokens instead of the config's.
      data: the prepared data of the multilingual run.
      multilingual: the run folder of the multilingual run.
      workdir: gets one run folder for each language. Finished ones are skipped, others resumed.
      processes: as for `train`.

    Raises:
      UserError: the multilingual run has not been trained.
    """
    tokens_by_language = RunFolder(multilingual).budget().get("tokens_by_language")
    if not tokens_by_language:
        raise UserError(
            f"{multilingual} has no budget.json; train it with gshard-train before its baselines."
        )
    if processes.is_first:
        workdir.mkdir(parents=True, exist_ok=True)
        baselines = {"of": str(multilingual), "tokens_by_language": tokens_by_language}
        RunFolder(workdir).write_json("baselines.json", baselines)
    for language, tokens in sorted(tokens_by_language.items(), key=lambda item: -item[1]):
        bilingual = config.replace(data={"languages": (language,)}, train={"tokens": tokens})
        train(bilingual, data, workdir / language, processes)


def _restore(checkpoints: Checkpoints, programs: CompiledSteps) -> tuple[dict, dict]:
    """Returns the state and the cursors of the input, as the last checkpoint has them."""
    specs = programs.devices.abstract(programs.state_specs)
    groups = {"parameters": weights_of(specs), "optimizer": without_weights(specs), "input": {}}
    restored = checkpoints.restore(LAST, groups)
    return with_weights(restored["optimizer"], restored["parameters"]), restored["input"]


def _save(
    run: RunFolder,
    checkpoints: Checkpoints,
    counters: RunCounters,
    state: dict,
    batches: TrainBatches,
    processes: Processes,
) -> None:
    weights = weights_of(state)
    groups = {
        "parameters": weights,
        "optimizer": without_weights(state),
        "input": _whole_input(batches, processes),
    }
    metadata = {"step": counters.step, "tokens": counters.tokens, "seconds": counters.seconds}
    checkpoints.save(LAST, counters.step, groups, metadata)
    budget: dict[str, Any] = {
        "steps": counters.step,
        "seconds": round(counters.seconds, 1),
        "parameters": sum(array.size for array in weights.values()),
        "tokens_by_language": dict(sorted(counters.tokens.items())),
    }
    if processes.is_first:
        run.write_json("budget.json", budget)


def _whole_input(batches: TrainBatches, processes: Processes) -> dict[str, Any]:
    """Returns the cursors of all rows of the batch.

    The cursor of a row comes from the process that fills this row with text.
    """
    if processes.count == 1:
        return batches.state()
    ranges = processes.gather(np.array([batches.rows.start, batches.rows.stop]))
    whole = {}
    for name, array in batches.state().items():
        for (start, stop), rows in zip(ranges, processes.gather(array), strict=True):
            array[start:stop] = rows[start:stop]
        whole[name] = array
    return whole


def _starting(workdir: Path, counters: RunCounters, config: Config) -> str:
    mesh = " x ".join(f"{a}={n}" for a, n in zip(config.mesh.axes, config.mesh.shape, strict=True))
    begin = (
        f"resuming {workdir} at step {counters.step}" if counters.step else f"starting {workdir}"
    )
    return f"{begin} on the mesh {mesh}; compiling the training step"


def _compiled(program: runtime.Program) -> str:
    counts = {kind: count for kind, count in program.collectives().items() if count}
    collectives = ", ".join(f"{n} {kind}" for kind, n in counts.items()) or "no collectives"
    return (
        f"lowered in {program.lower_seconds:.1f} s, compiled in {program.compile_seconds:.1f} s: "
        f"{collectives}"
    )
