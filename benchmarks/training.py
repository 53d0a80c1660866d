"""Measures training steps, in turns with Hugging Face transformers on PyTorch.

    .venv/bin/python benchmarks/training.py                     # the tables of docs/performance.md
    .venv/bin/python benchmarks/training.py --systems own       # this package alone

Every system trains on the same batch: 32 rows of 64 source and 64 target tokens, random, without padding.
The models have the same sizes: width 256, hidden width 1,024, 4 + 4 layers, 8 heads, vocabulary 8,000.
With experts, every second layer has 8, and a token visits two of them. Dropout is 0.1 on both sides, and
the optimizer is Adafactor. Each system is a process. They take turns, and each round has another order.

The last table compares this package with itself: 8 and 64 experts with a dense model of equal work,
dropout, and devices. The first run installs the peers into build/benchmarks. If that is not possible, the
benchmark says so and measures this package alone. The machine must be quiet.
"""

import argparse
import dataclasses
import statistics
from collections.abc import Callable, Mapping
from functools import partial
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
PEER = "trainers.huggingface"
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
    return System("trainers.ours", {"devices": devices} | workload, base)


def peer(base: str, **workload: Any) -> System:
    return System(PEER, workload, base)


WAYS = ("compiled", "weights", "products")
"""The ways of PyTorch to bfloat16 beside autocast; trainers/huggingface.py explains them."""
PEAK = "largest products"
GROUPS = {
    "8 experts, float32": {
        "gshard-nmt": ours(NLLB, **EXPERTS),
        "gshard-nmt, 1 device": ours(NLLB, devices=1, **EXPERTS),
        NLLB: peer(NLLB, **EXPERTS),
        f"{NLLB}, compiled": peer(NLLB, variant="compiled", **EXPERTS),
        f"{NLLB}, as released": peer(NLLB, variant="released", **EXPERTS),
        PEAK: System("trainers.peak", {}),
    },
    "dense, float32": {
        "gshard-nmt": ours(M2M),
        "gshard-nmt, 1 device": ours(M2M, devices=1),
        M2M: peer(M2M),
        f"{M2M}, compiled": peer(M2M, variant="compiled"),
        PEAK: System("trainers.peak", {}),
    },
    "8 experts, bfloat16": {
        "gshard-nmt": ours(NLLB, **EXPERTS, **LOW),
        NLLB: peer(NLLB, **EXPERTS, **LOW),
        **{f"{NLLB}, {v}": peer(NLLB, variant=v, **EXPERTS, **LOW) for v in WAYS},
        PEAK: System("trainers.peak", LOW),
    },
    "dense, bfloat16": {
        "gshard-nmt": ours(M2M, **LOW),
        M2M: peer(M2M, **LOW),
        # With all values in bfloat16, its loss does not fall.
        **{f"{M2M}, {v}": peer(M2M, variant=v, **LOW) for v in WAYS if v != "weights"},
        PEAK: System("trainers.peak", LOW),
    },
}
"""The systems of the first tables. Each group takes turns by itself, because a process may take 2 GB."""

WHOLE, MANY, DENSE = "8 experts", "64 experts", "dense, hidden width 1,536"
UNDROPPED, ALONE, SPLIT = (f"{WHOLE}, {word}" for word in ("no dropout", "1 device", "8 devices"))
GROWING = {n: f"{2 * n} experts, {4 * n} rows, devices: {n}" for n in (1, 2, 4, 8)}
OWN = {
    WHOLE: ours(**EXPERTS, **LOW),
    MANY: ours(experts=64, **LOW),
    DENSE: ours(hidden_dim=1536, **LOW),
    UNDROPPED: ours(dropout=0.0, **EXPERTS, **LOW),
    ALONE: ours(devices=1, **EXPERTS, **LOW),
    SPLIT: ours(devices=8, **EXPERTS, **LOW),
    **{k: ours(devices=n, experts=2 * n, rows=4 * n, **LOW) for n, k in GROWING.items()},
}
"""The systems of the last table, with products in bfloat16. The dense model has the products of the
models with experts: a token visits two experts of width 1,024 in half of the layers, and 1,536 is the
mean of 2,048 and 1,024. The last four grow as in GShard's Table 3: experts with the devices."""


def main() -> None:
    arguments = parse()
    busy, limit = environment.busy(), page.limit_of(arguments)
    has_all_peers = arguments.systems == "own" or has_peers()
    parts, figures, results = [], [], []
    is_whole = arguments.systems == "all"
    share = {"all": SHARE_OF_PEERS, "peers": 1.0, "own": 0.0}[arguments.systems]
    for group, systems in GROUPS.items() if arguments.systems != "own" else ():
        chosen = {k: s for k, s in systems.items() if has_all_peers or s.module != PEER}
        measured = train(group, chosen, arguments.steps, limit.part(share / len(GROUPS)))
        table, own = speeds(group, measured, arguments.steps)
        parts.append(f"{group}:\n\n{table}")
        print(sizes(measured))
        figures += own
        results.append(measured)
        # A peer that cannot be compiled leaves the table whole.
        is_whole &= {k for k in systems if not k.endswith("compiled")} <= set(measured.turns)
    if arguments.systems != "peers":
        results.append(train("own", OWN, arguments.steps, limit.part(1 - share)))
        table, own = ratios(results[-1])
        parts.append(table)
        figures += own
        is_whole &= set(OWN) <= set(results[-1].turns)
    section = page.Section(
        "training",
        "\n\n".join(parts),
        figures,
        min(measured.rounds for measured in results),
        is_whole,
        {k: v for measured in results for k, v in measured.versions().items()},
    )
    page.publish(section, arguments.page, busy)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--systems",
        choices=("all", "peers", "own"),
        default="all",
        help="peers: only the comparison with PyTorch; own: only the last table",
    )
    parser.add_argument("--steps", type=int, default=1, help="training steps of a turn; default 1")
    page.add_flags(parser, rounds=9)
    return parser.parse_args()


