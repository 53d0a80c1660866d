"""Models that transformers makes anew: imported, compared with it, exported, and read by it again.

Each case has three tiny models, of M2M-100, NLLB-MoE and Marian. The first case has the seed of the
goldens in tests/exchange. The functions that compare are the tests of these goldens.
"""

import subprocess
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness.environment import NoPeers, peers_python
from gshard_nmt.exchange import huggingface_weights
from tests.exchange import test_huggingface
from tests.exchange.test_huggingface import FAMILIES
from tests.soak.campaign import Clock, Report, last_lines, say

ROOT = Path(__file__).parents[2]
SEED_OF_GOLDENS = 1


def campaign(clock: Clock, seed: int) -> Report:
    """Makes models and compares, until the time is over."""
    try:
        python = peers_python(ROOT / "build" / "benchmarks" / "decoding-venv")
    except NoPeers as error:
        return Report("nothing was tried", [f"transformers cannot be installed: {error}"])
    defects: list[str] = []
    cases = 0
    while not clock.is_over():
        case = SEED_OF_GOLDENS if not cases else seed + cases
        with tempfile.TemporaryDirectory(prefix="gshard-soak-exchange-") as folder:
            defects += compare(python, Path(folder), case)
        cases += 1
        clock.count()
        say(f"exchange: {cases} cases, {len(defects)} defects")
    tried = f"{cases} cases of {len(FAMILIES)} models were imported, compared and exported"
    return Report(tried, defects)


def compare(python: Path, folder: Path, seed: int) -> list[str]:
    """Returns the defects of the models of one seed."""
    done = _run(python, "scripts.make_import_goldens", folder, seed)
    if done.returncode:
        return [f"seed {seed}: the models cannot be made\n{last_lines(done.stderr)}"]
    kept = test_huggingface.GOLDENS
    test_huggingface.GOLDENS = folder
    test_huggingface.imported.cache_clear()
    try:
        return [defect for name in FAMILIES for defect in _of_family(python, folder, name, seed)]
    finally:
        test_huggingface.GOLDENS = kept
        test_huggingface.imported.cache_clear()


def _of_family(python: Path, folder: Path, name: str, seed: int) -> list[str]:
    checks: dict[str, Callable[[], object]] = {
        "logits": lambda: test_huggingface.test_the_logits_are_those_of_transformers(name),
        "greedy": lambda: test_huggingface.test_the_translations_are_those_of_transformers(
            name, "greedy"
        ),
        "beam": lambda: test_huggingface.test_the_translations_are_those_of_transformers(
            name, "beam"
        ),
        "export": lambda: _export(python, folder, name),
    }
    defects = []
    for check, function in checks.items():
        try:
            function()
        except AssertionError:
            place = f"{name}, seed {seed}, {check}"
            defects.append(f"{place}\n{last_lines(traceback.format_exc())}")
    return defects


def _export(python: Path, folder: Path, name: str) -> None:
    """Writes an imported model as transformers reads it, and lets transformers compare both."""
    model = test_huggingface.imported(name)
    exported = folder / f"{name}_exported"
    exported.mkdir()
    weights = {name: array.numpy() for name, array in model.weights.items()}
    huggingface_weights.write(model.layout, weights, exported)
    done = _run(python, "scripts.compare_transformers", folder / name, exported)
    assert done.returncode == 0, done.stdout + last_lines(done.stderr)


def _run(python: Path, module: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [python, "-m", module, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
