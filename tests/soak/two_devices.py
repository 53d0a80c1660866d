"""Two CPU devices that wait for each other for good: many starts, each with a time-out.

XLA's CPU client once started both devices of a program in one thread, and a collective of the first then
waited for the second. `runtime.start` prevents it; this campaign watches.
"""

import subprocess
import time

from tests.soak.campaign import Clock, Report, generator, last_lines, say
from tests.soak.small_run import abort, prepared_folder, remove, start

CHANGES = {"Train.checkpoint_every": 20, "Train.dev_every": 0, "Train.bleu_sentences": 0}
TIMEOUT = 180
"""Seconds; a start takes about 10 on an idle machine and 30 on a busy one."""


def campaign(clock: Clock, seed: int) -> Report:
    """Starts one run after another, of 5 to 60 steps."""
    root = prepared_folder()
    log = root / "log"
    starts = steps = 0
    longest = 0.0
    defects: list[str] = []
    try:
        while not clock.is_over():
            random = generator(seed, starts)
            count = random.randint(5, 60)
            log.write_text("")
            began = time.monotonic()
            # A seed of its own gives other numbers; the compiled program is the same.
            changes = CHANGES | {"Train.steps": count, "Train.seed": random.randrange(2**32)}
            process = start(root, f"run_{starts}", log, **changes)
            try:
                process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                abort(process)
                stacks = last_lines(log.read_text(), 60)
                defects.append(f"start {starts}: no end after {TIMEOUT} s\n{stacks}")
            else:
                if process.returncode:
                    said = last_lines(log.read_text())
                    defects.append(f"start {starts}: exit code {process.returncode}\n{said}")
            longest = max(longest, time.monotonic() - began)
            starts, steps = starts + 1, steps + count
            remove(root / f"run_{starts - 1}")
            if starts % 5 == 0 or defects:
                say(
                    f"two devices: {starts} starts, {steps} steps, longest {longest:.1f} s, "
                    f"{len(defects)} defects; {clock.left:.0f} s left"
                )
    finally:
        remove(root)
    tried = f"{starts} starts with {steps} training steps on two devices; longest {longest:.1f} s"
    return Report(tried, defects)
