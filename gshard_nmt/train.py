"""gshard-train: trains a run, or resumes it from its last checkpoint."""

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gshard_nmt.data.batches import TrainBatches
from gshard_nmt.data.shards import PreparedData
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.validation import Validation
from gshard_nmt.run import input_state
from gshard_nmt.run.arrays import (
    parameter_table,
    state_specs,
    step_functions,
    training_arrays,
    weights_of,
    with_weights,
    without_weights,
)
from gshard_nmt.run.checkpoint_writer import CheckpointWriter
from gshard_nmt.run.checksums import NotFiniteError
from gshard_nmt.run.compiled_steps import CompiledSteps
from gshard_nmt.run.counters import RunCounters
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.manifest import Manifest
from gshard_nmt.run.progress import Interrupt, MetricsLog, TrainingProgress
from gshard_nmt.run.retention import Retention, Scores, check_metric
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.divides import check_divides
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpecs
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
    limits = config.train
    prepared = PreparedData.open(data)
    check_metric(limits, prepared.languages(config.data))
    functions = step_functions(config, prepared.summary())
    check_divides(config, training_arrays(config, functions))
    run = RunFolder(workdir)
    run.claim(config, prepared, write=processes.is_first)
    progress = TrainingProgress(workdir.name, quiet=not processes.is_first)

    # 2. Devices, before anything else starts jax
    devices = runtime.start(config.mesh, run.programs, processes)
    if processes.is_first:
        run.write_text("parameters.txt", parameter_table(state_specs(functions), config.mesh))
    checkpoints = CheckpointWriter(
        run.checkpoints,
        Retention.of(limits),
        processes=processes,
        on_commit=functools.partial(_write_budget, run),
    )
    resumes, newest = bool(checkpoints.steps()), checkpoints.newest()
    counters = RunCounters(**newest.facts) if newest else RunCounters()
    if newest and processes.is_first:
        # A kill just before a commit may have left the budget of a checkpoint that does not exist.
        _write_budget(run, newest)
    if counters.is_complete(limits.steps, limits.tokens):
        progress.note(f"{workdir} is finished: {counters.step} steps, nothing to do")
        return

    # 3. Compiled programs
    progress.note(_starting(workdir, counters, config))
    programs = CompiledSteps(config, functions, devices)
    progress.note(_compiled(programs.train_step))

    # 4. State and position in the data: from the last checkpoint, or new
    cursors = None
    if resumes:
        state, cursors, counters = _restore(checkpoints, programs, progress)
    else:
        state = programs.initialize()
    specs = _specs(programs)
    checkpoints.prepare(
        {group: devices.abstract(arrays) for group, arrays in specs.items()}, _letters(specs)
    )
    for step in checkpoints.start_saving():
        progress.note(f"{run.checkpoints / str(step)} was not finished; it is removed")
    rows = devices.local_rows(programs.batch_specs["source_ids"])
    batches = TrainBatches(prepared, config.data, rows, state=cursors)
    validation = Validation(run, programs, prepared)
    if validation.warning:
        progress.note(validation.warning)
    log = MetricsLog(run, counters, writes=processes.is_first)

    # 5. The loop. A checkpoint holds the state, the position in the data, and the counters.
    counters.skip_time()
    log.restart_clock(counters)
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
            if logs or done:
                progress.show(counters.step, last_step, log.step_metrics(counters, metrics))
            scores = Scores()
            if validates or (limits.dev_every and done):
                line, scores = validation.run(counters, state, log)
                progress.note(line)
                log.restart_clock(counters)
                counters.skip_time()
                saves = saves or checkpoints.would_be_best(counters.step, scores)
            if saves or done or stops:
                if stops or done:
                    counters.add_counts_of_all_processes(processes.sum)
                _save(checkpoints, counters, state, batches, scores, programs)
            if logs:
                checkpoints.check_for_errors()
            if done or stops:
                break

        # 6. Wait until the last checkpoint is on the disk
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


def _restore(
    checkpoints: CheckpointWriter, programs: CompiledSteps, progress: TrainingProgress
) -> tuple[dict, dict, RunCounters]:
    """Returns the state, the cursors of the input, and the counters of the newest sound checkpoint."""
    specs = {group: programs.devices.abstract(arrays) for group, arrays in _specs(programs).items()}
    restored = checkpoints.restore(specs)
    manifest, groups = restored.manifest, restored.groups
    for problem in restored.passed_over:
        progress.note(f"{problem}. Going on from step {manifest.step}")
    state = with_weights(groups["optimizer"], groups["parameters"])
    return state, input_state.from_devices(groups["input"]), RunCounters(**manifest.facts)


def _save(
    checkpoints: CheckpointWriter,
    counters: RunCounters,
    state: dict,
    batches: TrainBatches,
    scores: Scores,
    programs: CompiledSteps,
) -> None:
    """Saves the state, the position in the data, and the counters."""
    specs = _specs(programs)
    groups = {
        "parameters": weights_of(state),
        "optimizer": without_weights(state),
        "input": input_state.to_devices(batches.state(), specs["input"], programs.devices),
    }
    facts = {"step": counters.step, "tokens": counters.tokens, "seconds": counters.seconds}
    try:
        checkpoints.save(counters.step, groups, _letters(specs), facts, scores)
    except NotFiniteError as error:
        raise UserError(
            f"the state of step {counters.step} is {error}: training has diverged, and this state is not "
            "saved. Lower Optimizer.learning_rate or set Optimizer.linear_warmup_steps; the earlier "
            "checkpoints are sound."
        ) from error


def _write_budget(run: RunFolder, manifest: Manifest) -> None:
    """Writes budget.json: what the run has cost until a checkpoint."""
    weights = manifest.tensors["parameters"].values()
    budget: dict[str, Any] = {
        "steps": manifest.step,
        "seconds": round(manifest.facts["seconds"], 1),
        "parameters": sum(math.prod(tensor.shape) for tensor in weights),
        "tokens_by_language": dict(sorted(manifest.facts["tokens"].items())),
    }
    run.write_json("budget.json", budget)


def _specs(programs: CompiledSteps) -> dict[str, ArraySpecs]:
    """Returns shape, dtype and letters of the arrays of a checkpoint, by the names of their groups."""
    return {
        "parameters": weights_of(programs.state_specs),
        "optimizer": without_weights(programs.state_specs),
        "input": input_state.input_specs(programs.config.data),
    }


def _letters(specs: Mapping[str, ArraySpecs]) -> dict[str, dict[str, str]]:
    return {
        group: {name: spec.letters for name, spec in arrays.items()}
        for group, arrays in specs.items()
    }


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
