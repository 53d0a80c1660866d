"""What a run tells the user when it starts and when it ends."""

import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from gshard_nmt.data.schedule import Component, first_unreached
from gshard_nmt.run.log.clock import TimeLimit
from gshard_nmt.run.log.counters import RunCounters
from gshard_nmt.run.patience import Patience
from gshard_nmt.settings.config import Config, Key, Train
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.program import Program


def starting(workdir: Path, counters: RunCounters, mesh: Mesh) -> str:
    """Says that a run starts or resumes, and on which mesh."""
    axes = " x ".join(f"{a}={n}" for a, n in zip(mesh.axes, mesh.shape, strict=True))
    begin = (
        f"resuming {workdir} at step {counters.step}" if counters.step else f"starting {workdir}"
    )
    return f"{begin} on the mesh {axes}; compiling the training step"


def compiled(program: Program) -> str:
    """Says how long the training step took to compile, and what it needs."""
    counts = {kind: count for kind, count in program.collectives().items() if count}
    collectives = ", ".join(f"{n} {kind}" for kind, n in counts.items()) or "no collectives"
    return (
        f"lowered in {program.lower_seconds:.1f} s, compiled in {program.compile_seconds:.1f} s: "
        f"{collectives}; a step needs {program.memory().text()}"
    )


def void_settings(
    config: Config,
    has_dev_text: bool,
    components: Sequence[Component] = (),
    set_by_user: Collection[Key] = (),
) -> Iterator[str]:
    """Yields a line for each setting that cannot have the effect that a user would expect of it.

    Args:
      config: the run.
      has_dev_text: whether its prepared data has dev text.
      components: what training draws from.
      set_by_user: the settings of --gin.
    """
    train, data, optimizer = config.train, config.data, config.optimizer
    end = f"the run ends at step {train.steps}"
    validations = math.ceil(train.steps / train.dev_every) if train.dev_every else 0
    if train.patience and not validations:
        yield f"Train.patience has no effect: Train.dev_every is 0, so {end}"
    elif train.patience and not has_dev_text:
        yield f"Train.patience has no effect: the prepared data has no dev text, so {end}"
    elif 0 < validations <= train.patience:
        yield (
            f"Train.patience is {train.patience}, but the run validates only {validations} times until "
            f"{end.removeprefix('the run ends at ')}, so it cannot end early. Lower Train.dev_every"
        )
    batch_tokens = data.rows * (data.source_length + data.target_length)
    if train.tokens > train.steps * batch_tokens:
        yield f"Train.tokens is {train.tokens:,}, but {end}, with fewer tokens. Raise Train.steps"
    if train.keep_every and math.lcm(train.keep_every, train.checkpoint_every) > train.steps:
        yield (
            f"Train.keep_every is {train.keep_every} and Train.checkpoint_every is "
            f"{train.checkpoint_every}, but {end}, so no checkpoint is kept for it"
        )
    if optimizer.linear_warmup_steps >= train.steps:
        yield (
            f"Optimizer.linear_warmup_steps is {optimizer.linear_warmup_steps}, but {end}, so the "
            "learning rate never reaches its full height"
        )
    if optimizer.cooldown_steps > train.steps:
        yield (
            f"Optimizer.cooldown_steps is {optimizer.cooldown_steps}, but {end}, so the learning rate "
            "falls from the first step on and never has its full height"
        )
    if data.subword_sampling_target and not data.subword_sampling:
        yield "Data.subword_sampling_target has no effect: Data.subword_sampling is 0"
    if phase := components and first_unreached(data.phases, components, train.steps):
        yield (
            f"Data.schedule changes the mixture at step {phase.from_step}, but {end}, so this change "
            "never comes. If you made the run shorter, lower from_step too"
        )
    for class_name, field in set_by_user:
        if class_name == "Cleaning" or field in ("source_model", "target_model"):
            yield (
                f"{class_name}.{field} has no effect: only gshard-data prepare reads it, and --data is "
                "prepared already"
            )


def interrupted(workdir: Path, counters: RunCounters) -> str:
    """Says that a signal has ended this start of a run."""
    return f"saved {workdir} at step {counters.step}; the same command goes on from there"


def out_of_time(workdir: Path, counters: RunCounters, limit: TimeLimit) -> str:
    """Says that the time of this start of a run is over."""
    goes_on = "; the same command goes on from there" * (limit.flag == "--max_minutes")
    return (
        f"saved {workdir} at step {counters.step}, because the {limit.minutes:g} minutes of "
        f"{limit.flag} are over{goes_on}"
    )


def out_of_patience(limits: Train, patience: Patience) -> str:
    """Says that a run ends because its scores no longer improve."""
    return (
        f"{limits.patience} validations in a row without a better {limits.metric} than "
        f"{patience.best:.3f}: the run ends early (Train.patience)"
    )


def finished(workdir: Path, counters: RunCounters) -> str:
    """Says that a run is finished, and how much it has trained."""
    return (
        f"{workdir}: {counters.step} steps, {counters.total_tokens:,} tokens, "
        f"{counters.seconds:.0f} s of training"
    )
