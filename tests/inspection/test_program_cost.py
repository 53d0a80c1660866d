"""The predicted times of a step and the JSON record."""

import dataclasses
import json

import pytest

from gshard_nmt.inspection.program_cost import as_json
from gshard_nmt.spmd.topology import Topology


def test_the_predicted_step_is_work_and_communication_one_after_the_other(inspection):
    assert inspection.step_seconds == 2.0 + 1.0 + 1.0
    assert inspection.roofline_seconds == 1.0 + 0.5 + 1.0
    assert inspection.roofline_fraction == 2.5 / 4
    peak = inspection.topology.chip.peak_flops
    assert inspection.flops_utilization == pytest.approx(6e12 / (peak * 4))
    steps = 1e12 / 4096
    assert inspection.device_years(1e12) == pytest.approx(steps * 4 * 8 / (365.25 * 24 * 3600))
    on_cpu = dataclasses.replace(inspection, topology=Topology.parse("cpu:8"))
    assert on_cpu.step_seconds is on_cpu.roofline_fraction is on_cpu.device_years(1e12) is None


def test_the_json_adds_up_and_can_be_written(inspection):
    record = json.loads(json.dumps(as_json(inspection)))
    assert sum(record["per_device"]["by_category"].values()) == record["per_device"]["peak_bytes"]
    assert record["flops_per_device"] == 6e12
    by_kind = {collective["kind"]: collective for collective in record["collectives"]}
    assert by_kind["all-to-all"]["bytes_per_device"] == 4 * 2**20
    assert by_kind["all-gather"]["sources"][0]["asked_for"] is False
    assert record["directions"]["recomputed"]["experts"]["seconds"] == 1.0
    again = [part["seconds"] for part in record["parts"] if part["direction"] == "recomputed"]
    assert again == [1.0]
    assert sum(part["flops"] for part in record["parts"]) == 6e12
    assert record["fits"]


def test_without_a_program_only_the_estimate_is_known(inspection, refused):
    record = as_json(refused)
    assert record.keys() == as_json(inspection).keys()
    unknown = ("collectives", "work", "directions", "parts", "estimated_step_seconds")
    assert [record[key] for key in unknown] == [None] * len(unknown)
    assert record["per_device"]["is_estimate"]
    assert not record["fits"]
