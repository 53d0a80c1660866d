"""Searches settings for this package, JoeyNMT and Marian, and compares their BLEU after equal minutes.

    .venv/bin/python benchmarks/race.py                        # message catalogues, 10 minutes a run
    .venv/bin/python benchmarks/race.py --corpus corpus --language de --minutes 20
    .venv/bin/python benchmarks/race.py --racers gshard-nmt    # this package alone

Every run has its cores for itself, and gets the same training text, the same vocabulary of 8,000 pieces,
the same sizes, those of the demo (width 128, hidden width 512, 4 heads, 2 encoder and 2 decoder layers),
and the same minutes, start and compilation included. The race goes like this:

1. gshard-data prepare cleans the text and learns the vocabulary. All racers train on the result.
2. Search: each trial of benchmarks/racers/trials.json trains once. A trial is a change of the racer's
   recipe, in the racer's own names; {} changes nothing. Dev BLEU of the last checkpoint chooses a trial.
3. That trial trains again with other seeds. Each of these models translates the test text once.

Each run begins with a minute that measures its speed. So a racer knows how many updates fit into its
minutes, for its learning rate. This minute and the racer's own validations are not counted. A run ends
after its updates or its minutes, whichever is first. The peers translate with the beam that their authors
recommend, and the same sacreBLEU scores all on raw text. A run that fails counts as 0 BLEU.

The first run installs the peers into build/benchmarks. A peer that cannot be installed is left out. The
files of the race are in --out; after a change of a recipe, remove them. If the race is interrupted, the
same command goes on. The machine must be quiet. To have a run on each core, start it on each:

    for core in 0 1; do taskset -c $core .venv/bin/python benchmarks/race.py & done
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import environment, page
from harness.records import Figure
from racers import clock, result
from racers.joeynmt import JoeyNMT
from racers.marian import Marian
from racers.ours import Ours
from racers.plan import DECODER_LAYERS, ENCODER_LAYERS, Plan, Racer, Text
from racers.result import Result
from racers.text import make_text

from gshard_nmt import files
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation import metrics
from gshard_nmt.run.lock import InUseError, RunLock

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "benchmarks"
DEMO_CORPUS = ROOT / "data" / "demo" / "corpus"
TRIALS = Path(__file__).parent / "racers" / "trials.json"
RACERS: Mapping[str, Callable[..., Racer]] = {kind.name: kind for kind in (Ours, JoeyNMT, Marian)}
ENDLESS = 100_000
"""The updates of the run that measures the speed, which its time ends."""
MARGIN = 0.97
"""The share of the updates that fit by this speed: a run should end before it is stopped."""
WAIT_SECONDS = 5.0
"""The time between two looks at the runs of other processes."""


def main() -> int:
    arguments = parse()
    try:
        return race(arguments)
    except UserError as error:
        print(f"race.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "\nrace.py: interrupted. The same command goes on with the run that was training.",
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
        "--pace", type=positive, default=60.0, help="seconds that measure a speed; default 60"
    )
    parser.add_argument(
        "--seeds", type=whole, default=3, help="seeds of each best trial; default 3"
    )
    parser.add_argument(
        "--sentences", type=whole, default=500, help="most dev and test sentences; default 500"
    )
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


class Race:
    """The runs of a race, each in a folder of its own. A run is a racer's trial with a seed."""

    def __init__(self, arguments: argparse.Namespace, text: Text, folder: Path) -> None:
        self._text, self._folder, self._pace = text, folder, arguments.pace
        self._minutes, self._seeds = arguments.minutes, range(1, arguments.seeds + 1)
        self._trials = json.loads(TRIALS.read_text(encoding="utf-8"))
        self._pythons: dict[str, str] = {}

    def install(self, name: str) -> bool:
        """Installs a racer, and returns whether it could."""
        try:
            self._pythons[name] = interpreter(RACERS[name]())
        except environment.NoPeers as problem:
            print(f"{name} is left out. {problem}", file=sys.stderr)
        return name in self._pythons

    def trials(self, name: str) -> list["Entry"]:
        return self._entries(name, enumerate(self._trials[name], 1), (1,))

    def finals(self, name: str) -> list["Entry"]:
        """Returns the runs of the best trial; none if a trial has not ended."""
        scores = {entry: entry.result.dev for entry in self.trials(name) if entry.result}
        if len(scores) < len(self._trials[name]):
            return []
        best = max(scores, key=scores.__getitem__)
        entries = self._entries(name, [(best.trial, best.racer.changes)], self._seeds)
        return [dataclasses.replace(entry, is_final=True) for entry in entries]

    def waiting(self, names: Sequence[str]) -> list["Entry"]:
        entries = [entry for name in names for entry in self.trials(name) + self.finals(name)]
        return [entry for entry in entries if not entry.has_ended]

    def run(self, entry: "Entry") -> bool:
        """Trains and scores what is missing of a run; False if another process is at it."""
        try:
            entry.folder.mkdir(parents=True, exist_ok=True)
            with RunLock(entry.folder):
                if not entry.has_ended:  # another process may just have ended it
                    result.write(self._ended(entry), entry.folder)
        except InUseError:
            return False
        return True

    def _ended(self, entry: "Entry") -> Result:
        own, test = Result(entry.conditions, 0, 0.0, 0.0, ""), 0.0
        try:
            own = entry.result or self._trained(entry)
            if entry.is_final and own.updates:
                test = self._score(entry, own.updates, "test").value
        except clock.RacerFailed as problem:
            print(f"{entry.folder.name} has failed. {problem}", file=sys.stderr)
        return dataclasses.replace(own, test=test if entry.is_final else None)

    def _entries(
        self, name: str, trials: Iterable[tuple[int, Mapping[str, Any]]], seeds: Iterable[int]
    ) -> list["Entry"]:
        entries = []
        for (trial, changes), seed in itertools.product(trials, seeds):
            conditions = {
                "text": self._text.fingerprint,
                "minutes": self._minutes,
                "cores": len(environment.cores()),
                "layers": [ENCODER_LAYERS, DECODER_LAYERS],
                "changes": changes,
                "seed": seed,
            }
            racer, folder = RACERS[name](changes, seed), self._folder / f"{name}-{trial}-{seed}"
            entries.append(Entry(racer, trial, folder, conditions))
        return entries

    def _plan(self, entry: "Entry", updates: int) -> Plan:
        cores = entry.conditions["cores"]
        python = self._pythons[entry.racer.name]
        return Plan(self._text, entry.folder / "run", python, cores, updates)

    def _trained(self, entry: "Entry") -> Result:
        limit, name = 60.0 * self._minutes, entry.folder.name
        print(f"{name}: {self._pace:g} s to measure its speed ...", file=sys.stderr)
        pace = self._train(entry, ENDLESS, self._pace)
        updates = int(MARGIN * pace.speed * (limit - pace.start_seconds))
        if updates < 1:
            raise clock.RacerFailed(
                f"It needed {pace.start_seconds:.0f} s to start and then made {pace.speed:.2f} updates a "
                "second, too few for this race. Give it more time with --pace or --minutes."
            )
        print(f"{name}: {updates:,} updates ...", file=sys.stderr)
        trained = self._train(entry, updates, limit)
        if not trained.updates:
            raise clock.RacerFailed(f"It saved no checkpoint; its log is in {entry.folder}.")
        score = self._score(entry, trained.updates, "dev")
        print(f"{name}: {score.value:.1f} dev BLEU", file=sys.stderr)
        return Result(
            entry.conditions, trained.updates, trained.seconds / 60, score.value, score.signature
        )

    def _train(self, entry: "Entry", updates: int, seconds: float) -> clock.Run:
        plan = self._plan(entry, updates)
        shutil.rmtree(plan.folder, ignore_errors=True)
        plan.folder.mkdir()
        return clock.train(entry.racer, plan, seconds)

    def _score(self, entry: "Entry", updates: int, split: str) -> metrics.Measured:
        plan = self._plan(entry, updates)
        lines = clock.translate(entry.racer, plan, updates, split)
        return metrics.scores(lines, [self._text.lines(split, "en")], "en")["bleu"]


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """A run of a race.

    Attributes:
      racer: the racer, with the changes of the trial and the seed.
      trial: the number of the trial, from 1 on.
      folder: the folder of the run.
      conditions: those of its result.
      is_final: whether test text is translated too.
    """

    racer: Racer
    trial: int
    folder: Path
    conditions: Mapping[str, Any]
    is_final: bool = False

    @property
    def result(self) -> Result | None:
        return result.read(self.folder, self.conditions)

    @property
    def has_ended(self) -> bool:
        own = self.result
        return own is not None and not (self.is_final and own.test is None)


