"""Runs with several seeds: the right validation, the right languages, and the interval of differences."""

import json

import pytest

from scripts import compare_runs


def make_run(folder, values):
    """Writes what a finished run has of four languages; "d" has the most tokens, "a" the fewest."""
    folder.mkdir()
    rows = [
        {"step": 1, "dev_nll/a": 9.0},
        {f"dev_nll/{name}": value for name, value in zip("abcd", values, strict=True)}
        | {"step": 2},
        {"step": 2, "seconds": 3.0},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokens = {"a": 1, "b": 2, "c": 3, "d": 4}
    (folder / "budget.json").write_text(json.dumps({"steps": 2, "tokens_by_language": tokens}))
    return str(folder)


def test_differences_are_seed_by_seed(tmp_path, monkeypatch, capsys):
    base = [make_run(tmp_path / f"base{n}", [4.0 + n, 3.0, 2.0, 1.0]) for n in range(3)]
    other = [make_run(tmp_path / f"other{n}", [3.0 + 1.5 * n, 3.0, 2.0, 0.5]) for n in range(3)]
    monkeypatch.setattr("sys.argv", ["x", f"base={','.join(base)}", f"other={','.join(other)}"])
    compare_runs.main()
    # The differences of the smallest language are -1, -0.5 and 0; t is 4.303 for three seeds.
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| base | 3 | 2.750 | 1.000 | 5.000 |",
        "| other | 3 | 2.500 (-0.250, -0.561 to +0.061) | 0.500 (-0.500, -0.500 to -0.500) "
        "| 4.500 (-0.500, -1.742 to +0.742) |",
    ]


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ('{"step": 1}', "has no validation by language; train it with Train"),
        ('{"step": 1, "dev_nll/a": 2.0}', "has not ended: it is at step 2, its last validation at 1"),
        ('{"step": 2, "dev_nll/a": null}', "base: the last validation is not finite; the run"),
    ],
)  # fmt: skip
def test_a_run_without_a_last_validation_is_named(tmp_path, monkeypatch, capsys, log, message):
    run = make_run(tmp_path / "base", [1.0, 1.0, 1.0, 1.0])
    (tmp_path / "base" / "metrics.jsonl").write_text(log + "\n")
    monkeypatch.setattr("sys.argv", ["x", f"base={run}"])
    with pytest.raises(SystemExit, match="2"):
        compare_runs.main()
    assert message in capsys.readouterr().err


def test_a_run_that_has_not_ended_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["x", f"base={tmp_path}"])
    with pytest.raises(SystemExit):
        compare_runs.main()
    assert (
        f"'base={tmp_path}' must be a name, = and the folders of finished runs"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("gains", "line"),
    [
        # t is 4.303 and the standard error 0.1: 0.430 of the seeds and 0.3 of the others are 0.525.
        ((1.0, 1.1732, 1.3464), "+1.17 (+0.65 to +1.70: languages, strings and 3 seeds)"),
        ((1.0,), "+1.00 (+0.70 to +1.30: languages, strings and no seed)"),
    ],
)
def test_the_gain_in_bleu_covers_seeds_languages_and_strings(
    tmp_path, monkeypatch, capsys, gains, line
):
    run = make_run(tmp_path / "run", [1.0, 1.0, 1.0, 1.0])
    for number, gain in enumerate(gains):
        average = {"difference": gain, "difference_ci95": [gain - 0.3, gain + 0.3]}
        (tmp_path / str(number)).mkdir()
        page = {"systems": [{}, {"average": average}]}
        (tmp_path / str(number) / "bleu.json").write_text(json.dumps(page))
    reports = ",".join(str(tmp_path / str(number)) for number in range(len(gains)))
    monkeypatch.setattr("sys.argv", ["x", f"base={run}", f"--reports={reports}"])
    compare_runs.main()
    assert capsys.readouterr().out.splitlines()[-1] == f"gain in BLEU: {line}"
    monkeypatch.setattr("sys.argv", ["x", f"base={run}", f"--reports={run}"])
    with pytest.raises(SystemExit, match="2"):
        compare_runs.main()
    assert f"--reports {run} must be reports of two runs each" in capsys.readouterr().err
