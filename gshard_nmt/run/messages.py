"""What a run tells the user when it starts and when it ends."""

from pathlib import Path

from gshard_nmt.data.schedule import Phase
from gshard_nmt.run.clock import TimeLimit
from gshard_nmt.run.counters import RunCounters
from gshard_nmt.run.patience import Patience
from gshard_nmt.settings.config import Train
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


def unreached(phase: Phase, limits: Train) -> str:
    """Says that the mixture of a run would change only after its end."""
    return (
        f"Data.schedule changes the mixture at step {phase.from_step}, but the run ends at step "
        f"{limits.steps}, so this change never comes. If you made the run shorter, lower from_step too"
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
