"""Trains a family of models and says which claims of GShard hold at this size: the paper in miniature.

    .venv/bin/python scripts/family.py                          # six models, at most 150 minutes
    .venv/bin/python scripts/family.py --minutes 600 --steps 20000
    .venv/bin/python scripts/family.py --members dense-2 moe64-2 dense-2-again

The text is the message catalogues of this machine, with the demo's sixteen languages. All models see the
same batches: the same number of steps, rows and tokens. They differ in experts and depth. The bilingual
baselines are trained until they stop getting better. All test strings are scored. The results go to
runs/family, and into docs/results.md between its two markers.

Two models are trained at a time, each on one device. If it is interrupted, start it again: finished work
is used again, and each start has its own --minutes. A member that does not finish within the time is left
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
from gshard_nmt.evaluation.report.baselines_section import kind_text, read  # noqa: E402
from gshard_nmt.evaluation.texts import corpora  # noqa: E402
from gshard_nmt.run.baselines import read_record  # noqa: E402
from gshard_nmt.run.folder import RunFolder  # noqa: E402
from scripts.family_results import Member, curves_of, page  # noqa: E402
from scripts.programs import Job, run  # noqa: E402

PAGE = ROOT / "docs" / "results.md"
MARKERS = ("<!-- begin family -->\n", "<!-- end family -->\n")
SHARE_OF_MODELS, SHARE_OF_BASELINES = 0.55, 0.33
"""The shares of the time in which the models and their baselines train. The rest is for translating."""
AT_A_TIME = 2
"""Programs that run side by side. Two programs of one device do more on two cores than one of two."""
GROUPS = 4
"""The groups into which the large languages, and the small ones, are divided in a round of baselines."""
FIRST_MINUTES, LEAST_MINUTES = 1.0, 0.5
"""The minutes of each baseline in the first round, and the least that a further round adds."""
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
BASELINES_NAME = "baselines"
"""The folder of the baselines, and their name among the systems."""
LARGE = 10_000
"""From this number of training pairs on, a baseline has dropout 0.1. Below it, 0.3 is tried too."""


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
        """Starts to measure the time."""
        self.minutes, self._began = minutes, time.monotonic()

    def spent(self) -> float:
        """Returns the minutes since the start."""
        return (time.monotonic() - self._began) / 60

    def left(self, share: float) -> float:
        """Returns the minutes until this share of the time is over."""
        return share * self.minutes - self.spent()


class Failed(Exception):
    """A program that everything else needs has failed."""

    def __init__(self, code: int) -> None:
        """`code` is its exit code."""
        super().__init__(f"the last program ended with exit code {code}")
        self.code = code


def main() -> int:
    """Runs all stages. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--minutes", type=float, default=150, help="the most time; default 150")
    parser.add_argument("--steps", type=int, default=4000, help="steps of each model; default 4000")
    parser.add_argument(
        "--members",
        nargs="+",
        choices=FAMILY,
        default=list(FAMILY)[:6],
        help="default: the first six",
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/family"), help="the results")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("data/demo"),
        help="corpus and prepared data; made if missing",
    )
    parser.add_argument("--page", type=Path, default=PAGE, help="the page that gets the tables")
    arguments = parser.parse_args()
    try:
        return train_and_judge(arguments)
    except Failed as error:
        print(error, file=sys.stderr)
        return error.code
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
    train_baselines(folder, folder / finished[0], prepared, deadline)
    report = folder / "report"
    flags = [flag for name in finished for flag in ("--workdir", folder / name)]
    flags += ["--corpus", corpus, "--report", report, "--gin=Mesh.shape = (2,)"]
    if list((folder / "baselines").glob("*/data.json")):
        flags += ["--baselines", folder / "baselines"]
    program("gshard-eval", *flags)
    results = json.loads((report / "bleu.json").read_text(encoding="utf-8"))
    left_out = [name for name in arguments.members if name not in finished]
    write_page(
        arguments.page,
        page_of(results, folder, arguments.steps, left_out, deadline.spent(), corpus),
    )
    copy_figure(report, arguments.page)
    return 0


