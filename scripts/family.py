"""Trains a family of models and says which claims of GShard hold at this size: the paper in miniature.

    .venv/bin/python scripts/family.py                          # six models, at most 150 minutes
    .venv/bin/python scripts/family.py --minutes 600 --steps 20000
    .venv/bin/python scripts/family.py --members dense-2 moe64-2 dense-2-again

The text is the message catalogues of this machine, with the demo's sixteen languages. All models see the
same batches: the same number of steps, rows and tokens. They differ in experts and depth. The bilingual
baselines are trained until they stop getting better. All test strings are scored. The results go to
runs/family, and into docs/results.md between its two markers.

Two programs train at a time, each on one device. If it is interrupted, start it again: finished work is
used again, and each start has its own --minutes. A member that does not finish within the time is left
out, and the page says so.
"""

import argparse
import dataclasses
import datetime
import json
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gshard_nmt.data.sets.corpus import read_lines  # noqa: E402
from gshard_nmt.evaluation.metrics import significance  # noqa: E402
from gshard_nmt.evaluation.texts import corpora  # noqa: E402
from gshard_nmt.run.folder import RunFolder  # noqa: E402
from scripts.family_results import Member, curves_of, page  # noqa: E402
from scripts.programs import Job, run  # noqa: E402

PAGE = ROOT / "docs" / "results.md"
MARKERS = ("<!-- begin family -->\n", "<!-- end family -->\n")
SHARE_OF_MODELS, SHARE_OF_BASELINES = 0.55, 0.33
"""The shares of the time in which the models and their baselines train. The rest is for translating."""
AT_A_TIME = 2
"""Programs that run side by side. Two programs of one device do more on two cores than one of two."""
BASELINES = {
    "Mesh.shape": (1,),
    "Model.model_dim": 64,
    "Model.hidden_dim": 256,
    "Model.head_dim": 16,
    "Data.rows": 8,
    "Train.dev_every": 100,
    "Train.bleu_sentences": 100,
}
"""The settings of the baselines over configs/experiments/bilingual.gin: as wide as the family."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """A model that is to be trained: 0 experts is dense, and `layers` are those of each side."""

    experts: int
    layers: int
    seed: int = 1

    def settings(self, steps: int) -> dict[str, int]:
        """Returns its settings over configs/experiments/family.gin."""
        return {
            "EXPERTS": self.experts,
            "STEPS": steps,
            "Model.encoder_layers": self.layers,
            "Model.decoder_layers": self.layers,
            "Optimizer.cooldown_steps": int(0.4 * steps),
            # Each validation comes with the number of tokens.
            "Train.log_every": max(1, steps // 50),
            "Train.dev_every": 5 * max(1, steps // 50),
            "Train.seed": self.seed,
        }


FAMILY = {
    "dense-2": Plan(0, 2),
    "moe4-2": Plan(4, 2),
    "moe16-2": Plan(16, 2),
    "moe64-2": Plan(64, 2),
    "moe16-6": Plan(16, 6),
    "dense-12": Plan(0, 12),
    "dense-2-again": Plan(0, 2, seed=2),
}
"""The paper's MoE(128E, 12L) to MoE(2048E, 36L) and T(96L), at the size of the demo. The last one is
optional. It shows how far two equal models are apart that differ in their seed."""


class Deadline:
    """The time that one start of this program may take."""

    def __init__(self, minutes: float) -> None:
        self.minutes, self._began = minutes, time.monotonic()

    def left(self, share: float = 1.0) -> float:
        """Returns the minutes until this share of the time is over."""
        return share * self.minutes - (time.monotonic() - self._began) / 60


class Failed(Exception):
    """A program that everything else needs has failed; `args` has its exit code."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--minutes", type=float, default=150, help="the most time; default 150")
    add("--steps", type=int, default=4000, help="steps of each model; default 4000")
    add(
        "--members",
        nargs="+",
        choices=FAMILY,
        default=list(FAMILY)[:6],
        help="default: the first six",
    )
    add("--folder", type=Path, default=Path("runs/family"), help="the results")
    add("--data", type=Path, default=Path("data/demo"), help="corpus and prepared data")
    add("--page", type=Path, default=PAGE, help="the page that gets the tables")
    arguments = parser.parse_args()
    try:
        return train_and_judge(arguments)
    except Failed as error:
        print(f"the last program ended with exit code {error.args[0]}", file=sys.stderr)
        return int(error.args[0])
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from there", file=sys.stderr)
        return 130


