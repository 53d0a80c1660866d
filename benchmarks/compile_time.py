"""Measures the compile time for 8 and for 2,048 TPU v3 cores.

    make tpu && .venv/bin/python benchmarks/compile_time.py

gshard-inspect lowers and compiles MoE(36L) with one expert and 16 rows on each core, each time in a new
process. The two machines alternate, so that other work on this computer slows down both. A repeat takes
about 2 minutes on two cores.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from gshard_nmt.inspection.terminal import table

TOPOLOGIES = ("v3:2x2", "v3:32x32")
KEYS = ("compile_seconds", "compile_cpu_seconds", "program_instructions")
REPEATS = 3


def compile_for(topology: str, folder: pathlib.Path) -> dict:
    """Returns the figures of one compilation."""
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
    """Prints the median of each figure, and the ratio of the larger machine to the smaller."""
    figures: dict[str, list[dict]] = {topology: [] for topology in TOPOLOGIES}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(REPEATS):
            for topology in TOPOLOGIES:
                print(f"repeat {repeat + 1} of {REPEATS}: {topology}", file=sys.stderr)
                figures[topology].append(compile_for(topology, pathlib.Path(folder)))
    rows = [("", *TOPOLOGIES, "ratio")]
    for key in KEYS:
        first, last = (
            statistics.median(repeat[key] for repeat in figures[topology])
            for topology in TOPOLOGIES
        )
        rows.append((key, f"{first:,.1f}", f"{last:,.1f}", f"{last / first:.3f}"))
    print(table(rows))


if __name__ == "__main__":
    main()