def program(*command: str | Path) -> None:
    """Runs one program of the package on the terminal.

    Raises:
      Failed: it failed.
    """
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
        gin = gin_flags(FAMILY[name].settings(arguments.steps))
        flags = ["--config", "family", "--data", prepared, "--workdir", workdir]
        limit = f"--max_minutes={max(1.0, minutes):.1f}"
        yield Job(["gshard-train", *flags, limit, *gin], arguments.folder / f"{name}.log")


def is_finished(workdir: Path, steps: int) -> bool:
    """Returns whether a run has made all of its steps, and no other number."""
    budget = workdir / "budget.json"
    return budget.exists() and bool(json.loads(budget.read_text())["steps"] == steps)


def train_baselines(folder: Path, of: Path, prepared: Path, deadline: Deadline) -> None:
    """Trains the bilingual baselines in rounds, until all have converged or their time is over.

    In each round, a model that has not converged goes on and gets twice the minutes, or what is left. So
    every language has a baseline early, and the time that small languages leave goes to the large ones.
    """
    workdir, share = folder / "baselines", SHARE_OF_MODELS + SHARE_OF_BASELINES
    pairs = json.loads((of / "data.json").read_text())["pairs"]
    unfinished = {pair["language"]: pair["train_pairs"] for pair in pairs}
    minutes = 0.0
    while unfinished:
        models = len(unfinished)
        each = deadline.left(share) * min(AT_A_TIME, models) / models
        if each < LEAST_MINUTES:
            return
        minutes += min(max(minutes, FIRST_MINUTES), each)
        flags = ["--config", "bilingual", "--data", prepared, "--workdir", workdir]
        flags += ["--baselines_of", of, "--sizes", "config", f"--max_minutes_each={minutes:g}"]
        flags += [f"--max_minutes={deadline.left(share):.1f}", *gin_flags(BASELINES)]
        chosen = [*groups_of(unfinished)]
        jobs = [
            Job(["gshard-train", *flags, *group], folder / f"baselines-{number}.log")
            for number, group in enumerate(chosen, 1)
        ]
        if any(codes := run(jobs, AT_A_TIME)):
            raise Failed(max(codes))
        unfinished = {
            language: count
            for language, count in unfinished.items()
            if not is_converged(workdir / language)
        }


def groups_of(train_pairs: Mapping[str, int]) -> Iterator[list[str]]:
    """Yields the flags of groups of baselines, large and small languages in turns.

    There are more groups than programs that run side by side, so none of them waits long at the end. Two
    groups in a row have different programs, so they do not compile the same one at the same time.
    """
    large = [language for language, count in train_pairs.items() if count >= LARGE]
    small = [language for language, count in train_pairs.items() if count < LARGE]
    for part in range(1, GROUPS + 1):
        for languages, dropout in ((large, 0.1), (small, 0.3)):
            parts = min(GROUPS, len(languages))
            if part <= parts:
                names = f"--languages={','.join(languages)}"
                rates = dict.fromkeys(_DROPOUTS, dropout)
                yield [names, f"--shard={part}/{parts}", *gin_flags(rates)]


_DROPOUTS = ("Model.input_dropout", "Model.residual_dropout", "Model.attention_dropout")


def gin_flags(settings: Mapping[str, Any]) -> list[str]:
    """Returns the flags that set gin bindings."""
    return [f"--gin={name} = {value!r}" for name, value in settings.items()]


def is_converged(workdir: Path) -> bool:
    """Returns whether a baseline ended before its minutes."""
    record = read_record(workdir)
    return record is not None and record["ended"] != "minutes"


