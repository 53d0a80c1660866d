"""Traces a few training steps for TensorBoard: `gshard-train --profile`."""

import tempfile
from pathlib import Path

from gshard_nmt import files

SKIPPED_STEPS = 5
"""Steps before the trace. The first ones are slower: they fill caches and load the program."""

TRACED_STEPS = 5


class Profile:
    """Writes a trace of TRACED_STEPS steps, after the first SKIPPED_STEPS of this start of a run.

    In a run of several processes, each writes its own file into one folder. A trace that cannot be
    written ends no run.
    """

    def __init__(self, folder: Path, wanted: bool, process: int = 0) -> None:
        self._folder, self._wanted, self._process = folder, wanted, process
        self._steps = self._last_step = 0
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def count_step(self, step: int) -> str:
        """Starts or ends the trace if it is time to. Returns a line to show, or ""."""
        self._steps, self._last_step = self._steps + 1, step
        if self._wanted and self._steps == SKIPPED_STEPS:
            import jax

            try:
                # jax cannot write to every bucket, and names the file after the host only. So we copy it.
                self._temporary = tempfile.TemporaryDirectory(prefix="gshard-nmt-trace-")
                jax.profiler.start_trace(self._temporary.name)
            except OSError as error:
                return _cannot(error)
        return self.close() if self._steps == SKIPPED_STEPS + TRACED_STEPS else ""

    def close(self) -> str:
        """Ends the trace, if there is one. Returns a line to show, or ""."""
        if self._temporary is None:
            return ""
        import jax

        target = self._folder / "plugins" / "profile" / f"step-{self._last_step}"
        try:
            with self._temporary as folder:
                jax.profiler.stop_trace()
                target.mkdir(parents=True, exist_ok=True)
                for file in sorted(Path(folder).rglob("*.xplane.pb")):
                    host = file.name.removesuffix(".xplane.pb")
                    name = f"{host}.process-{self._process}.xplane.pb"
                    files.write(target / name, file.read_bytes())
        except (OSError, jax.errors.JaxRuntimeError) as error:
            return _cannot(error)
        finally:
            self._temporary = None
        return (
            f"a trace of {min(self._steps - SKIPPED_STEPS, TRACED_STEPS)} steps is in {self._folder}; to "
            f"see it: pip install tensorboard xprof, then tensorboard --logdir {self._folder}"
        )


def _cannot(error: Exception) -> str:
    return f"the trace cannot be written: {error}. Training goes on"
