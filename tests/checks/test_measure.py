"""gshard-inspect --measure on two virtual devices, and what it knows about real ones."""

import dataclasses
import json
import types

import numpy as np
import pytest

from gshard_nmt.checks import measure as measuring
from gshard_nmt.checks.measure import Machine, measure, measurement_of
from gshard_nmt.outputs import ReportFiles
from gshard_nmt.spmd.collective_programs import MEASURED_KINDS
from gshard_nmt.spmd.runtime import Runtime
from tests.checks.test_layer_parts import config


@pytest.fixture(scope="module")
def measured():
    return measurement_of(config("Mesh.shape = (2,)"), "small", rounds=2, sizes=(1024, 65536))


def test_every_kind_and_size_and_every_part_is_measured_and_predicted(measured):
    assert {(t.kind, t.devices, t.nbytes) for t in measured.collectives} == {
        (kind, 2, nbytes) for kind in MEASURED_KINDS for nbytes in (1024, 65536)
    }
    assert all(len(time.rounds) == 2 and min(time.rounds) > 0 for time in measured.collectives)
    parts = {part.name: part for part in measured.parts}
    assert all(part.seconds.median > 0 and part.predicted > 0 for part in parts.values())
    # Each device has 4 rows of 12 tokens, in 2 groups; 8 experts with 6 slots in each group.
    assert parts["experts"].flops == 2 * 2 * (8 * 4 * 6 // 2) * 16 * 32
    assert parts["feed-forward"].flops == 2 * 2 * (4 * 12) * 16 * 32
    # An all-to-all sends all slots of a device: float32[E, G / 2, C, M].
    assert parts["dispatch"].sent == parts["combine"].sent == 4 * 8 * 2 * 6 * 16
    assert parts["attention"].sent == 0


def test_a_cpu_has_measured_peaks_and_says_so(measured):
    assert measured.is_fitted
    assert measured.chip.peak_flops > 0 < measured.chip.hbm_bandwidth
    assert any("The table of chips does not have these devices" in note for note in measured.notes)
    assert any("virtual devices" in note for note in measured.notes)
    assert "2 virtual CPU devices" in measured.devices


def test_the_report_goes_to_all_outputs(measured, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(measuring, "measurement_of", lambda *_: measured)
    record, page = tmp_path / "m.json", tmp_path / "m.html"
    measure(config("Mesh.shape = (2,)"), "small", 2, ReportFiles(record, page))
    text = capsys.readouterr().out
    for title in ("COLLECTIVES by bytes", "CONSTANTS of", "ONE layer by parts"):
        assert title in text
    assert "the range of all rounds" in text
    assert json.loads(record.read_text())["count"] == 2
    html = page.read_text()
    assert "Constants of the collectives" in html
    assert "<svg" in html or "image/svg+xml" in html


def devices_of(kind: str, **attributes) -> list:
    """Four devices of a kind; each attribute has a value for each device."""
    return [
        types.SimpleNamespace(
            device_kind=kind, platform="other", **{name: v[i] for name, v in attributes.items()}
        )
        for i in range(4)
    ]


def machine(devices: list) -> Machine:
    mesh = config("Mesh.shape = (4,)").mesh
    grid = types.SimpleNamespace(devices=np.array(devices, object))
    return Machine.of(Runtime(mesh, grid, None))


def test_a_tpu_is_predicted_by_its_links():
    corners = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)]
    slice_of_four = machine(devices_of("TPU v5 lite", coords=corners))
    assert slice_of_four.topology.name == "v5e:2x2"
    # Half of a chip's bytes cross the middle, which two links of 50 GB/s cross.
    seconds = slice_of_four.predicted("all-to-all", range(4), 100e6)
    assert seconds == pytest.approx(100e6 * 4 / 4 / 2 / 50e9)


def test_gpus_of_two_hosts_are_predicted_by_the_network():
    gpus = machine(devices_of("NVIDIA H100 80GB HBM3", process_index=[0, 0, 1, 1]))
    assert gpus.topology.shape == (2, 2)
    assert gpus.predicted("all-to-all", range(4), 1e8) == pytest.approx(1e8 / 2 / 50e9)
    assert gpus.predicted("all-to-all", range(2), 1e8) == pytest.approx(1e8 / 2 / 450e9)


def test_an_unknown_device_has_no_prediction():
    unknown = machine(devices_of("TPU v99"))
    assert unknown.predicted("all-reduce", range(4), 1e6) is None
    (note,) = unknown.notes
    assert "The table of chips does not have these devices" in note


def test_a_kind_that_was_not_measured_takes_a_similar_fit(measured):
    source = types.SimpleNamespace(
        kind="reduce-scatter", bytes=1024, count=3, group_size=2, seconds=None
    )
    fit = measured.fits()["all-reduce", 2]
    assert measuring._sending(source, measured.collectives) == pytest.approx(3 * fit.seconds(1024))
    known = dataclasses.replace(measured.collectives[0], predicted=1.0)
    assert measured.predicted(known) == 1.0
