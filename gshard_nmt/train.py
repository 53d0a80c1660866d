"""gshard-train: trains a run, or resumes it where it stopped.

`train` is the whole loop, top to bottom. The order of its stages matters: the run folder is claimed
before anything slow, the devices are started before anything uses jax, and the input is opened after
the checkpoint has said where it stopped.
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gshard_nmt.data.batches import TrainBatches
from gshard_nmt.data.shards import PreparedData
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.validation import DevEvaluation
from gshard_nmt.ranges import at_least, between, check
from gshard_nmt.run.checkpoint import LAST, Checkpoints
from gshard_nmt.run.compiled_steps import Programs, check_fits_mesh, parameter_table, specs_of
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.progress import Interrupt, Ledger, MetricsLog, TrainingProgress
from gshard_nmt.settings.values import as_text
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.processes import ALONE, Processes

if TYPE_CHECKING:
    from gshard_nmt.settings.config import Config


@dataclasses.dataclass(frozen=True)
class Train:
    """How long to train, and how often to look.

    Attributes:
      steps: training ends after so many steps.
      tokens: and as soon as so many real tokens were seen, source and target; 0 = no bound.
      seed: of the parameters and of dropout. The order of the data has its own, Data.seed.
      log_every: steps between two lines of metrics.jsonl.
      checkpoint_every: steps between two checkpoints to resume from.
      dev_every: steps between two evaluations on dev; one is always at the end. 0 = none at all.
      dev_batches: batches of dev text of each language for dev_nll.
      bleu_sentences: dev sentences of each language that are decoded for dev BLEU, which chooses the
        best checkpoint; 0 = dev_nll chooses it.
    """

    steps: int = 10_000
    tokens: int = 0
    seed: int = 1
    log_every: int = 50
    checkpoint_every: int = 500
    dev_every: int = 500
    dev_batches: int = 2
    bleu_sentences: int = 0

    def __post_init__(self) -> None:
        check(
            self,
            at_least(1, "steps", "log_every", "checkpoint_every", "dev_batches"),
            at_least(0, "dev_every", "bleu_sentences"),
            between(0, 2**63 - 1, "tokens"),
            between(0, 2**32 - 1, "seed"),
        )


def train(config: "Config", data: Path, workdir: Path, processes: Processes = ALONE) -> None:
    """Trains until Train.steps or Train.tokens, saving as it goes.

    Args:
      config: the run.
      data: a folder that gshard-data prepare made.
      workdir: the run folder; one that holds an unfinished run of the same model and data resumes.
      processes: those that train together; all see the same folders, the first writes.

    Raises:
      UserError: the data, the folder, the mesh and the model do not fit each other.
      TryAgain: another process was lost.
      KeyboardInterrupt: on SIGINT or SIGTERM, after saving.
    """
    # 1. The data, and the folder that this run is recorded in.
    limits = config.train
    prepared = PreparedData.open(data)
    check_fits_mesh(config)
    run = RunFolder(workdir)
    run.claim(config, prepared, write=processes.is_first)
    progress = TrainingProgress(workdir.name, quiet=not processes.is_first)

    # 2. The devices, before anything else starts jax, and how far an earlier process came.
    devices = runtime.start(config.mesh, run.programs, processes)
    steps = run.steps(config)
    specs = specs_of(steps)
    for name, spec in specs.items():
        config.mesh.check_divides(name, spec.letters, spec.shape)
    if processes.is_first:
        run.write_text("parameters.txt", parameter_table(specs, config.mesh))
    checkpoints = Checkpoints(run.checkpoints)
    ledger = Ledger(**checkpoints.metadata(LAST)) if checkpoints.latest(LAST) else Ledger()
    if ledger.is_complete(limits.steps, limits.tokens):
        progress.note(f"{workdir} is finished: {ledger.step} steps, nothing to do")
        return

    progress.note(_starting(workdir, ledger, config))
    programs = Programs(config, steps, devices)
    progress.note(_compiled(programs.train))

    # 3. The state and the place in the data: where an earlier process stopped, or the beginning.
    state, cursors = _restore(checkpoints, programs) if ledger.step else (None, None)
    state = state or programs.initialize()
    rows = devices.local_rows(programs.batch_specs["source_ids"])
    batches = TrainBatches(prepared, config.data, rows, state=cursors)
    dev = DevEvaluation(run, programs, prepared, checkpoints)
    log = MetricsLog(run, ledger.step, writes=processes.is_first)

    # 4. The loop. A checkpoint holds the state, the place in the data, and the ledger.
    ledger.skip_time()
    saved = ledger.step
    with progress, Interrupt(processes) as interrupt:
        for batch, info in batches:
            last_step = ledger.last_step(limits.steps, limits.tokens)
            arrays = devices.put(batch, programs.batch_specs, rows.start)
            state, metrics = programs.train(state, arrays, programs.control(last_step))
            ledger.count(info.tokens)
            logs = ledger.step % limits.log_every == 0
            evaluates = limits.dev_every and ledger.step % limits.dev_every == 0
            saves = ledger.step % limits.checkpoint_every == 0
            stops = interrupt.stops_after(ledger.step)
            # Summing over processes waits for the step, so it is not done after each.
            if processes.count == 1 or logs or evaluates or saves or stops:
                ledger.settle(processes.sum)
            done = ledger.is_complete(limits.steps, limits.tokens)
            progress.advance(ledger.step, last_step)
            if logs or done:
                progress.show(ledger.step, last_step, log.step_metrics(ledger, metrics))
            if evaluates or (limits.dev_every and done):
                progress.note(dev.run(ledger, state, log))
                log.restart_clock(ledger)
                ledger.skip_time()
            if saves:
                _save(run, checkpoints, ledger, state, batches, processes)
                saved = ledger.step
            if done or stops:
                break

        # 5. Nothing is lost: what was trained since the last checkpoint is saved before leaving.
        if ledger.step != saved:
            ledger.settle(processes.sum)
            _save(run, checkpoints, ledger, state, batches, processes)
        checkpoints.close()
        batches.close()
        log.close()
    if stops and not done:
        raise KeyboardInterrupt(
            f"saved {workdir} at step {ledger.step}; the same command goes on from there"
        )
    progress.note(
        f"{workdir}: {ledger.step} steps, {ledger.total_tokens:,} tokens, "
        f"{ledger.seconds:.0f} s of training"
    )


def train_baselines(
    config: "Config", data: Path, of: Path, workdir: Path, processes: Processes = ALONE
) -> None:
    """Trains a bilingual model of each language of a multilingual run, for as many of its tokens.

    Args:
      config: of the bilingual models; its languages and its token bound are set for each.
      data: the prepared data of the multilingual run.
      of: the multilingual run folder, trained.
      workdir: gets one run folder a language. Finished ones are skipped, others resume.
      processes: as for `train`.

    Raises:
      UserError: `of` has not been trained.
    """
    budget = RunFolder(of).budget().get("tokens_by_language")
    if not budget:
        raise UserError(
            f"{of} has no budget.json; train it with gshard-train before its baselines."
        )
    if processes.is_first:
        workdir.mkdir(parents=True, exist_ok=True)
        baselines = {"of": str(of), "tokens_by_language": budget}
        RunFolder(workdir).write_json("baselines.json", baselines)
    for language, tokens in sorted(budget.items(), key=lambda item: -item[1]):
        train(_for_language(config, language, tokens), data, workdir / language, processes)


def _for_language(config: "Config", language: str, tokens: int) -> "Config":
    """The configuration of one bilingual run, bounded by tokens."""
    changed = dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, languages=(language,)),
        train=dataclasses.replace(config.train, tokens=tokens),
    )
    parts = (getattr(changed, f.name) for f in dataclasses.fields(changed) if f.name != "text")
    return dataclasses.replace(changed, text=as_text(parts))


def _restore(checkpoints: Checkpoints, programs: Programs) -> tuple[dict, dict]:
    specs = programs.devices.abstract(programs.state_specs)
    parameters = programs.parameters_of(specs)
    others = {name: spec for name, spec in specs.items() if not name.startswith("parameters/")}
    groups = {"parameters": parameters, "optimizer": others, "input": {}}
    restored = checkpoints.restore(LAST, groups)
    state = {f"parameters/{name}": array for name, array in restored["parameters"].items()}
    return state | restored["optimizer"], restored["input"]


def _save(
    run: RunFolder,
    checkpoints: Checkpoints,
    ledger: Ledger,
    state: dict,
    batches: TrainBatches,
    processes: Processes,
) -> None:
    groups = {
        "parameters": Programs.parameters_of(state),
        "optimizer": {k: v for k, v in state.items() if not k.startswith("parameters/")},
        "input": _whole_input(batches, processes),
    }
    metadata = {"step": ledger.step, "tokens": ledger.tokens, "seconds": ledger.seconds}
    checkpoints.save(LAST, ledger.step, groups, metadata)
    budget: dict[str, Any] = {
        "steps": ledger.step,
        "seconds": round(ledger.seconds, 1),
        "parameters": sum(v.size for v in groups["parameters"].values()),
        "tokens_by_language": dict(sorted(ledger.tokens.items())),
    }
    if processes.is_first:
        run.write_json("budget.json", budget)


def _whole_input(batches: TrainBatches, processes: Processes) -> dict[str, Any]:
    """The state of the input of all rows, each from a process that makes it."""
    if processes.count == 1:
        return batches.state()
    made = processes.gather(np.array([batches.rows.start, batches.rows.stop]))
    whole = {}
    for name, array in batches.state().items():
        for (start, stop), rows in zip(made, processes.gather(array), strict=True):
            array[start:stop] = rows[start:stop]
        whole[name] = array
    return whole


def _starting(workdir: Path, ledger: Ledger, config: "Config") -> str:
    mesh = " x ".join(f"{a}={n}" for a, n in zip(config.mesh.axes, config.mesh.shape, strict=True))
    where = f"resuming {workdir} at step {ledger.step}" if ledger.step else f"starting {workdir}"
    return f"{where} on the mesh {mesh}; compiling the training step"


def _compiled(program: runtime.Program) -> str:
    counts = {kind: n for kind, n in program.collectives().items() if n}
    found = ", ".join(f"{n} {kind}" for kind, n in counts.items()) or "no collectives"
    return (
        f"lowered in {program.lower_seconds:.1f} s, compiled in {program.compile_seconds:.1f} s: "
        f"{found}"
    )
