"""Trains a family of models and says which claims of GShard hold at this size: the paper in miniature.

    .venv/bin/python scripts/family.py                          # six models, about 150 minutes
    .venv/bin/python scripts/family.py --members dense-2 moe64-2 dense-2-again

The text is the message catalogues of this machine, with the demo's sixteen languages. All models see the
same batches: the same number of steps, rows and tokens. They differ in experts and depth. The bilingual
baselines are trained until they stop getting better, or until --minutes are over. All test strings are
scored. The results go to runs/family, and into docs/results.md between its two markers.

Two programs train at a time, each on one device. If it is interrupted, start it again: finished work is
used again.
"""

import argparse
import datetime
import json
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gshard_nmt.data.sets.corpus import read_lines  # noqa: E402
from gshard_nmt.evaluation import corpora, significance  # noqa: E402
from gshard_nmt.run.folder import RunFolder  # noqa: E402
from scripts.family_results import Member, curves_of, page  # noqa: E402
from scripts.programs import Job, run  # noqa: E402

PAGE = ROOT / "docs" / "results.md"
MARKERS = ("<!-- begin family -->\n", "<!-- end family -->\n")
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
FAMILY = {
    "dense-2": (0, 2, 1),
    "moe4-2": (4, 2, 1),
    "moe16-2": (16, 2, 1),
    "moe64-2": (64, 2, 1),
    "moe16-6": (16, 6, 1),
    "dense-12": (0, 12, 1),
    "dense-2-again": (0, 2, 2),
}
"""Name -> experts, layers of each side, seed. These are the paper's MoE(128E, 12L) to MoE(2048E, 36L) and
T(96L) at the size of the demo. The last one is optional. It shows how far two equal models are apart that
differ in their seed."""


def settings(name: str, steps: int) -> dict[str, int]:
    """Returns the settings of a member over configs/experiments/family.gin."""
    experts, layers, seed = FAMILY[name]
    return {
        "EXPERTS": experts,
        "STEPS": steps,
        "Model.encoder_layers": layers,
        "Model.decoder_layers": layers,
        "Optimizer.cooldown_steps": int(0.4 * steps),
        # Each validation comes with the number of tokens.
        "Train.log_every": max(1, steps // 50),
        "Train.dev_every": 5 * max(1, steps // 50),
        "Train.seed": seed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--minutes", type=float, default=50, help="the most time of the baselines; default 50")
    add("--steps", type=int, default=4000, help="steps of each model; default 4000")
    add("--members", nargs="+", choices=FAMILY, default=list(FAMILY)[:6], help="default: first six")
    add("--folder", type=Path, default=Path("runs/family"), help="the results")
    add("--data", type=Path, default=Path("data/demo"), help="corpus and prepared data")
    add("--page", type=Path, default=PAGE, help="the page that gets the tables")
    arguments = parser.parse_args()
    try:
        train_and_judge(arguments)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from there", file=sys.stderr)
        return 130
    return 0


def train_and_judge(arguments: argparse.Namespace) -> None:
    """Makes the data, trains the family and its baselines, scores them and writes the page."""
    read_page(arguments.page)  # an error is better now than after two hours
    folder, members = arguments.folder, arguments.members
    corpus, prepared = arguments.data / "corpus", arguments.data / "prepared"
    if not (corpus / "corpus.json").exists():
        programs(Job(["gshard-data", "harvest", "--out", corpus]))
    flags = ["--config", "family", "--corpus", corpus, "--out", prepared]
    programs(Job(["gshard-data", "prepare", *flags]))
    train = ["gshard-train", "--data", prepared, "--config"]
    jobs = []
    for name in members:
        flags = gin_flags(settings(name, arguments.steps))
        workdir = folder / name
        jobs.append(Job([*train, "family", "--workdir", workdir, *flags], folder / f"{name}.log"))
    programs(*jobs)
    flags = [*train, "bilingual", "--workdir", folder / "baselines", *gin_flags(BASELINES)]
    flags += ["--baselines_of", folder / members[0], "--until", "converged"]
    flags += [f"--max_minutes={arguments.minutes:g}"]
    parts = range(1, AT_A_TIME + 1)
    programs(*(Job([*flags, f"--shard={n}/{AT_A_TIME}"], folder / f"{n}.log") for n in parts))
    report = folder / "report"
    flags = [flag for name in members for flag in ("--workdir", folder / name)]
    flags += ["--corpus", corpus, "--report", report, "--gin=Mesh.shape = (2,)"]
    programs(Job(["gshard-eval", *flags, "--baselines", folder / "baselines"]))
    results = json.loads((report / "bleu.json").read_text(encoding="utf-8"))
    drawn = drawn_scores(corpus, folder, members)
    write_page(arguments.page, page_of(results, folder, arguments.steps, drawn))
    (arguments.page.parent / "images").mkdir(exist_ok=True)
    shutil.copyfile(report / "trendline.svg", arguments.page.parent / "images" / "family.svg")


def programs(*jobs: Job) -> None:
    if code := max(run(jobs, AT_A_TIME), key=abs):
        print(f"a program ended with exit code {code}", file=sys.stderr)
        raise SystemExit(code)


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
    results: dict[str, Any], folder: Path, steps: int, drawn: Mapping[str, dict[str, np.ndarray]]
) -> str:
    """Returns the section of the page, from the bleu.json of the report and the run folders."""
    members = [
        member_of(system, folder / system["name"], drawn.get(system["name"], {}))
        for system in results["systems"]
        if system["name"] in FAMILY
    ]
    rows = results["languages"]
    bleu = {row["lang"]: row["baseline_bleu"] for row in rows if row["baseline_bleu"] is not None}
    tables = page(
        members,
        {row["lang"]: row["train_pairs"] for row in rows},
        Member("baselines", bleu, drawn.get("baselines", {})),
    )
    return (
        f"`{shlex.join(['scripts/family.py', *sys.argv[1:]])}`, "
        f"{datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d}: {steps:,} steps and "
        f"{members[0].tokens / 1e6:.1f} million tokens for each model. "
        f"{sum(row['sentences'] for row in rows):,} test strings. One seed, one device a model, "
        f"{AT_A_TIME} models at a time.\n\n"
        f"![Gain over the bilingual baselines](images/family.svg)\n\n{tables}"
    )


def member_of(system: dict[str, Any], workdir: Path, drawn: dict[str, np.ndarray]) -> Member:
    budget = json.loads((workdir / "budget.json").read_text(encoding="utf-8"))
    lines = (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    experts, layers, seed = FAMILY[system["name"]]
    return Member(
        system["name"],
        {row["lang"]: row["bleu"] for row in system["languages"]},
        drawn,
        budget["parameters"],
        experts,
        layers,
        budget["steps"],
        budget["seconds"],
        sum(budget["tokens_by_language"].values()),
        curves_of(json.loads(line) for line in lines),
        seed,
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
