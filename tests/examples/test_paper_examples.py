"""The rows of GSPMD tables 5 and 8: their flags, and their lines on docs/paper_tables.md."""

import json
import math

import conformer
import pytest
import trainer
import unet3d

from gshard_nmt.spmd.topology import Topology
from scripts import paper_examples
from scripts.paper_examples import CONFORMERS, UNETS

MAINS = {"conformer.py": conformer.main, "unet3d.py": unet3d.main}


@pytest.fixture
def compiled(monkeypatch):
    """Compiles nothing; returns what a command would compile."""
    calls = []
    monkeypatch.setattr(trainer, "compile_for", lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(trainer, "_show", lambda *_: None)
    return calls


@pytest.mark.parametrize("row", [*CONFORMERS, *UNETS], ids=lambda row: row.name)
def test_the_model_of_a_row_divides_over_its_machine(row, compiled):
    program, *flags = row.command.split()
    assert MAINS[program](flags) == 0
    ((_, mesh, topology),) = compiled
    assert mesh.num_devices == Topology.parse(topology).num_devices


@pytest.mark.parametrize(("row", "printed"), [(CONFORMERS[0], 6.47), (CONFORMERS[3], 12.95)])
def test_a_conformer_has_the_printed_weights(row, printed, compiled):
    """GSPMD counts billions in units of 2 ** 30."""
    conformer.main(row.command.split()[1:])
    ((model, *_),) = compiled
    weights = sum(math.prod(weight.shape) for weight in model.weights.values())
    assert weights / 2**30 == pytest.approx(printed, rel=2e-3)


def test_a_row_shows_printed_and_compiled_figures_in_turn(tmp_path):
    row = UNETS[0]
    collectives = {
        kind: {"tensors": 1, "bytes": mib * 2**20}
        for kind, mib in (("collective-permute", 3), ("all-reduce", 2), ("all-gather", 0))
    }
    figures = {
        "peak_bytes": 2**34,
        "seconds": 1.25,
        "flops": 3e13,
        "recomputed_flops": 1e13,
        "collectives": collectives,
    }
    row.file(tmp_path).write_text(json.dumps(figures))
    line = next(x for x in paper_examples.sections(tmp_path).splitlines() if x.startswith("| 1x2 "))
    cells = "| 1x2 | 128 | 4 | 14.8 | 16.0 | 1.56 | 1.25 | 41.9 | 20.0 | 3 | 2 | 0 |"
    assert line == cells