def race(arguments: argparse.Namespace) -> int:
    """Searches, trains and scores; returns the exit code."""
    if not arguments.corpus.is_dir():
        raise UserError(
            f"--corpus {arguments.corpus} is not a folder. Make the catalogues of this machine into a "
            "corpus with gshard-data harvest --out data/demo/corpus, or name a corpus of your own."
        )
    busy = environment.busy()
    folder = arguments.out / arguments.language
    with alone(folder):
        text = make_text(arguments.corpus, arguments.language, arguments.sentences, folder / "text")
        own = Race(arguments, text, folder)
        names = [name for name in arguments.racers if own.install(name)]
    while waiting := own.waiting(names):
        if not any(own.run(entry) for entry in waiting):
            time.sleep(WAIT_SECONDS)
    if not names:
        return 1
    trials, finals = ({n: results(of(n)) for n in names} for of in (own.trials, own.finals))
    pairs, dev, test = (len(text.lines(split, "en")) for split in ("train", "dev", "test"))
    summary = (
        f"{pairs:,} training pairs of {arguments.language}-en, {dev:,} dev and {test:,} test sentences, "
        f"{arguments.minutes:g} minutes, cores: {len(environment.cores())}, seeds: {arguments.seeds}.\n"
        f"sacreBLEU `{next(iter(finals.values()))[0].signature}`.\n\n{result.table(trials, finals)}"
    )
    figures = [
        Figure.of(name, "test BLEU", [own.test for own in runs if own.test is not None])
        for name, runs in finals.items()
    ]
    usual = (DEMO_CORPUS, "fr", 10.0, 500, 60.0)
    asked = (arguments.corpus, arguments.language, arguments.minutes, arguments.sentences)
    is_usual = (*asked, arguments.pace) == usual
    # A racer that fails has no score that counts.
    runs = [run for of in (trials, finals) for own_runs in of.values() for run in own_runs]
    is_whole = is_usual and len(names) == len(RACERS) and all(run.updates for run in runs)
    section = page.Section("race", summary, figures, arguments.seeds, is_whole)
    with alone(folder):
        page.publish(section, arguments.page, busy)
    return 0 if len(names) == len(arguments.racers) else 1


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Waits until no other process of the race is within such a block."""
    with files.reported_as(f"--out {folder.parent}"):
        folder.mkdir(parents=True, exist_ok=True)
    while True:
        with contextlib.suppress(InUseError), RunLock(folder):
            yield
            return
        time.sleep(WAIT_SECONDS)


def results(entries: Sequence[Entry]) -> list[Result]:
    return [own for entry in entries if (own := entry.result)]


def interpreter(racer: Racer) -> str:
    if racer.requirements is None:
        return sys.executable
    venv = BUILD / f"{racer.requirements.name.removesuffix('-requirements.txt')}-venv"
    return str(environment.peers_python(venv, racer.requirements))


if __name__ == "__main__":
    # A shell's background command ignores SIGINT, and the programs that it starts inherit this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
