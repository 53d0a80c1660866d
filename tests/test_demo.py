"""The demo: its stages run in order, and it ends with the first stage that fails."""

import pytest

from scripts import demo


@pytest.fixture
def jobs(monkeypatch, tmp_path):
    """Runs nothing; returns the jobs of each stage that the demo started, and the codes to answer."""
    monkeypatch.chdir(tmp_path)
    started, codes = [], {}

    def run(jobs, at_a_time):
        assert at_a_time == len(jobs)
        started.append([" ".join(map(str, job.command)) for job in jobs])
        return codes.get(len(started), [0] * len(jobs))

    monkeypatch.setattr(demo, "run", run)
    return started, codes


def test_all_stages_run_in_order(jobs, capsys):
    started, _ = jobs
    assert demo.main() == 0
    first = [stage[0].split()[:2] for stage in started]
    assert [words[0] for words in first] == [
        *("gshard-data", "gshard-data", "gshard-train", "gshard-train", "gshard-eval")
    ]
    assert "The report: runs/demo/report/index.html" in capsys.readouterr().out


@pytest.mark.parametrize(("codes", "code"), [([0, 2], 2), ([-9, 0], -9)])
def test_a_program_that_fails_ends_the_demo(jobs, codes, code, capsys):
    started, answers = jobs
    answers[4] = codes
    assert demo.main() == code
    assert len(started) == 4
    assert "run `make demo` again to continue here" in capsys.readouterr().err
