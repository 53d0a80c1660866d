import dataclasses

import pytest

from gshard_nmt.inspection import report
from gshard_nmt.inspection.record import Counts
from gshard_nmt.spmd.topology import Topology


def test_the_shares_of_the_step_add_up(inspection):
    work = report.work(inspection)
    assert sum(row[-1] for row in work.rows) == pytest.approx(1)
    assert sum(row[3] for row in work.rows) == pytest.approx(work.totals[0][3])


def test_the_categories_add_up_to_the_peak(inspection):
    memory = report.memory(inspection)
    assert sum(row[1] for row in memory.rows) == memory.totals[0][1]
    assert [row[0] for row in memory.totals] == ["peak", "the device has", "free"]


def test_equal_layers_are_one_cause(inspection):
    source = inspection.sources[0]
    origin = dataclasses.replace(source.origin, layer="encoder 1 moe_0")
    sources = [*inspection.sources, dataclasses.replace(source, origin=origin)]
    (row,) = report.expected(dataclasses.replace(inspection, sources=sources)).rows
    assert row[:4] == ["all-to-all", 8, "f32[8,16]", 2 * source.bytes_per_step]


def test_the_summary_has_a_row_for_each_topology(inspection, refused):
    on_cpu = dataclasses.replace(
        inspection,
        topology=Topology.parse("cpu:8"),
        memory=dataclasses.replace(inspection.memory, hbm=None),
    )
    summary = report.summary([inspection, refused, on_cpu], 1e12).select(
        ["topology", "fits", "step", "instructions"]
    )
    assert summary.rows == [
        ["v3:2x2", "yes", 4.0, 5000],
        ["v3:2x2", "no", None, None],
        ["cpu:8", None, None, 5000],
    ]


def test_the_papers_figures_are_shown_for_their_own_mesh_batch_and_model_only(inspection):
    """GSPMD table 3 has two meshes of 128 cores."""

    def words(inspection):
        return " ".join(report.step_lines(inspection, 1e12))

    on_paper = dataclasses.replace(
        inspection,
        config="gspmd_narrow_16b",
        topology=Topology.parse("v3:8x8"),
        mesh={"x": 16, "y": 8},
        tokens_per_step=96 * 1024,
        counts=Counts(17_300_000_000, 17_300_000_000, 1, 4),
    )
    line = words(on_paper)
    assert "the paper measured (GSPMD table 3): step 3.37 s, 12.7 GB a core, 41.7% of" in line
    turned = dataclasses.replace(on_paper, mesh={"x": 8, "y": 16})
    assert "step 3.43 s, 14.6 GB a core" in words(turned)
    for changes in (
        {"tokens_per_step": 48 * 1024},
        {"mesh": {"x": 128, "y": 1}},
        {"counts": Counts(8_000_000_000, 1, 1, 4)},
        {"step": "decoding"},
        {"topology": Topology.parse("v4:4x4x8")},
        {"config": "demo"},
    ):
        other = dataclasses.replace(on_paper, **changes)
        assert "the paper measured" not in words(other), changes
