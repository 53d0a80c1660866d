"""Measures decoding, in turns with Hugging Face transformers and CTranslate2.

    .venv/bin/python benchmarks/decoding.py                     # the table of docs/performance.md
    .venv/bin/python benchmarks/decoding.py --systems gshard    # this package alone
    .venv/bin/python benchmarks/decoding.py --experts 8 32      # 128 sentences, 8 and 32 experts
    .venv/bin/python benchmarks/decoding.py --first             # the first line of gshard-decode

Every system translates the same batch: 32 random sentences of 24 tokens with a beam of 4, and every
translation has exactly 32 tokens. The models have the same sizes and random weights: width 256, hidden
width 1,024, 4 + 4 layers, 8 heads, vocabulary 8,000. With experts, every second layer has 8, and a token
visits two of them. Each system is a process. The processes take turns, and each round has another order.
A process with several cores uses them together for each product, or divides the batch among them: two
devices of this package, or two translators of CTranslate2.

The first run installs the peers into build/benchmarks. If that is not possible, the benchmark says so and
measures this package alone. The machine must be quiet.
"""

import argparse
import contextlib
import dataclasses
import itertools
import os
import re
import statistics
import sys
import time
from pathlib import Path

from translators import environment, first_line, page
from translators.turns import Translating, Turn
from translators.workload import Workload

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "benchmarks"
SCRIPTS = Path(__file__).parent / "translators"
PAUSE = 0.3
"""Seconds between two turns, in which the threads of the last system go to sleep."""
BASE = "CTranslate2, dense, float32"
DIVIDED = ", divided"
"""Ends the name of a system that divides the batch among the cores of its process."""
LOW = "Decode.precision = 'bfloat16'"


@dataclasses.dataclass(frozen=True)
class System:
    """A translator with its settings.

    Attributes:
      script: the name of its program in translators/.
      tree: the checkout whose package it uses; None for a peer.
      divides: whether a process divides the batch among its cores.
    """

    script: str
    experts: int = 0
    precision: str = "float32"
    settings: tuple[str, ...] = ()
    tree: Path | None = None
    divides: bool = False


PEERS = {
    "Hugging Face NllbMoe, 8 experts": System("huggingface", experts=8),
    "Hugging Face M2M100, dense": System("huggingface"),
    BASE: System("ctranslate2_model"),
    "CTranslate2, dense, int8": System("ctranslate2_model", precision="int8"),
    f"{BASE}{DIVIDED}": System("ctranslate2_model", divides=True),
    f"CTranslate2, dense, int8{DIVIDED}": System(
        "ctranslate2_model", precision="int8", divides=True
    ),
}


def main() -> int:
    """Prints a table, and writes it to docs/performance.md if it is whole."""
    arguments = parse()
    busy = environment.busy()
    is_whole = not (arguments.tree or arguments.setting or arguments.workdir)
    if arguments.first:
        section, text = "first line", first_line.measure(arguments, BUILD)
    elif arguments.experts:
        section, text = "experts", experts_table(arguments)
    else:
        section = "decoding speed"
        text, has_all = speed_table(arguments)
        is_whole &= has_all
    page.publish(section, text, arguments, busy, is_whole)
    return 0


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=7, help="turns of each system; default 7")
    parser.add_argument(
        "--systems",
        nargs="+",
        default=[""],
        metavar="TEXT",
        help="measure only systems whose name has one of these texts, as gshard or dense",
    )
    parser.add_argument(
        "--processes",
        type=int,
        nargs="+",
        default=[1, 2],
        metavar="N",
        help="divide the cores among N processes, each with a batch of its own; default 1 2",
    )
    parser.add_argument(
        "--setting",
        action="append",
        default=[],
        metavar="BINDING",
        help="measure this package also with a setting, as \"Decode.precision = 'int8'\"",
    )
    parser.add_argument(
        "--tree",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="measure also the package of another checkout, to compare two versions in turns",
    )
    parser.add_argument(
        "--experts",
        type=int,
        nargs="+",
        metavar="E",
        help="compare numbers of experts, with 128 sentences; this package alone",
    )
    parser.add_argument(
        "--first", action="store_true", help="time gshard-decode to its first line, programs cached"
    )
    parser.add_argument("--workdir", type=Path, help="with --first: a run; default: trains one")
    page.add_flag(parser)
    return parser.parse_args()


def ours(arguments: argparse.Namespace) -> dict[str, System]:
    """Returns this package with and without experts, with each setting, and from each checkout."""
    systems = {}
    for tree in [ROOT, *arguments.tree]:
        for setting, divides in itertools.product(["", LOW, *arguments.setting], (False, True)):
            for kind, experts in (("8 experts", 8), ("dense", 0)):
                name = f"gshard-nmt, {kind}"
                name += ", bfloat16" if setting == LOW else f", {setting}" if setting else ""
                name += f" ({tree})" if tree != ROOT else ""
                name += DIVIDED if divides else ""
                settings = (setting,) if setting else ()
                systems[name] = System(
                    "ours", experts, settings=settings, tree=tree, divides=divides
                )
    return systems


def peers() -> dict[str, System]:
    """Returns the peers, or none if they cannot be installed."""
    try:
        environment.peers_python(BUILD / "decoding-venv")
    except environment.NoPeers as problem:
        print(f"Without Hugging Face and CTranslate2. pip said:\n{problem}", file=sys.stderr)
        return {}
    return PEERS


