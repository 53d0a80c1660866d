"""A run that changes between a loop over its layers and a pipeline."""

from pathlib import Path

import numpy as np
import pytest

from tests.integration.conftest import gin, lines_of, program, succeed

DENSE = {"EXPERTS": 0, "Model.encoder_layers": 2, "Model.decoder_layers": 2}
# The vocabulary of this small corpus has an odd size.
MESH = {"X": 2, "Y": 1, "Z": 1, "Mesh.overrides": {"*_embedding": {"V": None}}}
PIPELINE = {"Model.stack": "pipeline", "Model.stages": 2, "Train.microbatches": 2}


def train(prepared: Path, name: str, steps: int, *, pipelined: bool) -> None:
    """Trains a dense run up to a step, with a scan on one device or as a pipeline on two."""
    mesh = ["--gin", f"include 'meshes/{'pipeline' if pipelined else 'cpu1'}.gin'"]
    how = MESH | PIPELINE if pipelined else {"Model.stack": "scan"}
    folders = ["--data", prepared / "data", "--workdir", prepared / name]
    settings = gin(**DENSE, **how, **{"Train.steps": steps, "Train.bleu_sentences": 0})
    succeed(program("train", "--config", "demo", *folders, *mesh, *settings))


def metrics(prepared: Path, name: str, key: str) -> dict[int, float]:
    """Returns the values of a metric by step."""
    return {line["step"]: line[key] for line in lines_of(prepared / name) if key in line}


@pytest.mark.slow
def test_a_run_goes_on_as_a_pipeline_and_back(prepared):
    """Losses and dev losses are those of a run that is always a loop."""
    train(prepared, "loop", 4, pipelined=False)
    train(prepared, "mixed", 1, pipelined=False)
    train(prepared, "mixed", 3, pipelined=True)
    train(prepared, "mixed", 4, pipelined=False)
    # The pipeline validates at step 3.
    for key, steps in (("loss", (1, 2, 3, 4)), ("dev_nll/fr", (3, 4)), ("dev_nll/de", (3, 4))):
        expected, found = (metrics(prepared, name, key) for name in ("loop", "mixed"))
        values = [found[step] for step in steps]
        np.testing.assert_allclose(
            values, [expected[step] for step in steps], rtol=1e-4, err_msg=key
        )
