"""A run that was trained on other machines gets a mesh on which this machine can decode it."""

import pytest

from gshard_nmt.decoding import fitting
from gshard_nmt.decoding.fitting import BatchShape, batch_rows, batch_shape, least_rows
from gshard_nmt.errors import UserError
from gshard_nmt.run.arrays import step_functions, weight_specs
from gshard_nmt.settings.divides import check_decoding
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.processes import Processes
from tests.decoding.copying import CONFIG

RULES = {"B": ("x", "y"), "E": "y", "H": "x"}
POD = load_config("demo").replace(
    mesh={"axes": ("x", "y"), "shape": (8, 8), "rules": RULES}, decode={"rows": 64}
)


@pytest.fixture
def counts(monkeypatch):
    """Sets the numbers of devices of the machine."""

    def set_counts(*numbers: int) -> None:
        answer = (list(numbers), "this machine has few devices")
        monkeypatch.setattr(fitting, "device_counts", lambda wanted, processes: answer)

    return set_counts


def shape_of(config, processes=None) -> tuple[int, ...]:
    fitted = fitting.fitted(config, step_functions(config), processes or Processes())
    assert fitted == config.replace(mesh={"shape": fitted.mesh.shape, "device_order": ()})
    return tuple(fitted.mesh.shape)


def test_the_mesh_of_the_run_is_used_and_a_smaller_machine_keeps_its_axes(counts, capsys):
    counts(64, 2, 1)
    assert shape_of(POD) == (8, 8)
    assert capsys.readouterr().err == ""
    counts(8, 7, 6)
    assert shape_of(POD) == (1, 8)
    assert capsys.readouterr().err == (
        "the mesh of the run has 64 devices, and this machine has few devices. Decoding on the mesh "
        "x=1 x y=8; --gin 'Mesh.shape = ...' chooses another.\n"
    )


def test_process_0_chooses_for_all_processes_and_says_so(counts, capsys, monkeypatch):
    sent = []
    monkeypatch.setattr(
        Processes, "broadcast", lambda self, content: sent.append(content) or sent[0]
    )
    counts(8, 6)
    assert shape_of(POD, Processes("h:1", 2, 0)) == (1, 8)
    assert "Decoding on the mesh x=1 x y=8" in capsys.readouterr().err
    counts(2)  # the machine of process 1 has fewer cores
    assert shape_of(POD, Processes("h:1", 2, 1)) == (1, 8)
    assert capsys.readouterr().err == ""


def test_numbers_of_devices_over_which_a_size_does_not_divide_are_passed_over(counts, capsys):
    run = POD.replace(mesh={"rules": {"E": ("x", "y"), "H": "x"}})
    counts(64, 6, 3, 2, 1)  # there are 8 experts, so neither 64 nor 6 nor 3 devices
    assert shape_of(run) == (1, 2)
    # The machine has the devices of the run, so the reason is another one.
    assert "dimension E has size 8, which does not divide over the 64" in capsys.readouterr().err


def test_no_mesh_mends_lengths_that_the_model_cannot_take(counts):
    counts(64, 1)
    config = POD.replace(model={"positions": "learned", "max_positions": 63})
    functions = step_functions(config)
    assert fitting.fitted(config, functions, Processes()) == config
    with pytest.raises(UserError, match=r"^Decode\.source_lengths: 64 tokens are more than Model"):
        check_decoding(config, weight_specs(functions))


def test_a_translation_is_never_longer_than_the_models_target_length():
    assert batch_shape(CONFIG, 8) == BatchShape(8, 14)
    assert batch_shape(CONFIG.replace(data={"target_length": 9}), 8) == BatchShape(8, 9)


@pytest.mark.parametrize(
    ("beam", "devices", "rows", "on_cpu", "on_accelerator"),
    [(4, 1, 64, 64, 64), (4, 1, 3, 16, 3), (4, 2, 33, 64, 34), (3, 1, 3, 64, 3), (128, 2, 3, 4, 4)],
)
def test_rows_are_rounded_up_for_the_mesh_and_for_the_kernels_of_cpus(
    beam, devices, rows, on_cpu, on_accelerator
):
    config = CONFIG.replace(decode={"beam": beam, "rows": rows}, mesh={"shape": (devices,)})
    assert batch_rows(config, is_cpu=True) == on_cpu
    assert batch_rows(config, is_cpu=False) == on_accelerator


def test_samples_count_as_hypotheses():
    config = CONFIG.replace(decode={"beam": 4, "method": "sample"})
    assert least_rows(config, is_cpu=True, nbest=1) == 64
    assert least_rows(config, is_cpu=True, nbest=32) == 2
    assert least_rows(config, is_cpu=False, nbest=32) == 1
