"""Trains this package, JoeyNMT and Marian for the same minutes, and compares dev BLEU.

    .venv/bin/python benchmarks/race.py                        # message catalogues, 10 minutes
    .venv/bin/python benchmarks/race.py --corpus corpus --language de --minutes 20
    .venv/bin/python benchmarks/race.py --racers experts dense # this package alone

Every racer has the machine for itself, and gets the same training text, the same vocabulary of 8,000
pieces, the same sizes (width 256, hidden width 1,024, 4 heads, 4 encoder and 2 decoder layers), all cores
and the same minutes, start and compilation included. The race goes like this:

1. gshard-data prepare cleans the text and learns the vocabulary. All racers train on the result.
2. A trial of each racer measures its speed. So each knows how many updates fit into its minutes, for its
   learning rate and for the checkpoints of its curve. The trial is not counted.
3. Each racer trains. Its own validations, if its recipe needs them, are not counted either.
4. Each racer translates the dev text with each checkpoint and the beam that its authors recommend. The
   same sacreBLEU scores all of them on raw text. Test text is never read.

The first run installs the peers into build/benchmarks. A peer that cannot be installed is left out. The
files of the race are in --out. If the race is interrupted, the same command goes on with the next racer.
The machine must be quiet.
"""

import argparse
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from harness import environment, page
from harness.records import Figure
from racers import clock, result
from racers.joeynmt import JoeyNMT
from racers.marian import Marian
from racers.ours import EXPERTS, Ours
from racers.plan import DECODER_LAYERS, ENCODER_LAYERS, Plan, Racer, Text
from racers.result import Point, Result
from racers.text import make_text

from gshard_nmt import files
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation import metrics

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "benchmarks"
DEMO_CORPUS = ROOT / "data" / "demo" / "corpus"
FIGURE = "race.svg"
RACERS: dict[str, Racer] = {
    racer.name: racer
    for racer in (Ours(EXPERTS), Ours(0), JoeyNMT("shipped"), JoeyNMT("short"), Marian())
}
ENDLESS = 100_000
"""The updates of a trial, which its time ends."""
MARGIN = 0.97
"""The share of the updates that fit by the trial: a run should end before it is stopped."""


def main() -> int:
    arguments = parse()
    try:
        return race(arguments)
    except UserError as error:
        print(f"race.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "\nrace.py: interrupted. The same command goes on with the racer that was training.",
            file=sys.stderr,
        )
        return 130


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--corpus", type=Path, default=DEMO_CORPUS, help="the corpus folder")
    parser.add_argument("--language", default="fr", help="translate from this language; default fr")
    parser.add_argument(
        "--minutes", type=positive, default=10.0, help="minutes of training; default 10"
    )
    parser.add_argument(
        "--trial", type=positive, default=90.0, help="seconds of each trial; default 90"
    )
    parser.add_argument(
        "--points", type=whole, default=8, help="checkpoints of each racer; default 8"
    )
    parser.add_argument("--sentences", type=whole, default=500, help="dev sentences; default 500")
    parser.add_argument(
        "--racers",
        nargs="+",
        choices=RACERS,
        default=list(RACERS),
        metavar="NAME",
        help="default: all racers",
    )
    parser.add_argument("--out", type=Path, default=BUILD / "race", help="the folder of the race")
    page.add_page_flag(parser)
    return parser.parse_args()


def positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number


