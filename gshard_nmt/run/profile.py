"""Traces a few training steps for TensorBoard: `gshard-train --profile`."""

from pathlib import Path

SKIPPED_STEPS = 5
"""Steps before the trace. The first ones are slower: they fill caches and load the program."""

TRACED_STEPS = 5


class Profile:
    """Writes a trace of TRACED_STEPS steps, after the first SKIPPED_STEPS of this start of a run."""

    def __init__(self, folder: Path, wanted: bool) -> None:
        """Traces nothing yet.

        Args:
          folder: the folder of the run's event files. The trace lies in its plugins/profile.
          wanted: whether the user asks for a trace; without it this object does nothing.
        """
        self._folder, self._wanted = folder, wanted
        self._steps = 0
        self._is_tracing = False

    def count_step(self) -> str:
        """Starts or ends the trace if its time has come. Call it after every step.

        Returns:
          A line to show when the trace is complete; otherwise "".
        """
        if not self._wanted:
            return ""
        self._steps += 1
        if self._steps == SKIPPED_STEPS:
            import jax

            jax.profiler.start_trace(str(self._folder))
            self._is_tracing = True
        if self._steps == SKIPPED_STEPS + TRACED_STEPS:
            return self.close()
        return ""

    def close(self) -> str:
        """Ends the trace, if there is one. Returns a line to show, or ""."""
        if not self._is_tracing:
            return ""
        import jax

        jax.profiler.stop_trace()
        self._is_tracing = False
        traced = min(self._steps - SKIPPED_STEPS, TRACED_STEPS)
        return (
            f"a trace of {traced} steps is in {self._folder}; to see it: pip install tensorboard xprof, "
            f"then tensorboard --logdir {self._folder}"
        )
