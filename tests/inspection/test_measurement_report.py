"""The tables and sentences of a measurement."""

import dataclasses

from gshard_nmt.inspection.measurement import CollectiveTime, Measurement, PartTime
from gshard_nmt.inspection.measurement_report import growth, interval, lines, tables, text
from gshard_nmt.inspection.tables import MILLISECONDS
from gshard_nmt.inspection.timing import Estimate
from gshard_nmt.spmd.chips import CHIPS

TIMES = [
    CollectiveTime("all-to-all", devices, nbytes, [s * 1e-3] * 6, predicted=0.5e-3)
    for devices, nbytes, s in ((2, 2**20, 1.0), (8, 2**20, 2.0))
]
MEASUREMENT = Measurement(
    *("demo", "8 x TPU v3", 8, {"x": 4, "y": 2}, CHIPS["v3"], False, TIMES),
    [PartTime("gating", [2e-3] * 6, 1e-3, 1e9, 1024)],
    6,
    ["a note"],
)


def test_the_report_has_measured_beside_predicted():
    report = text(MEASUREMENT)
    assert report.startswith("demo, measured on 8 x TPU v3, mesh x=4 x y=2: medians of 6 rounds")
    assert "intervals of 95 %" in report
    assert "note: a note" in report
    assert "61.50 TFLOP a second" in report
    (row,) = [line.split() for line in report.splitlines() if line.split()[1:2] == ["8"]][:1]
    assert row == [
        *("all-to-all", "8", "1.00", "MiB", "2.00", "ms", "2.00", "to", "2.00", "0.50", "ms"),
        "4.00",
    ]
    assert "1.00 GFLOP" in report


def test_few_rounds_give_a_range():
    few = dataclasses.replace(MEASUREMENT, rounds=5)
    assert "the range of all rounds" in lines(few)[0]


def test_growth_stands_beside_the_papers():
    ((kind, exponent, _, paper),) = growth(MEASUREMENT).rows
    assert (kind, paper) == ("all-to-all", 0.5)
    assert abs(exponent - 0.5) < 1e-9


def test_tables_without_rows_are_left_out():
    alone = dataclasses.replace(MEASUREMENT, collectives=[])
    assert [table.title for table in tables(alone)] == ["One layer by parts"]


def test_an_interval_has_the_unit_of_its_column():
    assert interval(Estimate(1e-3, 0.5e-3, 1.5), MILLISECONDS) == "0.50 to 1,500.00"
