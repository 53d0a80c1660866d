"""Measures training steps, in turns with Hugging Face transformers on PyTorch.

    .venv/bin/python benchmarks/training.py                     # the tables of docs/performance.md
    .venv/bin/python benchmarks/training.py --systems NllbMoe "8 experts"

Every system trains on the same batch: 32 rows of 64 source and 64 target tokens, random, without padding.
The models have the same sizes: width 256, hidden width 1,024, 4 + 4 layers, 8 heads, vocabulary 8,000.
With experts, every second layer has 8, and a token visits two of them. Dropout is 0.1 on both sides, and
the optimizer is Adafactor. Each system is a process. They take turns, and each round has another order.

The second table compares this package with itself: experts with a dense model of equal work, dropout, and
devices. The first run installs the peers into build/benchmarks. If that is not possible, the benchmark
says so and measures this package alone. The machine must be quiet.
"""

import argparse
import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness import environment, page
from harness.records import Figure
from harness.rounds import Limit, Measured, measure, median_text
from harness.start import BUILD, ROOT, has_peers, worker
from harness.turns import Worker
from trainers.workload import Workload

SHARE_OF_PEERS = 0.65
"""The share of the time that the comparison with the peers has."""
LOW = {"precision": "bfloat16"}
EXPERTS = {"experts": 8}
NLLB, M2M = "Hugging Face NllbMoe", "Hugging Face M2M100"


@dataclasses.dataclass(frozen=True)
class System:
    """A trainer and what it trains.

    Attributes:
      module: the module that its worker runs.
      workload: the fields of `Workload` that differ from the defaults.
      base: the system that it is compared with; "" if there is none.
    """

    module: str
    workload: Mapping[str, Any]
    base: str = ""


def ours(base: str = "", devices: int = 2, **workload: Any) -> System:
    """Returns this package as a trainer."""
    return System("trainers.ours", {"devices": devices} | workload, base)


def peer(base: str, **workload: Any) -> System:
    """Returns Hugging Face transformers as a trainer."""
    return System("trainers.huggingface", workload, base)


PEAK, LOW_PEAK = "largest products", "largest products, bfloat16"
COMPARED = {
    "gshard-nmt, 8 experts": ours(NLLB, **EXPERTS),
    "gshard-nmt, 8 experts, 1 device": ours(NLLB, devices=1, **EXPERTS),
    NLLB: peer(NLLB, **EXPERTS),
    f"{NLLB}, compiled": peer(NLLB, variant="compiled", **EXPERTS),
    f"{NLLB}, as released": peer(NLLB, variant="released", **EXPERTS),
    "gshard-nmt, dense": ours(M2M),
    "gshard-nmt, dense, 1 device": ours(M2M, devices=1),
    M2M: peer(M2M),
    f"{M2M}, compiled": peer(M2M, variant="compiled"),
    "gshard-nmt, 8 experts, bfloat16": ours(f"{NLLB}, bfloat16", **EXPERTS, **LOW),
    f"{NLLB}, bfloat16": peer(f"{NLLB}, bfloat16", **EXPERTS, **LOW),
    "gshard-nmt, dense, bfloat16": ours(f"{M2M}, bfloat16", **LOW),
    f"{M2M}, bfloat16": peer(f"{M2M}, bfloat16", **LOW),
    PEAK: System("trainers.peak", {}),
    LOW_PEAK: System("trainers.peak", LOW),
}
"""The systems of the first table. Those of other teams have "Hugging Face" in their names."""

WHOLE = "8 experts"
OWN = {
    WHOLE: ours(**EXPERTS),
    "dense, hidden width 1,536": ours(hidden_dim=1536),
    "8 experts, no dropout": ours(dropout=0.0, **EXPERTS),
    "8 experts, 1 device": ours(devices=1, **EXPERTS),
    "8 experts, 8 devices": ours(devices=8, **EXPERTS),
}
"""The systems of the second table. The dense model has the products of the model with experts: a token
visits two experts of width 1,024 in half of the layers, and 1,536 is the mean of 2,048 and 1,024."""


def main() -> None:
    """Prints two tables, and writes them to docs/performance.md if they are whole."""
    arguments = parse()
    busy, limit = environment.busy(), page.limit_of(arguments)
    compared, own = (chosen(systems, arguments.systems) for systems in (COMPARED, OWN))
    if any(s.module == "trainers.huggingface" for s in compared.values()) and not has_peers():
        compared = {k: s for k, s in compared.items() if s.module != "trainers.huggingface"}
    peers = train(compared, arguments.steps, limit.part(SHARE_OF_PEERS))
    itself = train(own, arguments.steps, limit.part(1 - SHARE_OF_PEERS))
    first, first_figures = speeds(peers, arguments.steps)
    second, second_figures = ratios(itself)
    text = f"{first}\n{sizes(peers)}\n\n{second}"
    # A peer that cannot be compiled leaves the table whole.
    needed = {k for k in COMPARED if not k.endswith("compiled")} | set(OWN)
    is_whole = needed <= set(peers.turns) | set(itself.turns)
    section = page.Section(
        "training",
        text,
        first_figures + second_figures,
        min(m.rounds for m in (peers, itself)),
        is_whole,
        peers.versions() | itself.versions(),
    )
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
    parser.add_argument("--steps", type=int, default=1, help="training steps of a turn; default 1")
    page.add_flags(parser, rounds=9)
    return parser.parse_args()


