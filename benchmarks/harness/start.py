"""Starts the workers of a benchmark: programs of this folder, with this package or with the peers."""

import os
import re
import sys
from pathlib import Path

from harness import environment
from harness.job import Job
from harness.turns import Worker

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "benchmarks"
"""What benchmarks keep between two runs: programs, models, logs, the environment of the peers."""
PEERS = BUILD / "decoding-venv"


def worker(module: str, job: Job, name: str, tree: Path | None = None) -> Worker:
    folders = [str(ROOT / "benchmarks")]
    python = str(PEERS / "bin" / "python")
    if tree:
        folders.insert(0, str(tree.resolve()))
        python = sys.executable
    variables = os.environ | {
        "OMP_NUM_THREADS": str(len(job.cores)),
        "PYTHONPATH": os.pathsep.join(folders),
    }
    log = BUILD / "logs" / f"{re.sub(r'[^A-Za-z0-9]+', '-', name)}-{job.cores[0]}.log"
    # -P keeps the package of the working directory away from the worker.
    return Worker([python, "-P", "-m", module, job.as_argument()], variables, log)


def has_peers() -> bool:
    try:
        environment.peers_python(PEERS)
    except environment.NoPeers as problem:
        print(f"Without the peers. pip said:\n{problem}", file=sys.stderr)
        return False
    return True