def train(group: str, systems: Mapping[str, System], steps: int, limit: Limit) -> Measured:
    return measure({k: partial(start, f"{group} {k}", v, steps) for k, v in systems.items()}, limit)


def start(name: str, system: System, steps: int) -> list[Worker]:
    fields = {"steps": steps, "folder": str(BUILD / "training")} | dict(system.workload)
    workload = Workload(cores=environment.cores(), **fields)
    return [worker(system.module, workload, name, None if system.module == PEER else ROOT)]


def speeds(group: str, measured: Measured, steps: int) -> tuple[str, list[Figure]]:
    places = Workload(cores=(), steps=steps).places
    lines = [
        ("", "places/s", "interval", "times the peer", "interval", "busy cores", "of the peak")
    ]
    figures = []
    for name, system in GROUPS[group].items():
        if name not in measured.turns or not system.base:
            continue
        values = [places / seconds for seconds in measured.seconds(name)]
        base = system.base if system.base in measured.turns else ""
        times = measured.times_as_fast(name, base) if base else []
        busy = statistics.median(t.cpu_seconds / t.seconds for t in measured.turns[name])
        cells = median_text(times, ".2f") if times else ("", "")
        share = share_of_peak(measured, name)
        lines.append((name, *median_text(values, ",.0f"), *cells, f"{busy:.2f}", share))
        compared = f"{group}: {base}" if base else ""
        figures.append(Figure.of(f"{group}: {name}", "places/s", values, compared, times))
    return page.table(lines), figures


def share_of_peak(measured: Measured, name: str) -> str:
    if PEAK not in measured.turns or "gflop" not in measured.facts[name]:
        return ""
    pairs = zip(measured.seconds(name), measured.seconds(PEAK), strict=True)
    work = measured.facts[name]["gflop"] / measured.facts[PEAK]["gflop"]
    return f"{statistics.median(work * whole / seconds for seconds, whole in pairs):.0%}"


def sizes(measured: Measured) -> str:
    """Returns the weights of each system, and its products in a turn."""
    texts = []
    for name, facts in measured.facts.items():
        if "losses" in facts:
            weights = facts["parameters"] - facts["embeddings"]
            products = f", {facts['gflop']:.0f} GFLOP" if "gflop" in facts else ""
            texts.append(f"{name} {weights / 1e6:.1f} million{products}")
    if PEAK in measured.turns:
        rates = [measured.facts[PEAK]["gflop"] / seconds for seconds in measured.seconds(PEAK)]
        middle, interval = median_text(rates, ",.0f")
        texts.append(f"{PEAK} {middle} GFLOP/s ({interval})")
    return f"Weights without embeddings, products of a turn: {'; '.join(texts)}.\n"


def ratios(measured: Measured) -> tuple[str, list[Figure]]:
    """Returns the last table and its figures."""

    def cost(name: str, base: str) -> list[float]:
        return measured.times_as_fast(base, name)

    def cpu(name: str) -> list[float]:
        rows = OWN[name].workload.get("rows", 1)
        return [turn.cpu_seconds / rows for turn in measured.turns[name]]

    def busy(name: str, _: str) -> list[float]:
        return [turn.cpu_seconds / turn.seconds for turn in measured.turns[name]]

    def growth(name: str, base: str) -> list[float]:
        return [large / small for large, small in zip(cpu(name), cpu(base), strict=True)]

    rows: list[tuple[str, str, Callable[[str, str], list[float]], str, str]] = [
        ("time of 8 experts, times dense", "at most 1.05", cost, WHOLE, DENSE),
        ("time of 64 experts, times dense", "at most 1.15", cost, MANY, DENSE),
        ("time of dropout, times none", "at most 1.05", cost, WHOLE, UNDROPPED),
        ("speed of 8 devices, times 1", "at least 0.9", cost, ALONE, SPLIT),
        ("CPU over wall time, 2 devices", "at least 1.85", busy, WHOLE, WHOLE),
    ]
    for n in (2, 4, 8):
        name = f"CPU time of a token, {n} devices and {2 * n} experts, times 1 and 2"
        rows.append((name, "", growth, GROWING[n], GROWING[1]))
    lines, figures = [("", "median", "interval", "target")], []
    for name, target, values_of, system, base in rows:
        if {system, base} <= set(measured.turns):
            values = values_of(system, base)
            lines.append((name, *median_text(values, ".2f"), target))
            figures.append(Figure.of(name, "ratio", values, "", values))
    return page.table(lines), figures


if __name__ == "__main__":
    main()
