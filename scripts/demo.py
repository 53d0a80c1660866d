"""The whole road in one command: harvest, prepare, train, baselines, decode, judge.

Every stage is one of the programs, printed as it is typed, and picks up where it was interrupted.
"""

import subprocess
import sys
import time
from pathlib import Path

RUN, DATA = Path("runs/demo"), Path("data/demo")
STAGES = [
    (
        "Harvest the message catalogues of this machine into a parallel corpus",
        ["gshard-data", "harvest", "--out", f"{DATA}/corpus"],
        DATA / "corpus" / "corpus.json",
    ),
    (
        "Prepare: vocabularies and tokenised shards",
        [
            "gshard-data",
            "prepare",
            "--config",
            "demo",
            "--corpus",
            f"{DATA}/corpus",
            "--out",
            f"{DATA}/prepared",
        ],
        None,
    ),
    (
        "Train one multilingual Mixture of Experts on two devices",
        ["gshard-train", "--config", "demo", "--data", f"{DATA}/prepared", "--workdir", f"{RUN}"],
        None,
    ),
    (
        "Train its bilingual baselines, each on as many tokens of its language",
        [
            "gshard-train",
            "--config",
            "baseline",
            "--data",
            f"{DATA}/prepared",
            "--workdir",
            f"{RUN}-baselines",
            "--baselines_of",
            f"{RUN}",
        ],
        None,
    ),
    (
        "Decode the test sets and write the report",
        [
            "gshard-eval",
            "--workdir",
            f"{RUN}",
            "--corpus",
            f"{DATA}/corpus",
            "--sentences",
            "100",
            "--baselines",
            f"{RUN}-baselines",
            "--report",
            f"{RUN}/report",
        ],
        None,
    ),
]


def main() -> int:
    """Runs the stages in order; stops at the first that fails."""
    programs = Path(sys.executable).parent
    times = []
    for title, command, done in STAGES:
        if done and done.exists():
            print(f"\n== {title}: done before ({done.parent})", flush=True)
            continue
        print(f"\n== {title}\n$ {' '.join(command)}", flush=True)
        began = time.monotonic()
        code = subprocess.run([programs / command[0], *command[1:]], check=False).returncode
        if code:
            print(f"stopped with code {code}; the same command goes on from here", file=sys.stderr)
            return code
        times.append((time.monotonic() - began, title))
    print("\n== Wall time")
    for seconds, title in times:
        print(f"{seconds:6.0f} s  {title}")
    print(
        f"{sum(seconds for seconds, _ in times):6.0f} s  in all\n\nThe report: {RUN}/report/index.html"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