def whole(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 on")
    return int(text)


def race(arguments: argparse.Namespace) -> int:
    """Lets the racers train one after another; returns the exit code."""
    if not arguments.corpus.is_dir():
        raise UserError(
            f"--corpus {arguments.corpus} is not a folder. Make the catalogues of this machine into a "
            "corpus with gshard-data harvest --out data/demo/corpus, or name a corpus of your own."
        )
    busy = environment.busy()
    folder = arguments.out / arguments.language
    text = make_text(arguments.corpus, arguments.language, arguments.sentences, folder / "text")
    results = []
    for name in arguments.racers:
        own = finished_or_run(RACERS[name], text, folder, arguments)
        results += [own] if own else []
    if not results:
        return 1
    files.write(folder / "race.json", result.record(results, environment.machine()))
    pairs, sentences = (len(text.lines(split, "en")) for split in ("train", "dev"))
    title = f"{arguments.language} to en, {pairs:,} training pairs"
    image = result.figure(results, title)
    files.write(folder / FIGURE, image)
    summary = (
        f"{pairs:,} training pairs of {arguments.language}-en, {sentences:,} dev sentences, "
        f"{arguments.minutes:g} minutes, {len(environment.cores())} cores.\n"
        f"sacreBLEU `{results[0].signature}`.\n\n{result.table(results)}\n"
        f"![Dev BLEU against minutes of training](images/{FIGURE})\n"
    )
    figures = [Figure.of(own.label, "best dev BLEU", [own.best.bleu]) for own in results]
    section = page.Section(
        "race",
        summary,
        figures,
        page.FEWEST_ROUNDS,  # a race has none
        is_whole=len(results) == len(RACERS),
        images={FIGURE: image},
    )
    page.publish(section, arguments.page, busy)
    print(f"The record and the figure are in {folder}: race.json, race.svg.")
    return 0 if len(results) == len(arguments.racers) else 1


def finished_or_run(
    racer: Racer, text: Text, folder: Path, arguments: argparse.Namespace
) -> Result | None:
    path, cores = folder / f"{racer.name}.json", len(environment.cores())
    conditions = {
        "text": text.fingerprint,
        "minutes": arguments.minutes,
        "points": arguments.points,
        "cores": cores,
        "layers": [ENCODER_LAYERS, DECODER_LAYERS],
    }
    if own := result.read(path, conditions):
        print(
            f"{racer.label} has finished before. To race it again, remove {path}.", file=sys.stderr
        )
        return own
    try:
        python = interpreter(racer)
        own = run(racer, text, folder / racer.name, python, conditions, arguments.trial)
    except (environment.NoPeers, clock.RacerFailed) as problem:
        print(f"{racer.label} is left out. {problem}", file=sys.stderr)
        return None
    result.write(own, path)
    return own


def interpreter(racer: Racer) -> str:
    if racer.requirements is None:
        return sys.executable
    venv = BUILD / f"{racer.requirements.name.removesuffix('-requirements.txt')}-venv"
    return str(environment.peers_python(venv, racer.requirements))


def run(
    racer: Racer,
    text: Text,
    folder: Path,
    python: str,
    conditions: dict[str, Any],
    trial_seconds: float,
) -> Result:
    """Tries a racer, trains it and scores its checkpoints."""
    cores, limit = conditions["cores"], 60.0 * conditions["minutes"]

    def plan(part: str, updates: int, every: int) -> Plan:
        shutil.rmtree(folder / part, ignore_errors=True)
        (folder / part).mkdir(parents=True)
        return Plan(text, folder / part, python, cores, updates, every)

    print(f"{racer.label}: trial of {trial_seconds:g} s ...", file=sys.stderr)
    trial = clock.train(racer, plan("trial", ENDLESS, ENDLESS), trial_seconds)
    updates = int(MARGIN * trial.speed * (limit - trial.start_seconds))
    if updates < 1:
        raise clock.RacerFailed(
            f"Its trial needed {trial.start_seconds:.0f} s to start and then made {trial.speed:.2f} "
            "updates a second, too few for this race. Give it more time with --trial or --minutes."
        )
    print(f"{racer.label}: {updates:,} updates ...", file=sys.stderr)
    own = plan("race", updates, max(1, updates // conditions["points"]))
    trained = clock.train(racer, own, limit)
    points = []
    for step, seconds in sorted(trained.checkpoints.items()):
        references = [text.lines("dev", "en")]
        score = metrics.scores(clock.translate(racer, own, step), references, "en")["bleu"]
        points.append(Point(seconds / 60, step, score.value))
        print(f"  {seconds / 60:5.1f} min: {score.value:.1f} BLEU", file=sys.stderr)
    if not points:
        raise clock.RacerFailed(f"It saved no checkpoint; its log is {own.log}.")
    shutil.rmtree(folder / "trial")
    wall_seconds = trained.seconds + trained.validation_seconds
    return Result(
        racer.name,
        racer.label,
        conditions,
        tuple(points),
        trained.start_seconds,
        trained.validation_seconds,
        trained.cpu_seconds / wall_seconds,
        score.signature,
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