def page_of(
    results: dict[str, Any],
    folder: Path,
    steps: int,
    left_out: Sequence[str],
    minutes: float,
    corpus: Path | None = None,
) -> str:
    """Returns the section of the page, from the bleu.json of the report and the stored translations."""
    members = [
        member_of(system, folder / system["name"])
        for system in results["systems"]
        if system["name"] in FAMILY
    ]
    rows = results["languages"]
    train_pairs = {row["lang"]: row["train_pairs"] for row in rows}
    baselines = {
        row["lang"]: row["baseline_bleu"] for row in rows if row["baseline_bleu"] is not None
    }
    command = shlex.join(["scripts/family.py", *sys.argv[1:]])
    strings = sum(row["sentences"] for row in rows)
    about = (
        f"`{command}`, {datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d}: {steps:,} steps and "
        f"{members[0].tokens / 1e6:.1f} million tokens for each model, {minutes:.0f} minutes in the last "
        f"start. {strings:,} test strings. One seed, one device a model, two models at a time."
    )
    if left_out:
        about += f" Not finished, and left out: {', '.join(left_out)}."
    records = read({language: folder / "baselines" / language for language in baselines})
    late = [tag for tag, record in records.items() if record["ended"] != "patience"]
    about += f" {kind_text(records, len(baselines)) if baselines else 'No baseline was finished.'}"
    if late:
        about += f" The gains of {', '.join(late)} would be smaller with more time."
    drawn = drawn_scores_of(corpus, folder, [member.name for member in members]) if corpus else {}
    members = [dataclasses.replace(m, drawn=drawn.get(m.name, {})) for m in members]
    figure = "![Gain over the bilingual baselines](images/family.svg)"
    return (
        f"{about}\n\n{figure}\n\n{page(members, train_pairs, baselines, drawn.get(BASELINES_NAME))}"
    )


def drawn_scores_of(
    corpus: Path, folder: Path, members: Sequence[str]
) -> dict[str, dict[str, np.ndarray]]:
    """Returns BLEU on drawn test strings, of each member and of the baselines, by language."""
    run = RunFolder(folder / members[0])
    folders = {"": corpus}
    tests, _ = corpora.test_sets(run, folders, corpora.pairs_of(run, folders), "test", 0)
    counts = []
    for test in tests:
        file = Path("decodes") / f"test.{test.direction_name}.txt"
        paths = {name: folder / name / file for name in members}
        paths[BASELINES_NAME] = folder / "baselines" / test.language / file
        counts.append(
            {
                name: significance.statistics(lines, test.all_references, test.target)
                for name, path in paths.items()
                if path.exists() and len(lines := read_lines(path)) == len(test.references)
            }
        )
    scores = significance.drawn_scores(
        [[*own.values()] for own in counts], [t.groups for t in tests]
    )
    drawn: dict[str, dict[str, np.ndarray]] = {}
    for test, own, rows in zip(tests, counts, scores, strict=True):
        for name, row in zip(own, rows, strict=True):
            drawn.setdefault(name, {})[test.language] = row
    return drawn


def member_of(system: dict[str, Any], workdir: Path) -> Member:
    """Returns a member from its part of bleu.json and its run folder."""
    budget = json.loads((workdir / "budget.json").read_text(encoding="utf-8"))
    lines = (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    plan = FAMILY[system["name"]]
    return Member(
        system["name"],
        budget["parameters"],
        plan.experts,
        plan.layers,
        budget["steps"],
        budget["seconds"],
        system["devices"],
        sum(budget["tokens_by_language"].values()),
        {row["lang"]: row["bleu"] for row in system["languages"]},
        curves_of(json.loads(line) for line in lines),
        plan.seed,
    )


def read_page(file: Path) -> tuple[str, str]:
    """Returns the text before and after the section of the page, with the markers."""
    before, begin, rest = file.read_text(encoding="utf-8").partition(MARKERS[0])
    _, end, after = rest.partition(MARKERS[1])
    if not (begin and end):
        raise ValueError(f"{file} must have {MARKERS[0].strip()} and {MARKERS[1].strip()}")
    return before + begin, end + after


def write_page(file: Path, text: str) -> None:
    """Writes the section of the page between its markers."""
    before, after = read_page(file)
    file.write_text(f"{before}\n{text.strip()}\n\n{after}", encoding="utf-8")
    print(f"wrote {file}")


def copy_figure(report: Path, file: Path) -> None:
    """Copies the trend lines of the report, as Figure 6, to the images of the page."""
    (file.parent / "images").mkdir(exist_ok=True)
    shutil.copyfile(report / "trendline.svg", file.parent / "images" / "family.svg")


if __name__ == "__main__":
    sys.exit(main())
