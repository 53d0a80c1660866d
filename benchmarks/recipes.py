"""Trains the demo with one setting changed at a time, and says what each change is worth on dev text.

    .venv/bin/python benchmarks/recipes.py --data data/demo            # all recipes
    .venv/bin/python benchmarks/recipes.py --data data/demo --only "another seed" dense

Two models train at a time, each on one device. 100 dev strings of each language are translated
(`--sentences`), and test text never. Models that are finished are used again, so an interrupted start is
continued, and a new recipe costs its own time alone. A difference is the mean over the languages,
with the interval of the report: it covers the languages and the strings. It does not cover the seed: the
recipe "another seed" shows how far two equal models are apart.
"""

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness import environment, page  # noqa: E402
from harness.records import Figure  # noqa: E402

from scripts.programs import Job, run  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A change of the demo's config.

    Attributes:
      settings: gin bindings over configs/experiments/demo.gin.
      expected: what we expected, before it was measured.
      data: bindings that the data are prepared with anew; none if the demo's data serve.
    """

    settings: Mapping[str, Any]
    expected: str
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)


BASE = "the demo"
RECIPES = {
    BASE: Recipe({}, ""),
    "another seed": Recipe({"Train.seed": 2}, "0"),
    "languages by temperature 5 all the time": Recipe(
        {"Data.temperature": 5.0, "Data.schedule": ()}, "-3: so it was with 2,000 steps"
    ),
    "large languages first to step 1,250": Recipe(
        {"Data.schedule": [{"from_step": 1250, "temperature": 5.0}]},
        "-0.7: so it was with 2,000 steps",
    ),
    "large languages first to step 2,250": Recipe(
        {"Data.schedule": [{"from_step": 2250, "temperature": 5.0}]},
        "0: 250 steps are few for the small languages",
    ),
    "decay to zero over the whole run": Recipe(
        {"Optimizer.cooldown_steps": 2500}, "0: with a rate of 2.0 the loss was 0.10 higher"
    ),
    "a learning rate of 2.0": Recipe({"Optimizer.learning_rate": 2.0}, "0"),
    "half the rows, twice the steps": Recipe(
        {
            "Data.rows": 8,
            "STEPS": 5000,
            "Optimizer.learning_rate": 0.75,
            "Optimizer.cooldown_steps": 2000,
            "Data.schedule": [{"from_step": 3500, "temperature": 5.0}],
        },
        "0: with a rate of 2.0 it was much worse",
    ),
    "encoder of 4 layers, decoder of 1 with experts": Recipe(
        {"Model.encoder_layers": 4, "Model.decoder_layers": 1, "Model.moe_every": 1},
        "+0.5, and 1.1 times the time",
    ),
    "experts in the encoder only": Recipe(
        {"Model.expert_stacks": "encoder"}, "0, and 0.85 times the time"
    ),
    "target vocabulary of 2,000": Recipe(
        {},
        "-0.9: so it was with 2,000 steps",
        {"Data.target_vocabulary": 2000},
    ),
    "source text in Latin letters": Recipe(
        {},
        "+0.5: half of the sixteen languages are in Latin letters",
        {"Data.romanize_source": True},
    ),
    "second moments of 100 steps": Recipe(
        {"Optimizer.maximum_beta2": 0.99}, "0: from step 317 on, beta2 is 0.99"
    ),
    # A dense model learns better with a rate of 1.0 than with 2.0.
    "dense": Recipe(
        {"Model.experts": 0, "Optimizer.learning_rate": 1.0}, "-0.7, and 0.75 times the time"
    ),
    "dense, as many minutes": Recipe(
        {
            "Model.experts": 0,
            "STEPS": 3400,
            "Optimizer.learning_rate": 1.0,
            "Optimizer.cooldown_steps": 1360,
            "Data.schedule": [{"from_step": 2380, "temperature": 5.0}],
        },
        "0",
    ),
}


@dataclasses.dataclass(frozen=True)
class Result:
    """A trained recipe.

    Attributes:
      seconds: the time of its training.
      dev_nll: its loss on dev text, if that has the demo's tokens.
      bleu: its BLEU in each language.
      average: the means and intervals of the report.
    """

    seconds: float
    dev_nll: float | None
    bleu: Mapping[str, float]
    average: Mapping[str, Any]


def main() -> None:
    """Reads the command line, and compares the recipes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--data", type=Path, default=Path("data/demo"), help="corpus and prepared")
    parser.add_argument("--folder", type=Path, default=Path("runs/recipes"), help="the results")
    parser.add_argument(
        "--only", nargs="+", choices=RECIPES, default=list(RECIPES)[1:], help="default: all recipes"
    )
    parser.add_argument("--sentences", type=int, default=100, help="dev strings of each language")
    page.add_page_flag(parser)
    arguments = parser.parse_args()
    for part in ("corpus", "prepared"):
        if not (arguments.data / part).is_dir():
            parser.error(
                f"--data {arguments.data}: there is no folder {arguments.data / part}. Make both parts "
                "with make demo, or name another folder."
            )
    try:
        compare(arguments)
    except KeyboardInterrupt:
        print("recipes.py: interrupted. The same command goes on from there.", file=sys.stderr)
        sys.exit(130)


