"""A short version of the campaigns `kill` and `wrong_input` of `make soak`."""

import sys
from pathlib import Path

import pytest

from tests.integration.conftest import finished


@pytest.mark.slow
@pytest.mark.parametrize(("campaign", "cases"), [("kill", 3), ("wrong_input", 8)])
def test_a_short_campaign_finds_no_defect(campaign, cases):
    """The final state is equal to the bit; there is no traceback and no lost file."""
    flags = ["--minutes", "10", "--cases", str(cases), "--seed", "11"]
    words = [sys.executable, "-m", "tests.soak", *flags, campaign]
    done = finished(words, cwd=Path(__file__).parents[2], timeout=900)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    closing = done.stdout.splitlines()[-1]
    assert closing.startswith(f"{campaign}: no defects")
    assert (f"were killed {cases} times" if campaign == "kill" else f"{cases} cases") in closing
