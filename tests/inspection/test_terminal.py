import dataclasses

from gshard_nmt.inspection import terminal
from gshard_nmt.inspection.record import Compilation
from gshard_nmt.spmd.topology import Topology


def line_with(report: str, words: str) -> str:
    (line,) = (line for line in report.splitlines() if words in line)
    return line


def test_the_report_tells_memory_communication_and_compute(inspection):
    report = terminal.report(inspection, 1e12)
    assert report.startswith("demo, one training step on v3:2x2: 8 devices, mesh x=8\n")
    assert "note: a note" in report
    assert line_with(report, "activations and gradients").split()[-2:] == ["GiB", "50.0%"]
    assert line_with(report, "the device has").endswith(" 16.00 GiB")
    assert line_with(report, "free").split() == ["free", "10.00", "GiB"]
    assert "4 x all-to-all f32[8,16], 4.00 MiB, encoder 0 moe_0, dispatch: sends tokens" in report
    assert "1,000.00 ms of the step (25.0%) recompute the forward pass" in report
    assert "predicted step 4.000 s (62% of roofline" in report
    assert (
        "COMPILATION: lowering 1.0 s, compiling 20.0 s (40.0 s of CPU time); 5,000 inst" in report
    )


def test_an_unexpected_collective_gets_a_setting_that_keeps_the_configs_own(inspection):
    report = terminal.report(inspection, 1e12)
    expected, unexpected = report.split("UNEXPECTED")
    assert "all-gather f32[64]" not in expected
    assert "2 x all-gather, 2.00 KiB: gathers <f32[64]>" in unexpected
    assert "no setting is known to remove it" in unexpected
    # The new pattern stands first, because the first that matches decides.
    assert "Mesh.overrides = {'decoder/gate': {'E': None}, '*': {'M': 'x'}}" in unexpected


def test_without_a_program_the_report_ends_after_the_memory(refused):
    report = terminal.report(refused, 1e12)
    assert "  estimated, because there is no program" in report.splitlines()
    assert "DOES NOT FIT: temporaries" in report
    assert line_with(report, "missing").split() == ["missing", "4.00", "GiB"]
    assert "COMMUNICATION" not in report
    assert "COMPUTE" not in report


def test_growth_says_what_stays_constant_from_the_fewest_devices_to_the_most(inspection, refused):
    grown = dataclasses.replace(
        inspection,
        topology=Topology.parse("v3:8x8"),
        compilation=Compilation(1.0, 20.0, 60.0, 5049),
    )
    report = terminal.growth([grown, inspection], 1e12)
    assert "instructions of the program: +1.0% from 8 to 128 devices (constant within 1%)" in report
    assert "compile time on the CPU: +50.0% from 8 to 128 devices (not constant" in report
    assert "memory of a device: +0.0%" in report
    assert "constant" not in terminal.growth([inspection, refused], 1e12)


def test_columns_are_aligned_and_words_at_the_end_are_not():
    lines = terminal.table([("a", "1", "some words"), ("long", "1000", "more")]).splitlines()
    assert lines == ["    a        1  some words", "    long  1000  more"]
    assert terminal.table([]) == ""


def test_a_task_and_its_time_are_printed_on_stderr(capsys):
    with terminal.waiting("compiling [it]"):
        pass
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "compiling [it]: 0.0 s\n"
