"""Measures the compile time for 8 and for 2,048 TPU v3 cores.

    make tpu && .venv/bin/python benchmarks/compile_time.py

gshard-inspect lowers and compiles MoE(36L) with one expert and 16 rows on each core, each time in a new
process. The two machines alternate, so that other work on this computer slows down both. A round takes
about 2 minutes on two cores.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from harness import environment, page
from harness.records import Figure
from harness.rounds import limit_text, median_text

TOPOLOGIES = ("v3:2x2", "v3:32x32")
KEYS = {
    "compile_seconds": "s",
    "compile_cpu_seconds": "CPU s",
    "program_instructions": "instructions",
}


def compile_for(topology: str, folder: pathlib.Path) -> dict:
    file = folder / "figures.json"
    flags = [
        "--config=moe_2048e_36l",
        "--scale_with_devices",
        f"--topology={topology}",
        f"--json={file}",
    ]
    subprocess.run(
        [sys.executable, "-m", "gshard_nmt", "inspect", *flags],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return json.loads(file.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    page.add_flags(parser, rounds=3)
    arguments = parser.parse_args()
    busy, limit = environment.busy(), page.limit_of(arguments)
    results: dict[str, list[dict]] = {topology: [] for topology in TOPOLOGIES}
    rounds = 0
    with tempfile.TemporaryDirectory() as folder:
        while not limit.is_over(rounds):
            for topology in TOPOLOGIES:
                print(f"{limit_text(limit)}round {rounds + 1}: {topology}", file=sys.stderr)
                results[topology].append(compile_for(topology, pathlib.Path(folder)))
            rounds += 1
    rows, figures = [("", *TOPOLOGIES, "ratio", "interval")], []
    for key, unit in KEYS.items():
        small, large = ([result[key] for result in results[name]] for name in TOPOLOGIES)
        ratios = [b / a for a, b in zip(small, large, strict=True)]
        medians = [f"{statistics.median(values):,.1f}" for values in (small, large)]
        rows.append((key, *medians, *median_text(ratios, ".3f")))
        base, name = (f"{key}, {topology}" for topology in TOPOLOGIES)
        figures.append(Figure.of(base, unit, small))
        figures.append(Figure.of(name, unit, large, base, ratios))
    section = page.Section("compile time", page.table(rows), figures, rounds)
    page.publish(section, arguments.page, busy)


if __name__ == "__main__":
    main()