def train_and_judge(arguments: argparse.Namespace) -> int:
    """Makes the data, trains the family and its baselines, scores them and writes the page."""
    read_page(arguments.page)  # an error is better now than after two hours
    deadline, folder = Deadline(arguments.minutes), arguments.folder
    corpus, prepared = arguments.data / "corpus", arguments.data / "prepared"
    if not (corpus / "corpus.json").exists():
        program("gshard-data", "harvest", "--out", corpus)
    program("gshard-data", "prepare", "--config", "family", "--corpus", corpus, "--out", prepared)
    run(member_jobs(arguments, prepared, deadline), AT_A_TIME)
    finished = [name for name in arguments.members if is_finished(folder / name, arguments.steps)]
    if not finished:
        print(f"no model finished within {arguments.minutes:g} minutes", file=sys.stderr)
        return 75
    baselines = train_baselines(folder, folder / finished[0], prepared, deadline)
    report = folder / "report"
    flags = [flag for name in finished for flag in ("--workdir", folder / name)]
    flags += ["--corpus", corpus, "--report", report, "--gin=Mesh.shape = (2,)", *baselines]
    program("gshard-eval", *flags)
    results = json.loads((report / "bleu.json").read_text(encoding="utf-8"))
    left_out = [name for name in arguments.members if name not in finished]
    drawn = drawn_scores(corpus, folder, finished)
    write_page(arguments.page, page_of(results, folder, arguments.steps, left_out, drawn))
    (arguments.page.parent / "images").mkdir(exist_ok=True)
    shutil.copyfile(report / "trendline.svg", arguments.page.parent / "images" / "family.svg")
    return 0


def program(*command: str | Path) -> None:
    (code,) = run([Job(command)])
    if code:
        raise Failed(code)


def member_jobs(arguments: argparse.Namespace, prepared: Path, deadline: Deadline) -> Iterator[Job]:
    """Yields the training of each member, until the time of the models is over."""
    for name in arguments.members:
        minutes, workdir = deadline.left(SHARE_OF_MODELS), arguments.folder / name
        if minutes < 1 and not is_finished(workdir, arguments.steps):
            print(f"\nno time is left for {name}", flush=True)
            continue
        flags = ["--config", "family", "--data", prepared, "--workdir", workdir]
        flags += [f"--max_minutes={max(1.0, minutes):.1f}"]
        flags += gin_flags(FAMILY[name].settings(arguments.steps))
        yield Job(["gshard-train", *flags], arguments.folder / f"{name}.log")


def is_finished(workdir: Path, steps: int) -> bool:
    """Returns whether a run has made all of its steps, and no other number."""
    budget = workdir / "budget.json"
    return budget.exists() and bool(json.loads(budget.read_text())["steps"] == steps)


def train_baselines(folder: Path, of: Path, prepared: Path, deadline: Deadline) -> list[str | Path]:
    """Trains the bilingual baselines; returns the flags of gshard-eval that name them."""
    workdir = folder / "baselines"
    minutes = deadline.left(SHARE_OF_MODELS + SHARE_OF_BASELINES)
    if minutes >= 1:
        flags = ["--config", "bilingual", "--data", prepared, "--workdir", workdir]
        flags += ["--baselines_of", of, "--until", "converged", f"--max_minutes={minutes:.1f}"]
        flags += gin_flags(BASELINES)
        jobs = [
            Job(["gshard-train", *flags], folder / f"{part}.log")
            for part in range(1, AT_A_TIME + 1)
        ]
        if code := max(run(jobs, AT_A_TIME), key=abs):
            raise Failed(code)
    return ["--baselines", workdir] if list(workdir.glob("*/data.json")) else []


