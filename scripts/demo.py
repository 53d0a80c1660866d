"""Runs all stages of the demo: harvest, prepare, train, train the baselines, evaluate.

Each stage runs one program and prints its command line first. If the demo is interrupted, run it again:
each stage continues where it stopped.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.programs import Job, run

RUN, DATA = Path("runs/demo"), Path("data/demo")
STAGES = [
    (
        "Harvest the message catalogues of this machine into a parallel corpus",
        ["gshard-data", "harvest", "--out", f"{DATA}/corpus"],
        DATA / "corpus" / "corpus.json",
    ),
    (
        "Train the vocabularies and tokenize the corpus",
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
        "Train a bilingual baseline for each language, on the same number of tokens of that language",
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
            # Baselines that converge would take hours; see configs/experiments/bilingual.gin.
            "--until",
            "budget",
        ],
        None,
    ),
    (
        "Translate the test sets and write the report",
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
    """Runs the stages in order, up to the first that fails. Returns the exit code."""
    times = []
    for title, command, result in STAGES:
        if result and result.exists():
            print(f"\n== {title}: already done, see {result.parent}", flush=True)
            continue
        print(f"\n== {title}", flush=True)
        start = time.monotonic()
        try:
            (code,) = run([Job(command)])
        except KeyboardInterrupt:
            code = 130
        if code:
            print(
                f"{command[0]} ended with exit code {code}; run `make demo` again to continue here",
                file=sys.stderr,
            )
            return code
        times.append((time.monotonic() - start, title))
    print("\n== Wall time")
    for seconds, title in times:
        print(f"{seconds:6.0f} s  {title}")
    print(
        f"{sum(seconds for seconds, _ in times):6.0f} s  in total\n\nThe report: {RUN}/report/index.html"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
