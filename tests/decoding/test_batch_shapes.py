"""The shapes of batches: search steps of a source length, and rows that suit the devices."""

import pytest

from gshard_nmt.decoding.batch_shapes import BatchShape, batch_rows, batch_shape, least_rows
from tests.decoding.copying import CONFIG


def test_a_translation_is_never_longer_than_the_models_target_length():
    assert batch_shape(CONFIG, 8) == BatchShape(8, 14)
    short = CONFIG.replace(data={"target_length": 9})
    assert batch_shape(short, 8) == BatchShape(8, 9)


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