def gin_flags(settings: Mapping[str, Any]) -> list[str]:
    return [f"--gin={name} = {value!r}" for name, value in settings.items()]


def drawn_scores(
    corpus: Path, folder: Path, members: Sequence[str]
) -> dict[str, dict[str, np.ndarray]]:
    """Returns BLEU on drawn test strings, of each member and of the baselines, by language."""
    workdir, folders = RunFolder(folder / members[0]), {"": corpus}
    tests, _ = corpora.test_sets(workdir, folders, corpora.pairs_of(workdir, folders), "test", 0)
    counts = []
    for test in tests:
        file = Path("decodes") / f"test.{test.direction_name}.txt"
        paths = {name: folder / name / file for name in members}
        paths["baselines"] = folder / "baselines" / test.language / file
        counts.append(
            {
                name: significance.statistics(lines, test.all_references, test.target)
                for name, path in paths.items()
                if path.exists() and len(lines := read_lines(path)) == len(test.references)
            }
        )
    scores = significance.drawn_scores([[*c.values()] for c in counts], [t.groups for t in tests])
    drawn: dict[str, dict[str, np.ndarray]] = {}
    for test, own, rows in zip(tests, counts, scores, strict=True):
        for name, row in zip(own, rows, strict=True):
            drawn.setdefault(name, {})[test.language] = row
    return drawn


def page_of(
    results: dict[str, Any],
    folder: Path,
    steps: int,
    left_out: list[str],
    drawn: Mapping[str, dict[str, np.ndarray]],
) -> str:
    """Returns the section of the page, from the bleu.json of the report and the run folders."""
    members = [
        member_of(system, folder / system["name"], drawn.get(system["name"], {}))
        for system in results["systems"]
        if system["name"] in FAMILY
    ]
    rows = results["languages"]
    train_pairs = {row["lang"]: row["train_pairs"] for row in rows}
    bleu = {row["lang"]: row["baseline_bleu"] for row in rows if row["baseline_bleu"] is not None}
    baselines = Member("baselines", bleu, drawn.get("baselines", {}))
    command = shlex.join(["scripts/family.py", *sys.argv[1:]])
    about = (
        f"`{command}`, {datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d}: {steps:,} steps and "
        f"{members[0].tokens / 1e6:.1f} million tokens for each model. "
        f"{sum(row['sentences'] for row in rows):,} test strings. One seed, one device a model, "
        f"{AT_A_TIME} models at a time."
    )
    if left_out:
        about += f" Not finished, and left out: {', '.join(left_out)}."
    figure = "![Gain over the bilingual baselines](images/family.svg)"
    return f"{about}\n\n{figure}\n\n{page(members, train_pairs, baselines)}"


def member_of(system: dict[str, Any], workdir: Path, drawn: dict[str, np.ndarray]) -> Member:
    budget = json.loads((workdir / "budget.json").read_text(encoding="utf-8"))
    lines = (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    plan = FAMILY[system["name"]]
    return Member(
        system["name"],
        {row["lang"]: row["bleu"] for row in system["languages"]},
        drawn,
        budget["parameters"],
        plan.experts,
        plan.layers,
        budget["steps"],
        budget["seconds"],
        sum(budget["tokens_by_language"].values()),
        curves_of(json.loads(line) for line in lines),
        plan.seed,
    )


def read_page(file: Path) -> tuple[str, str]:
    before, begin, rest = file.read_text(encoding="utf-8").partition(MARKERS[0])
    _, end, after = rest.partition(MARKERS[1])
    if not (begin and end):
        raise ValueError(f"{file} must have {MARKERS[0].strip()} and {MARKERS[1].strip()}")
    return before + begin, end + after


def write_page(file: Path, text: str) -> None:
    before, after = read_page(file)
    file.write_text(f"{before}\n{text.strip()}\n\n{after}", encoding="utf-8")
    print(f"wrote {file}")


if __name__ == "__main__":
    sys.exit(main())