def speed_table(arguments: argparse.Namespace) -> tuple[str, bool]:
    """Measures all systems with each number of processes.

    Returns:
      The tables as Markdown, and whether they have every system, in one process and in two.
    """
    candidates = ours(arguments) | PEERS
    wanted = [name for name in candidates if any(text in name for text in arguments.systems)]
    if any(name in PEERS for name in wanted):
        candidates = ours(arguments) | peers()
    systems = {name: candidates[name] for name in wanted if name in candidates}
    is_whole = {1, 2} <= set(arguments.processes)
    parts, facts = [], {}
    for processes in arguments.processes:
        # A process with one core has nothing to divide.
        can_divide = len(environment.cores()) > processes
        expected = {
            name: system
            for name, system in (ours(arguments) | PEERS).items()
            if can_divide or not system.divides
        }
        chosen = {name: system for name, system in systems.items() if name in expected}
        turns, versions = measure(chosen, processes, arguments.rounds, 32)
        facts |= versions
        is_whole &= set(expected) <= set(turns)
        threads = len(environment.cores()) // processes
        title = (
            f"{counted(processes, 'process', 'processes')}, "
            f"{counted(threads, 'thread', 'threads')} each:"
        )
        parts.append(f"{title}\n\n{rows(turns, 32 * 32 * processes, BASE)}")
    versions = ", ".join(f"{name} {version}" for name, version in sorted(facts.items()))
    return "\n".join([*parts, f"Versions: {versions}."]), is_whole


def experts_table(arguments: argparse.Namespace) -> str:
    """Measures several numbers of experts; returns the table as Markdown."""
    systems = {
        f"{experts} experts{f' ({tree})' if tree != ROOT else ''}": System(
            "ours", experts, settings=tuple(arguments.setting), tree=tree
        )
        for experts in arguments.experts
        for tree in [ROOT, *arguments.tree]
    }
    turns, _ = measure(systems, 1, arguments.rounds, 128)
    return rows(turns, 128 * 32, next(iter(systems)))


def counted(number: int, singular: str, plural: str) -> str:
    """Returns a number with its noun."""
    return f"{number} {singular if number == 1 else plural}"


def measure(
    systems: dict[str, System], processes: int, rounds: int, sentences: int
) -> tuple[dict[str, list[Turn]], dict[str, str]]:
    """Lets the systems take turns.

    Args:
      systems: the systems by name.
      processes: the number of processes among which each system divides the cores.
      rounds: the number of turns of each system.
      sentences: the number of sentences of a batch.

    Returns:
      The turns of each system, and the versions of the libraries. The seconds of a turn are those of its
      slowest process, and its CPU seconds are the mean of its processes. A system that cannot start
      is left out, with a message on stderr.
    """
    cores = environment.cores()
    share = len(cores) // processes
    facts: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        groups: dict[str, list[Translating]] = {}
        for name, system in systems.items():
            print(
                f"Starting {name}, {counted(processes, 'process', 'processes')} ...",
                file=sys.stderr,
            )
            try:
                group = [
                    stack.enter_context(
                        start(name, system, cores[i * share : (i + 1) * share], sentences)
                    )
                    for i in range(processes)
                ]
            except RuntimeError as problem:
                print(f"{name} is left out. {problem}", file=sys.stderr)
                continue
            groups[name] = group
            facts |= group[0].facts
        turns: dict[str, list[Turn]] = {name: [] for name in groups}
        order = list(groups)
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            for name in order[number % len(order) :] + order[: number % len(order)]:
                time.sleep(PAUSE)
                turns[name].append(together(groups[name]))
    return turns, facts


def together(group: list[Translating]) -> Turn:
    """Lets the processes of a system translate at the same time; returns the turn of the system."""
    for process in group:
        process.ask()
    turns = [process.turn() for process in group]
    return Turn(max(t.seconds for t in turns), statistics.mean(t.cpu_seconds for t in turns))


def start(name: str, system: System, cores: tuple[int, ...], sentences: int) -> Translating:
    """Starts a process of a system on some cores."""
    kept = BUILD / "decoding"
    kept.mkdir(parents=True, exist_ok=True)
    settings = system.experts, sentences, cores, system.precision, system.settings, str(kept)
    workload = Workload(*settings, parts=len(cores) if system.divides else 1)
    python = str(BUILD / "decoding-venv" / "bin" / "python")
    variables = os.environ | {"OMP_NUM_THREADS": str(len(cores))}
    if system.tree:
        python = sys.executable
        variables["PYTHONPATH"] = str(system.tree.resolve())
    script = SCRIPTS / f"{system.script}.py"
    log = kept / f"{re.sub(r'[^A-Za-z0-9]+', '-', name)}-{cores[0]}.log"
    return Translating([python, str(script), workload.as_argument()], variables, log)


def rows(turns: dict[str, list[Turn]], tokens: int, base: str) -> str:
    """Returns a table: medians with the interval from the slowest to the fastest turn.

    Args:
      turns: the turns of each system.
      tokens: the target tokens of a turn.
      base: the system that the last column compares with: the median of the ratios of all rounds.
    """
    lines: list[tuple[str, ...]] = [("", "tokens/s", "interval", "CPU seconds")]
    for name, taken in turns.items():
        speeds = [tokens / turn.seconds for turn in taken]
        speed = f"{statistics.median(speeds):,.0f}"
        interval = f"{min(speeds):,.0f} to {max(speeds):,.0f}"
        cpu_seconds = statistics.median(turn.cpu_seconds for turn in taken)
        lines.append((name, speed, interval, f"{cpu_seconds:.2f}"))
    if base in turns:
        ratios = [f"times {base}"]
        for taken in turns.values():
            pairs = zip(turns[base], taken, strict=True)
            ratios.append(f"{statistics.median(b.seconds / t.seconds for b, t in pairs):.2f}")
        lines = [(*line, ratio) for line, ratio in zip(lines, ratios, strict=True)]
    return page.table(lines)


if __name__ == "__main__":
    sys.exit(main())
