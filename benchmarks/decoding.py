"""Measures decoding, in turns with Hugging Face transformers and CTranslate2.

    .venv/bin/python benchmarks/decoding.py                     # the table of docs/performance.md
    .venv/bin/python benchmarks/decoding.py --systems gshard    # this package alone
    .venv/bin/python benchmarks/decoding.py --first             # the first line of gshard-decode

Every system translates the same batch: 32 random sentences of 24 tokens with a beam of 4, and every
translation has exactly 32 tokens. The models have the same sizes and random weights: width 256, hidden
width 1,024, 4 + 4 layers, 8 heads, vocabulary 8,000. With experts, every second layer has 8, and a token
visits two of them. Each system is a process. The processes take turns, and each round has another order.
A process with several cores uses them together for each product, or divides the batch among them: two
devices of this package, or two translators of CTranslate2.

The experts of Hugging Face's NllbMoe are mended; harness/nllb_moe.py says how.

The first run installs the peers into build/benchmarks. If that is not possible, the benchmark says so and
measures this package alone. The machine must be quiet.
"""

import argparse
import dataclasses
import itertools
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from harness import environment, page
from harness.records import Figure
from harness.rounds import Limit, Measured, measure, median_text
from harness.start import BUILD, ROOT, has_peers, worker
from harness.turns import Worker
from translators import first_line
from translators.workload import Workload

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
} | {
    f"CTranslate2, dense, {precision}{DIVIDED * divides}": System(
        "ctranslate2_model", precision=precision, divides=divides
    )
    for divides in (False, True)
    for precision in ("float32", "bfloat16", "int8")
}


def main() -> None:
    arguments = parse()
    busy, limit = environment.busy(), page.limit_of(arguments)
    if arguments.first:
        section = first_line.measure(arguments.workdir, BUILD, limit)
    else:
        section = speed_section(arguments, limit)
    if arguments.tree or arguments.setting or arguments.workdir:
        section = dataclasses.replace(section, is_whole=False)
    page.publish(section, arguments.page, busy)


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
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
        help='measure this package also with a setting, as "Decode.beam = 2"',
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
        "--first", action="store_true", help="time gshard-decode to its first line, programs cached"
    )
    parser.add_argument("--workdir", type=Path, help="with --first: a run; default: trains one")
    page.add_flags(parser, rounds=7)
    return parser.parse_args()


def ours(arguments: argparse.Namespace) -> dict[str, System]:
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


def speed_section(arguments: argparse.Namespace, limit: Limit) -> page.Section:
    everything = ours(arguments) | PEERS
    wanted = {k for k in everything if any(text in k for text in arguments.systems)}
    if wanted & set(PEERS) and not has_peers():
        wanted -= set(PEERS)
    is_whole = {1, 2} <= set(arguments.processes)
    parts, figures, versions, rounds = [], [], {}, []
    for processes in arguments.processes:
        # A process with one core has nothing to divide.
        can_divide = len(environment.cores()) > processes
        possible = {k: v for k, v in everything.items() if can_divide or not v.divides}
        chosen = {k: v for k, v in possible.items() if k in wanted}
        measured = translate(chosen, processes, limit.part(1 / len(arguments.processes)))
        # A CPU without bfloat16 leaves the table whole.
        needed = {k for k, v in possible.items() if v.precision != "bfloat16"}
        is_whole &= needed <= set(measured.turns)
        threads = len(environment.cores()) // processes
        title = (
            f"{counted(processes, 'process', 'processes')}, "
            f"{counted(threads, 'thread', 'threads')} each"
        )
        table, own = rows(measured, 32 * 32 * processes, f" ({title})")
        parts.append(f"{title}:\n\n{table}")
        figures += own
        versions |= measured.versions()
        rounds += [measured.rounds]
    text = "\n".join(parts)
    return page.Section("decoding speed", text, figures, min(rounds), is_whole, versions)


def counted(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"


def translate(systems: dict[str, System], processes: int, limit: Limit) -> Measured:
    cores = environment.cores()
    share = len(cores) // processes
    parts = [cores[i * share : (i + 1) * share] for i in range(processes)]
    starts = {name: partial(start, name, s, parts) for name, s in systems.items()}
    return measure(starts, limit)


def start(name: str, system: System, parts: Sequence[tuple[int, ...]]) -> list[Worker]:
    workloads = [
        Workload(
            cores=cores,
            folder=str(BUILD / "decoding"),
            settings=system.settings,
            experts=system.experts,
            precision=system.precision,
            parts=len(cores) if system.divides else 1,
        )
        for cores in parts
    ]
    module = f"translators.{system.script}"
    return [worker(module, workload, name, system.tree) for workload in workloads]


def rows(measured: Measured, tokens: int, where: str) -> tuple[str, list[Figure]]:
    """Returns a table and its figures: medians with the interval from the slowest to the fastest turn."""
    lines: list[tuple[str, ...]] = [("", "tokens/s", "interval", "CPU seconds")]
    ratios_of, figures = [f"times {BASE}"], []
    for name, turns in measured.turns.items():
        speeds = [tokens / turn.seconds for turn in turns]
        cpu_seconds = statistics.median(turn.cpu_seconds for turn in turns)
        lines.append((name, *median_text(speeds, ",.0f"), f"{cpu_seconds:.2f}"))
        ratios = measured.times_as_fast(name, BASE) if BASE in measured.turns else []
        ratios_of += [f"{statistics.median(ratios):.2f}"] if ratios else []
        compared = BASE + where if ratios else ""
        figures.append(Figure.of(name + where, "tokens/s", speeds, compared, ratios))
    if BASE in measured.turns:
        lines = [(*line, ratio) for line, ratio in zip(lines, ratios_of, strict=True)]
    return page.table(lines), figures


if __name__ == "__main__":
    main()
