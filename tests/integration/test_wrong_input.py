"""A hundred cases of the campaign `wrong_input`: damaged files, odd settings, flags and paths."""

import json
import shutil

import pytest

from tests.soak.campaign import Clock
from tests.soak.wrong_input import watch

SEED, CASES = 41, 100


@pytest.mark.slow
def test_wrong_input_ends_with_a_message_and_loses_no_file(prepared, trained, tmp_path):
    for name in ("corpus", "data", "programs", "run"):
        shutil.copytree(prepared / name, tmp_path / name)
    (tmp_path / "baselines.json").write_text("{}")
    results = tmp_path / "results"
    ended, code = watch(tmp_path, SEED, 0, CASES, results, Clock(20))
    lines = list(map(json.loads, results.read_text().splitlines()))
    cases = {line["begins"]: line["case"] for line in lines if "begins" in line}
    defects = {
        f"{line['ended']}: {cases[line['ended']]}": line["defect"]
        for line in lines
        if line.get("defect")
    }
    assert defects == {}
    assert (ended, code, len(cases)) == (True, 0, CASES)
