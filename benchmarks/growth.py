"""Measures how the time and the memory of a training step grow.

    .venv/bin/python benchmarks/growth.py                  # the section of docs/performance.md
    .venv/bin/python benchmarks/growth.py --axes experts

It changes one thing at a time: the experts, the size of a group, the length of a sentence, the layers,
the devices, and the processes among which the devices are divided. A batch always has 2,048 source and
2,048 target tokens. The base is a model of width 128 with 2 + 2 layers and vocabularies of 2,000. Every
second layer has experts of width 256. The variants of one axis take turns, and each is compared with the
first.

Memory is that of one device, as the compiler counts it: weights, moments, activations, gradients and
program.
"""

import argparse
import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from harness import environment, page
from harness.records import Figure
from harness.rounds import Limit, Measured, measure, median_text
from harness.start import BUILD, ROOT, free_port, worker
from harness.turns import Worker
from trainers.workload import Workload

from gshard_nmt.evaluation.report.figures import LIGHT, image, new_figure, paint

TOKENS = 2048
"""The tokens of a batch, on each side."""
BASE = {
    "experts": 8,
    "hidden_dim": 256,
    "model_dim": 128,
    "layers": 2,
    "heads": 4,
    "vocabulary": 2000,
    "steps": 2,
    "settings": ("Model.num_groups = 2",),
}


@dataclasses.dataclass(frozen=True)
class Axis:
    """One thing that grows.

    Attributes:
      title: what it is.
      variants: for each size, the fields of `Workload` that differ from `BASE`. The first is the base of
        the ratios.
    """

    title: str
    variants: Mapping[int, Mapping[str, Any]]


AXES = {
    "experts": Axis("experts", {n: {"experts": n} for n in (8, 32, 128, 512)}),
    "groups": Axis(
        "tokens of a group",
        {n: {"settings": (f"Model.group_size = {n}",)} for n in (128, 512, 2048)},
    ),
    "length": Axis(
        "tokens of a sentence", {n: {"length": n, "rows": TOKENS // n} for n in (32, 64, 128, 256)}
    ),
    "depth": Axis("layers of each stack", {n: {"layers": n} for n in (2, 4, 8)}),
    "devices": Axis(
        "virtual devices",
        {n: {"devices": n, "settings": ("Model.num_groups = 8",)} for n in (1, 2, 4, 8)},
    ),
    "processes": Axis(
        "processes, 4 devices",
        {
            n: {"devices": 4, "processes": n, "settings": ("Model.num_groups = 4",)}
            for n in (1, 2, 4)
        },
    ),
}


def main() -> None:
    """Prints a table for each axis, and writes them and a figure to docs/performance.md."""
    arguments = parse()
    busy, limit = environment.busy(), page.limit_of(arguments)
    texts, figures, results = [], [], {}
    for name in arguments.axes:
        axis = AXES[name]
        measured = grow(axis, limit.part(1 / len(arguments.axes)))
        results[name] = measured
        table, own = rows(axis, measured)
        texts.append(table)
        figures += own
    has_all = all(set(m.turns) == set(map(str, AXES[k].variants)) for k, m in results.items())
    section = page.Section(
        "growth",
        "![Time and memory of a step as it grows](images/growth.svg)\n\n" + "\n".join(texts),
        figures,
        min(measured.rounds for measured in results.values()),
        is_whole=has_all and set(results) == set(AXES),
        images={"growth.svg": image(lambda: draw(results), "svg")},
    )
    page.publish(section, arguments.page, busy)


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES), help="default: all")
    page.add_flags(parser, rounds=9)
    return parser.parse_args()


def grow(axis: Axis, limit: Limit) -> Measured:
    """Lets the variants of an axis take turns. Their names are their sizes."""
    return measure(
        {
            str(size): partial(start, f"{axis.title} {size}", fields)
            for size, fields in axis.variants.items()
        },
        limit,
    )


def start(name: str, fields: Mapping[str, Any]) -> list[Worker]:
    """Starts the workers of a variant. Each process has its share of the cores, or one core."""
    cores = environment.cores()
    whole = Workload(
        **{"cores": cores, "folder": str(BUILD / "growth")} | BASE | dict(fields),
        port=free_port(),
    )
    count = whole.processes
    share = max(1, len(cores) // count)
    workers = []
    for index in range(count):
        first = index * share % len(cores)
        own = dataclasses.replace(whole, process=index, cores=cores[first : first + share])
        workers.append(worker("trainers.ours", own, f"{name} process {index}", ROOT))
    return workers


def rows(axis: Axis, measured: Measured) -> tuple[str, list[Figure]]:
    """Returns the table of an axis, and its figures."""
    head = ("step, ms", "interval", "times the first", "interval", "GFLOP", "MiB of a device")
    lines, figures = [(axis.title, *head)], []
    base = next(iter(measured.turns))
    for name, turns in measured.turns.items():
        milliseconds = [turn.seconds / BASE["steps"] * 1e3 for turn in turns]
        times = measured.times_as_fast(base, name)
        facts = measured.facts[name]
        lines.append(
            (
                f"{int(name):,}",
                *median_text(milliseconds, ",.0f"),
                *median_text(times, ".2f"),
                f"{facts['gflop'] / BASE['steps']:.1f}",
                f"{facts['memory'] / 2**20:,.0f}",
            )
        )
        named = f"{axis.title}: {name}"
        figures.append(Figure.of(named, "ms", milliseconds, f"{axis.title}: {base}", times))
        figures.append(Figure.of(f"{named}, memory", "bytes", [facts["memory"]]))
    return page.table(lines), figures


def draw(results: Mapping[str, Measured]) -> Any:
    """Returns the figure: time and memory relative to the first size of each axis."""
    figure = new_figure((9, 5), LIGHT)
    grid = figure.subplots(2, 3, sharey=True).flat
    for panel, (name, measured) in zip(grid, results.items(), strict=False):
        sizes = list(map(int, measured.turns))
        base = next(iter(measured.turns))
        for label, values, color in (
            ("time", [measured.times_as_fast(base, k) for k in measured.turns], LIGHT.systems[0]),
            ("memory", memory_ratios(measured), LIGHT.systems[1]),
        ):
            middle = [statistics.median(v) for v in values]
            panel.plot(sizes, middle, "o-", color=color, label=label, ms=4)
            low, high = ([f(v) for v in values] for f in (min, max))
            panel.vlines(sizes, low, high, color=color)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
        panel.set_xlabel(AXES[name].title)
        panel.yaxis.set_major_formatter("{x:g}")
    figure.axes[0].legend(frameon=False)
    figure.supylabel("times the first")
    paint(figure, LIGHT)
    return figure


def memory_ratios(measured: Measured) -> list[Sequence[float]]:
    """Returns the memory of a device in each variant, times that of the first, as lists of one value."""
    bytes_of = [facts["memory"] for facts in measured.facts.values()]
    return [[value / bytes_of[0]] for value in bytes_of]


if __name__ == "__main__":
    main()
