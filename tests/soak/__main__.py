"""Long campaigns outside continuous integration: `make soak`, or `make soak MINUTES=60`.

    python -m tests.soak --minutes 10 --seed 7 kill two_devices properties wrong_input

Each campaign takes `--minutes`, prints its progress, and closes with one line of what it tried. A seed is
printed; the same seed gives the same cases. The exit code is 1 if a campaign has found a defect.
"""

import argparse
import importlib
import os
import secrets
import sys
import time

from tests.soak.campaign import Clock, Report, say

CAMPAIGNS = ("kill", "two_devices", "properties", "wrong_input")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("campaigns", nargs="*", help=f"default: {' '.join(CAMPAIGNS)}")
    parser.add_argument("--minutes", type=float, default=10, help="for each campaign, at most 60")
    parser.add_argument("--seed", type=int, help="default: a new one")
    parser.add_argument("--case", type=int, help="repeats one case of wrong_input")
    arguments = parser.parse_args()
    names = arguments.campaigns or list(CAMPAIGNS)
    if unknown := set(names) - set(CAMPAIGNS):
        parser.error(f"there is no campaign {min(unknown)}; there are {', '.join(CAMPAIGNS)}")
    if not 0 < arguments.minutes <= 60:
        parser.error("--minutes must be above 0 and at most 60")
    if arguments.case is not None and names != ["wrong_input"]:
        parser.error("--case is for the campaign wrong_input alone; name it")
    seed = secrets.randbelow(2**31) if arguments.seed is None else arguments.seed
    reports: dict[str, tuple[Report, float]] = {}
    for name in names:
        say(f"{name}: {arguments.minutes:g} minutes, --seed {seed}")
        module = importlib.import_module(f"tests.soak.{name}")
        options = {} if arguments.case is None else {"only": arguments.case}
        began = time.monotonic()
        report = module.campaign(Clock(arguments.minutes), seed, **options)
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
