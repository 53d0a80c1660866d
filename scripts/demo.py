"""Runs all stages of the demo: harvest, prepare, train, train the baselines, evaluate.

Each stage prints the command lines of its programs first. If the demo is interrupted, run it again: each
stage continues where it stopped.
"""

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.programs import Job, run

RUN, DATA = Path("runs/demo"), Path("data/demo")
CORPUS, PREPARED, BASELINES = DATA / "corpus", DATA / "prepared", Path(f"{RUN}-baselines")


@dataclasses.dataclass(frozen=True)
class Stage:
    """A part of the demo.

    Attributes:
      title: what it does.
      jobs: its programs, which run side by side.
      result: the file that shows that it is done, if the programs do not see this themselves.
    """

    title: str
    jobs: Sequence[Job]
    result: Path | None = None


def job(command: str, log: Path | None = None) -> Job:
    return Job(command.split(), log)


def baselines(log: Path | None = None) -> Job:
    """Returns the training of the baselines on one device; programs that run together divide them.

    Two programs of one device train more steps in a minute than one program of two devices. Baselines
    that converge would take hours; see configs/experiments/bilingual.gin.
    """
    return job(
        f"gshard-train --config baseline --data {PREPARED} --workdir {BASELINES} --baselines_of {RUN} "
        f"--until budget --gin Mesh.shape=(1,)",
        log,
    )


STAGES = [
    Stage(
        "Harvest the message catalogues of this machine into a parallel corpus",
        [job(f"gshard-data harvest --out {CORPUS}")],
        result=CORPUS / "corpus.json",
    ),
    Stage(
        "Train the vocabularies and tokenize the corpus",
        [job(f"gshard-data prepare --config demo --corpus {CORPUS} --out {PREPARED}")],
    ),
    Stage(
        "Train one multilingual Mixture of Experts on two devices",
        [job(f"gshard-train --config demo --data {PREPARED} --workdir {RUN}")],
    ),
    Stage(
        "Train a bilingual baseline for each language, on the same number of tokens of that language",
        # The terminal shows one program. The other one is about as far.
        [baselines(), baselines(log=Path(f"{BASELINES}.log"))],
    ),
    Stage(
        "Translate the test sets and write the report",
        [
            job(
                # The compiled programs in the run folder are the demo's own, so it trusts them.
                f"gshard-eval --workdir {RUN} --corpus {CORPUS} --sentences 100 --baselines {BASELINES} "
                f"--report {RUN}/report --trust_programs"
            )
        ],
    ),
]


def main() -> int:
    times = []
    for stage in STAGES:
        if stage.result and stage.result.exists():
            print(f"\n== {stage.title}: already done, see {stage.result.parent}", flush=True)
            continue
        print(f"\n== {stage.title}", flush=True)
        start = time.monotonic()
        try:
            codes = run(stage.jobs, at_a_time=len(stage.jobs))
        except KeyboardInterrupt:
            codes = [130]
        if code := max(codes, key=abs):
            name = stage.jobs[0].command[0]
            text = f"{name} ended with exit code {code}; run `make demo` again to continue here"
            print(text, file=sys.stderr)
            return code
        times.append((time.monotonic() - start, stage.title))
    print("\n== Wall time")
    for seconds, title in times:
        print(f"{seconds:6.0f} s  {title}")
    total = sum(seconds for seconds, _ in times)
    print(f"{total:6.0f} s  in total\n\nThe report: {RUN}/report/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