def compare(arguments: argparse.Namespace) -> None:
    """Trains and translates; prints the table, and writes it to docs/performance.md if it is whole."""
    busy = environment.busy()
    names = list(dict.fromkeys([BASE, *arguments.only]))
    for name in names:
        if RECIPES[name].data:
            require(run([preparation(name, arguments)]))
    require(run([training(name, arguments) for name in names], at_a_time=2))
    report = arguments.folder / "report"
    workdirs = [f"--workdir={arguments.folder / folder(name)}" for name in names]
    command = ["gshard-eval", *workdirs, "--corpus", arguments.data / "corpus", "--split", "dev"]
    command += ["--sentences", str(arguments.sentences), "--report", report]
    require(run([Job([*command, "--gin", "Mesh.shape = (2,)"])]))
    systems = json.loads((report / "bleu.json").read_text(encoding="utf-8"))["systems"]
    results = {
        name: result_of(name, system, arguments.folder / folder(name))
        for name, system in zip(names, systems, strict=True)
    }
    figures = [
        Figure.of(name, "BLEU of a language", list(result.bleu.values()))
        for name, result in results.items()
    ]
    section = page.Section(
        "recipes", table_of(results), figures, page.FEWEST_ROUNDS, set(names) == set(RECIPES)
    )
    page.publish(section, arguments.page, busy)


def folder(name: str) -> str:
    """Returns the name of a recipe as that of a folder."""
    return name.replace(",", "").replace(" ", "-")


def prepared(name: str, arguments: argparse.Namespace) -> Path:
    """Returns the folder with the data of a recipe."""
    if RECIPES[name].data:
        return Path(arguments.folder / f"{folder(name)}-data")
    return Path(arguments.data / "prepared")


def preparation(name: str, arguments: argparse.Namespace) -> Job:
    """Returns the program that prepares the data of a recipe; it ends at once if they are there."""
    gin = [f"--gin={key} = {value!r}" for key, value in RECIPES[name].data.items()]
    flags = ["--config", "demo", "--corpus", arguments.data / "corpus"]
    return Job(["gshard-data", "prepare", *flags, "--out", prepared(name, arguments), *gin])


def training(name: str, arguments: argparse.Namespace) -> Job:
    """Returns the training of a recipe on one device."""
    workdir = arguments.folder / folder(name)
    settings = {"Mesh.shape": (1,), "Train.bleu_sentences": 0} | dict(RECIPES[name].settings)
    gin = [f"--gin={key} = {value!r}" for key, value in settings.items()]
    gin += [f"--gin={key} = {value!r}" for key, value in RECIPES[name].data.items()]
    flags = ["--config", "demo", "--data", prepared(name, arguments), "--workdir", workdir, *gin]
    return Job(["gshard-train", *flags], arguments.folder / f"{folder(name)}.log")


def require(codes: Sequence[int]) -> None:
    """Ends this program if one of the others has failed."""
    if any(codes):
        sys.exit(max(codes, key=abs))


def result_of(name: str, system: Mapping[str, Any], workdir: Path) -> Result:
    """Returns the result of a recipe, from its part of bleu.json and its run folder."""
    lines = (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [record["dev_nll"] for line in lines if "dev_nll" in (record := json.loads(line))]
    budget = json.loads((workdir / "budget.json").read_text(encoding="utf-8"))
    bleu = {row["lang"]: row["bleu"] for row in system["languages"]}
    loss = None if RECIPES[name].data else losses[-1]
    return Result(budget["seconds"], loss, bleu, system["average"])


def table_of(results: Mapping[str, Result]) -> str:
    """Returns the table of all recipes, as differences from the demo."""
    base = results[BASE]
    rows = [["recipe", "expected BLEU", "time", "dev loss", "BLEU", "difference"]]
    for name, result in results.items():
        mean, bounds = result.average["difference"], result.average["difference_ci95"]
        gain = "" if name == BASE else f"{mean:+.1f} ({bounds[0]:+.1f} to {bounds[1]:+.1f})"
        rows.append(
            [
                name,
                RECIPES[name].expected,
                f"{result.seconds / base.seconds:.2f}",
                "" if result.dev_nll is None else f"{result.dev_nll:.3f}",
                f"{statistics.mean(result.bleu.values()):.1f}",
                gain,
            ]
        )
    return page.table(rows)


if __name__ == "__main__":
    main()
