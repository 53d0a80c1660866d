"""Long campaigns outside continuous integration: `make soak`, or `make soak CAMPAIGNS=kill`.

    python -m tests.soak --seed 7 kill wrong_input
    python -m tests.soak --minutes 60 --cases 1000000 wrong_input

Without flags, `kill` kills runs 100 times, `wrong_input` tries 1,000 cases, and `memory` prepares one
large corpus. The others take a few minutes each, and all of them together little more than an hour.
Each campaign prints its progress, and closes with one line of what it tried. A seed is printed; the same
seed gives the same cases. The exit code is 1 if a campaign has found a defect.
"""

import argparse
import importlib
import os
import pathlib
import secrets
import sys
import tempfile
import time

from tests.soak.campaign import Clock, Report, say

CAMPAIGNS: dict[str, tuple[float, int | None]] = {
    "kill": (21, 100),
    "properties": (6, None),
    "wrong_input": (27, 1000),
    "memory": (20, None),
    "hostile_requests": (3, 1000),
}
"""The campaigns: the minutes that each may take, and after how many cases it ends earlier."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("campaigns", nargs="*", help=f"default: {' '.join(CAMPAIGNS)}")
    parser.add_argument("--minutes", type=float, help="for each campaign, at most 60")
    parser.add_argument("--cases", type=int, help="kills, or wrong inputs, that are enough")
    parser.add_argument("--seed", type=int, help="default: a new one")
    parser.add_argument("--case", type=int, help="repeats one case of wrong_input")
    arguments = parser.parse_args()
    names = arguments.campaigns or list(CAMPAIGNS)
    if unknown := set(names) - set(CAMPAIGNS):
        parser.error(f"there is no campaign {min(unknown)}; there are {', '.join(CAMPAIGNS)}")
    if arguments.minutes is not None and not 0 < arguments.minutes <= 60:
        parser.error("--minutes must be above 0 and at most 60")
    if arguments.case is not None and names != ["wrong_input"]:
        parser.error("--case is for the campaign wrong_input alone; name it")
    seed = secrets.randbelow(2**31) if arguments.seed is None else arguments.seed
    caches = os.environ.get("XDG_CACHE_HOME") or str(pathlib.Path("~/.cache").expanduser())
    os.environ.setdefault("MPLCONFIGDIR", f"{caches}/matplotlib")  # its list of fonts takes seconds
    with tempfile.TemporaryDirectory(prefix="gshard-soak-cache-") as private:
        # Compiled programs of damaged runs must not fill the cache of the user.
        os.environ["XDG_CACHE_HOME"] = private
        return _run(names, arguments, seed)


def _run(names: list[str], arguments: argparse.Namespace, seed: int) -> int:
    """Runs campaigns one after another; returns the exit code."""
    reports: dict[str, tuple[Report, float]] = {}
    for name in names:
        minutes, cases = CAMPAIGNS[name]
        minutes = minutes if arguments.minutes is None else arguments.minutes
        cases = cases if arguments.cases is None else arguments.cases
        enough = f", {cases} cases" if cases else ""
        say(f"{name}: at most {minutes:g} minutes{enough}, --seed {seed}")
        module = importlib.import_module(f"tests.soak.{name}")
        options = {} if arguments.case is None else {"only": arguments.case}
        began = time.monotonic()
        report = module.campaign(Clock(minutes, cases), seed, **options)
        reports[name] = report, time.monotonic() - began
        for defect in report.defects:
            print(f"\nDEFECT {name}: {defect}", flush=True)
    print()
    for name, (report, seconds) in reports.items():
        outcome = f"{len(report.defects)} DEFECTS" if report.defects else "no defects"
        print(f"{name}: {outcome} in {seconds / 60:.1f} min, seed {seed}; {report.tried}")
    return int(any(report.defects for report, _ in reports.values()))


if __name__ == "__main__":
    # Checkpoints of two devices are read in this process.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import jax

    jax.config.update("jax_num_cpu_devices", 2)
    sys.exit(main())