def chosen(systems: Mapping[str, System], texts: Sequence[str]) -> dict[str, System]:
    """Returns the systems whose name has one of some texts."""
    return {k: v for k, v in systems.items() if any(text in k for text in texts)}


def train(systems: Mapping[str, System], steps: int, limit: Limit) -> Measured:
    """Lets systems take turns of this number of training steps."""
    return measure({k: starter(k, v, steps) for k, v in systems.items()}, limit)


def starter(name: str, system: System, steps: int) -> Callable[[], list[Worker]]:
    """Returns the function that starts the worker of a system, on all cores."""
    workload = Workload(
        cores=environment.cores(),
        folder=str(BUILD / "training"),
        **{"steps": steps} | dict(system.workload),
    )
    tree = None if system.module == "trainers.huggingface" else ROOT
    return lambda: [worker(system.module, workload, name, tree)]


def speeds(measured: Measured, steps: int) -> tuple[str, list[Figure]]:
    """Returns the first table and its figures."""
    workload = Workload(cores=(), steps=steps)
    lines = [
        ("", "places/s", "interval", "times the peer", "interval", "busy cores", "of the peak")
    ]
    figures = []
    for name, system in COMPARED.items():
        if name not in measured.turns or not system.base:
            continue
        values = [workload.places / seconds for seconds in measured.seconds(name)]
        base = system.base if system.base in measured.turns else ""
        times = measured.times_as_fast(name, base) if base else []
        busy = statistics.median(t.cpu_seconds / t.seconds for t in measured.turns[name])
        cells = median_text(times, ".2f") if times else ("", "")
        share = share_of_peak(measured, name)
        lines.append((name, *median_text(values, ",.0f"), *cells, f"{busy:.2f}", share))
        figures.append(Figure.of(name, "places/s", values, base, times))
    return page.table(lines), figures


def share_of_peak(measured: Measured, name: str) -> str:
    """Returns the speed of a system's matrix products, as a share of the largest products' speed."""
    peak = LOW_PEAK if name.endswith("bfloat16") else PEAK
    if peak not in measured.turns or "gflop" not in measured.facts[name]:
        return ""
    pairs = zip(measured.seconds(name), measured.seconds(peak), strict=True)
    work = measured.facts[name]["gflop"] / measured.facts[peak]["gflop"]
    return f"{statistics.median(work * whole / seconds for seconds, whole in pairs):.0%}"


def sizes(measured: Measured) -> str:
    """Returns the sentences that show that the systems do the same work, and the peak."""
    texts = []
    for name, facts in measured.facts.items():
        if "losses" in facts:
            weights = facts["parameters"] - facts["embeddings"]
            products = (
                f", {facts['gflop']:.0f} GFLOP of products in a turn" if "gflop" in facts else ""
            )
            first, last = facts["losses"][0], facts["losses"][-1]
            texts.append(
                f"- {name}: {facts['parameters'] / 1e6:.1f} million weights, "
                f"{weights / 1e6:.1f} million without embeddings{products}; the loss went from "
                f"{first:.2f} to {last:.2f} in the warm-up."
            )
    for name in (PEAK, LOW_PEAK):
        if name in measured.turns:
            rates = [measured.facts[name]["gflop"] / s for s in measured.seconds(name)]
            middle, interval = median_text(rates, ",.0f")
            texts.append(f"- {name}: {middle} GFLOP/s ({interval}).")
    return "\n".join(texts)


def ratios(measured: Measured) -> tuple[str, list[Figure]]:
    """Returns the second table and its figures."""

    def cost(name: str, base: str) -> list[float]:
        return measured.times_as_fast(base, name)

    def busy(name: str) -> list[float]:
        return [turn.cpu_seconds / turn.seconds for turn in measured.turns[name]]

    one, eight = "8 experts, 1 device", "8 experts, 8 devices"
    dense, without = "dense, hidden width 1,536", "8 experts, no dropout"
    rows: list[tuple[str, str, set[str], Callable[[], list[float]]]] = [
        (
            "time of experts, times dense",
            "at most 1.10",
            {WHOLE, dense},
            lambda: cost(WHOLE, dense),
        ),
        (
            "time of dropout, times none",
            "at most 1.05",
            {WHOLE, without},
            lambda: cost(WHOLE, without),
        ),
        ("speed of 8 devices, times 1", "at least 0.85", {one, eight}, lambda: cost(one, eight)),
        ("CPU over wall time, 2 devices", "at least 1.85", {WHOLE}, lambda: busy(WHOLE)),
    ]
    lines, figures = [("", "median", "interval", "target")], []
    for name, target, needed, values_of in rows:
        if needed <= set(measured.turns):
            values = values_of()
            lines.append((name, *median_text(values, ".2f"), target))
            figures.append(Figure.of(name, "ratio", values, "", values))
    return page.table(lines), figures


if __name__ == "__main__":
    main()
