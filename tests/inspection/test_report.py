import dataclasses

from gshard_nmt.inspection import report
from gshard_nmt.inspection.program_cost import Compilation, Counts
from gshard_nmt.spmd.topology import Topology


def line_with(text: str, words: str) -> str:
    (line,) = (line for line in text.splitlines() if words in line)
    return line


def test_the_report_tells_memory_communication_and_compute(inspection):
    text = report.report(inspection, 1e12)
    assert text.startswith("demo, one training step on v3:2x2: 8 devices, mesh x=8\n")
    assert "note: a note" in text
    assert line_with(text, "activations").split()[-2:] == ["GiB", "50.0%"]
    assert line_with(text, "the device has").endswith(" 16.00 GiB")
    assert line_with(text, "free").split() == ["free", "10.00", "GiB"]
    assert "4 x all-to-all f32[8,16], 4.00 MiB, encoder 0 moe_0, dispatch: sends tokens" in text
    assert "1,000.00 ms of the step (25.0%) recompute the forward pass" in text
    assert "predicted step 4.000 s (62% of roofline" in text
    assert "COMPILATION: lowering 1.0 s, compiling 20.0 s (40.0 s of CPU time); 5,000 inst" in text
    compute = text.split("COMPUTE")[1].split("\n    step ")[0]
    shares = [float(line.split()[-1][:-1]) for line in compute.splitlines() if line.endswith("%")]
    assert sum(shares) == 100


def test_collectives_over_different_axes_of_one_size_have_rows_of_their_own(inspection):
    first, *others = inspection.sources
    second = dataclasses.replace(first, axes=("y",), count=3, seconds=0.5)
    text = report.report(dataclasses.replace(inspection, sources=(first, second, *others)), 1e12)
    rows = [line.split() for line in text.splitlines() if line.startswith("    all-to-all ")]
    assert rows[:2] == [
        ["all-to-all", "4", "4.00", "MiB", "1,000.00", "ms", "8", "x"],
        ["all-to-all", "3", "3.00", "MiB", "500.00", "ms", "8", "y"],
    ]


def test_an_unexpected_collective_gets_a_setting_that_keeps_the_configs_own(inspection):
    expected, unexpected = report.report(inspection, 1e12).split("UNEXPECTED")
    assert "all-gather f32[64]" not in expected
    place = "decoder 1 self_attention_0"
    assert f"2 x all-gather f32[64], 2.00 KiB, {place}: gathers <f32[64]>" in unexpected
    # The new pattern stands first, because the first that matches decides.
    assert "Mesh.overrides = {'decoder/gate': {'E': None}, '*': {'M': 'x'}}" in unexpected
    own = dataclasses.replace(inspection, overrides={"decoder/gate": {"E": "x"}})
    assert "Mesh.overrides = {'decoder/gate': {'E': None}}" in report.report(own, 1e12)


def test_without_a_program_the_report_ends_after_the_memory(refused):
    text = report.report(refused, 1e12)
    assert "  estimated, because there is no program" in text.splitlines()
    assert "DOES NOT FIT: temporaries" in text
    assert line_with(text, "missing").split() == ["missing", "4.00", "GiB"]
    assert "COMMUNICATION" not in text
    assert "COMPUTE" not in text


def test_growth_has_a_line_for_each_topology(inspection, refused):
    grown = dataclasses.replace(
        inspection,
        topology=Topology.parse("v3:8x8"),
        compilation=Compilation(1.0, 20.0, 60.0, 5049),
    )
    title, *_, last, missing = report.growth([inspection, grown, refused]).splitlines()
    assert title == "GROWTH with the number of devices"
    assert last.split()[:6] == ["v3:8x8", "128", "4,000,000,000", "5,049", "60", "s"]
    assert missing.split()[3:] == ["-", "-", "20.00", "GiB", "-"]


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
        counts=Counts(17_300_000_000, 17_300_000_000, 1),
    )
    line = words(on_paper)
    assert "the paper measured (GSPMD table 3): step 3.37 s, 12.7 GB a core, 41.7% of" in line
    turned = dataclasses.replace(on_paper, mesh={"x": 8, "y": 16})
    assert "step 3.43 s, 14.6 GB a core" in words(turned)
    for changes in (
        {"tokens_per_step": 48 * 1024},
        {"mesh": {"x": 128, "y": 1}},
        {"counts": Counts(8_000_000_000, 1, 1)},
        {"topology": Topology.parse("v4:4x4x8")},
        {"config": "demo"},
    ):
        assert "the paper measured" not in words(dataclasses.replace(on_paper, **changes)), changes
