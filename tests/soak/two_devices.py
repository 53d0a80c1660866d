"""Two CPU devices that wait for each other for good: many starts, each with a time-out.

XLA's CPU client once started both devices of a program in one thread, and a collective of the first then
waited for the second. `runtime.start` prevents it; this campaign watches.
"""

from tests.soak.campaign import Clock, Report, generator, say
from tests.soak.small_run import prepared_folder, remove, to_the_end

CHANGES = {"Train.checkpoint_every": 20, "Train.dev_every": 0, "Train.bleu_sentences": 0}


def campaign(clock: Clock, seed: int) -> Report:
    """Starts one run after another, of 5 to 60 steps."""
    root = prepared_folder()
    starts, longest = 0, 0.0
    defects: list[str] = []
    try:
        while not clock.is_over():
            random = generator(seed, starts)
            # A seed of its own gives other numbers; the compiled program is the same.
            own = {"Train.steps": random.randint(5, 60), "Train.seed": random.randrange(2**32)}
            seconds, failure = to_the_end(root, f"run_{starts}", **(CHANGES | own))
            defects += [f"start {starts}: {failure}"] if failure else []
            longest = max(longest, seconds)
            remove(root / f"run_{starts}")
            starts += 1
            say(f"two devices: {starts} starts, {len(defects)} defects; {clock.left:.0f} s left")
    finally:
        remove(root)
    return Report(f"{starts} starts on two devices, the longest of {longest:.1f} s", defects)
