"""The fitted constants of collectives, their growth, and the JSON of a measurement."""

import dataclasses
import json
import math

import pytest

from gshard_nmt.inspection.measurement import (
    CollectiveTime,
    Fit,
    Measurement,
    PartTime,
    as_json,
    fit,
)
from gshard_nmt.spmd.chips import CHIPS


def collective(kind: str, devices: int, nbytes: int, seconds: float) -> CollectiveTime:
    return CollectiveTime(kind, devices, nbytes, [0.9 * seconds, seconds, 1.1 * seconds])


@pytest.fixture
def measurement() -> Measurement:
    """An all-to-all that grows as the square root of the devices, and a constant all-reduce."""
    times = [
        collective(kind, devices, nbytes, (1e-5 + nbytes / 1e9) * devices**exponent)
        for kind, exponent in (("all-to-all", 0.5), ("all-reduce", 0.0))
        for devices in (2, 4, 8)
        for nbytes in (1_000, 1_000_000)
    ]
    parts = [PartTime("gating", [1e-3, 2e-3, 3e-3], 1e-3, 1e6, 1024)]
    return Measurement("demo", "8 CPU devices", 8, {"x": 8}, CHIPS["v3"], True, times, parts, 3)


def test_a_fit_finds_latency_and_bandwidth():
    found = fit([1e3, 1e5, 1e7], [2e-5 + n / 5e8 for n in (1e3, 1e5, 1e7)])
    assert (found.latency, found.bandwidth) == pytest.approx((2e-5, 5e8))
    assert found.seconds(1e6) == pytest.approx(2e-5 + 2e-3)


def test_no_constant_is_negative():
    assert fit([1.0, 2.0, 4.0], [0.1, 1.9, 4.2]).latency == 0
    assert fit([1.0, 2.0], [2.0, 1.0]).bandwidth == math.inf
    assert fit([8.0], [2.0]) == Fit(0.0, 4.0)


def test_the_growth_is_that_of_the_largest_arrays(measurement):
    growths = measurement.growths()
    assert growths["all-to-all"].median == pytest.approx(0.5)
    assert growths["all-reduce"].median == pytest.approx(0.0, abs=1e-9)
    one_number = [time for time in measurement.collectives if time.devices == 2]
    assert dataclasses.replace(measurement, collectives=one_number).growths() == {}


def test_the_links_predict_if_they_are_known_and_the_fit_otherwise(measurement):
    time = measurement.collectives[0]
    assert measurement.predicted(time) == pytest.approx(time.seconds.median)
    assert measurement.predicted(dataclasses.replace(time, predicted=0.25)) == 0.25


def test_the_json_has_all_figures_and_no_infinity(measurement):
    flat = [collective("all-gather", 2, n, 1.0) for n in (1, 2)]
    times = [*measurement.collectives, *flat]
    record = as_json(dataclasses.replace(measurement, collectives=times))
    json.dumps(record, allow_nan=False)
    assert record["predictions"] == "fitted"
    assert record["collectives"][0].keys() == {
        *("kind", "devices", "bytes", "seconds", "low", "high", "predicted_seconds")
    }
    assert {(f["kind"], f["devices"]) for f in record["fits"]} >= {("all-to-all", 8)}
    assert record["growth"]["all-to-all"]["exponent"] == pytest.approx(0.5)
    assert record["parts"][0]["part"] == "gating"
    assert record["parts"][0]["seconds"] == 2e-3
