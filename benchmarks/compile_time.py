"""Compile time against the number of devices: 8 TPU v3 cores and 2,048, in turns.

    make tpu && .venv/bin/python benchmarks/compile_time.py

MoE(36L) with one expert and 16 rows a core, lowered and compiled by gshard-inspect in a process of its
own each time; the two in turns, so that whatever else the machine does hurts both. About 2 minutes a
repeat on two cores.
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
    """The figures of one compilation."""
    file = folder / "found.json"
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
    """Prints the median of each figure, and the larger machine's over the smaller's."""
    found: dict[str, list[dict]] = {topology: [] for topology in TOPOLOGIES}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(REPEATS):
            for topology in TOPOLOGIES:
                print(f"repeat {repeat + 1} of {REPEATS}: {topology}", file=sys.stderr)
                found[topology].append(compile_for(topology, pathlib.Path(folder)))
    rows = [("", *TOPOLOGIES, "ratio")]
    for key in KEYS:
        first, last = (statistics.median(each[key] for each in found[t]) for t in TOPOLOGIES)
        rows.append((key, f"{first:,.1f}", f"{last:,.1f}", f"{last / first:.3f}"))
    print(table(rows))


if __name__ == "__main__":
    main()
