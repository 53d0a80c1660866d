"""The benchmarks of decoding and of preparation: every system does the same work."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

from gshard_nmt.decoding.fitting import batch_shape
from gshard_nmt.run.arrays import step_functions

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"


def workload_of(load, **sizes):
    return load("translators.workload").Workload(cores=(0,), **sizes)


def test_the_benchmark_of_decoding_explains_itself():
    command = [sys.executable, FOLDER / "decoding.py", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for flag in ("--systems", "--experts 8 32", "--first", "--setting", "--tree", "--page"):
        assert flag in text


def test_every_system_translates_the_same_sentences(load):
    one, other = (workload_of(load).sources(end) for end in (1, 2))
    assert [ids[:-1] for ids in one] == [ids[:-1] for ids in other]
    assert {ids[-1] for ids in one} == {1}
    assert {len(ids) for ids in one} == {24}
    assert min(i for ids in one for i in ids[:-1]) >= 16


@pytest.mark.parametrize("experts", [0, 8])
def test_our_search_makes_as_many_steps_as_the_workload_says(load, experts):
    workload = workload_of(load, experts=experts, target_tokens=32)
    config = load("translators.ours").config_of(workload)
    assert batch_shape(config, 24).max_steps == 32
    assert (config.decode.rows, config.decode.beam, config.model.experts) == (32, 4, experts)


def test_the_weights_forbid_the_end_of_a_sentence(load):
    from gshard_nmt.model import decoder_step

    ours = load("translators.ours")
    small = {"model_dim": 16, "hidden_dim": 32, "layers": 2, "heads": 2, "vocabulary": 320}
    config = ours.config_of(workload_of(load, experts=4, **small))
    declared = step_functions(config).declare_parameters()
    rng = np.random.default_rng(1)
    weights = {name: ours.draw(parameter, rng) for name, parameter in declared.items()}
    ours.forbid_end(weights)
    # Each row feeds another token to the decoder.
    tokens = np.arange(2, 100, dtype=np.int32)[:, np.newaxis]
    batch = {
        "source_ids": np.hstack([tokens, np.ones_like(tokens)]),
        "source_segments": np.ones((len(tokens), 2), np.int32),
        "source_positions": np.tile(np.arange(2, dtype=np.int32), (len(tokens), 1)),
    }
    import tensorflow as tf

    weights, batch = (tf.nest.map_structure(tf.constant, arrays) for arrays in (weights, batch))
    cache = decoder_step.start(config.model, weights, batch, 1, 1)
    mask = tf.ones([len(tokens), 1, 1])
    log_probs, _ = decoder_step.step(
        config.model, weights, tf.constant(tokens), mask, tf.constant(0), cache
    )
    assert log_probs[..., ours.EOS].numpy().max() < -1000
    assert np.delete(log_probs.numpy(), ours.EOS, axis=-1).min() > -100


def test_a_translation_of_another_length_ends_the_benchmark(load):
    work = workload_of(load, target_tokens=32).checked(lambda: [31, 32])
    with pytest.raises(RuntimeError, match=r"translations have \[31, 32\] tokens, expected 32"):
        work()


@pytest.fixture
def run_preparation(load, tmp_path, monkeypatch, capsys):
    """Runs the benchmark with times of its own; returns what it prints, and the calls of the program."""
    preparation = load("preparation")
    monkeypatch.chdir(tmp_path)  # without data/demo
    calls = []

    def run(seconds, *flags):
        times = iter(seconds)

        def prepare(arguments, out, *own):
            calls.append((out, own))
            return next(times), next(times)

        monkeypatch.setattr(preparation, "prepare", prepare)
        monkeypatch.setattr(preparation, "bare", lambda columns, models: 2.0)
        monkeypatch.setattr(preparation, "bare_in_processes", lambda texts, models, n: 4.0 / n)
        command = ["preparation.py", "--rows", "20", "--page", "never", "--languages", "fr", "de"]
        monkeypatch.setattr(sys, "argv", [*command, *flags])
        preparation.main()
        assert next(times, None) is None
        return capsys.readouterr().out, calls

    return run


def test_preparation_is_compared_with_bare_sentencepiece(run_preparation):
    # CPU and wall seconds: new vocabularies; and in each round the start, and the two ways.
    seconds = [9, 1, *(2, 1, 5, 1, 8, 1), *(2, 1, 7, 1, 10, 1), *(2, 1, 6, 1, 7, 1)]
    out, calls = run_preparation(seconds, "--rounds", "3")
    assert out.startswith("40 pairs of fr, de. The start takes 2.0 CPU seconds")
    assert "With new vocabularies, all takes 9.0 CPU seconds." in out
    assert "| bare SentencePiece |   50000.0 |                     1.00 | 1.00 to 1.00 |\n" in out
    assert "| filters off        |  100000.0 |                     2.00 | 1.50 to 2.50 |\n" in out
    assert "| default filters    |  150000.0 |                     3.00 | 2.50 to 4.00 |\n" in out
    assert "`benchmarks/preparation.py --rows 20" in out
    assert out.endswith("docs/performance.md is unchanged, because of --page never.\n")
    assert len({folder for folder, _ in calls}) == 7  # the models, and each way in each round
    assert "Cleaning.filters = []" in calls[2][1]
    assert "Cleaning.filters = []" not in calls[3][1]


def test_two_processes_are_compared_with_one(run_preparation):
    seconds = [1, 9, *(1, 8, 1, 5), *(1, 9, 1, 4.5), *(1, 12, 1, 6), *(1, 12, 1, 8)]
    out, calls = run_preparation(seconds, "--rounds", "2", "--processes", "2")
    rows = [line for line in out.splitlines() if line.startswith("|")]
    assert rows[0].split("|")[2:4] == [" seconds of 1 process ", " seconds of 2 processes "]
    assert [[cell.strip() for cell in row.split("|")[2:6]] for row in rows[2:]] == [
        ["4.0", "2.0", "2.00", "2.00 to 2.00"],
        ["8.5", "4.8", "1.80", "1.60 to 2.00"],
        ["12.0", "7.0", "1.75", "1.50 to 2.00"],
    ]
    workers = [flags[flags.index("--workers") + 1] for _, flags in calls[1:]]
    assert workers == ["1", "2"] * 4


def test_recipes_are_compared_with_the_demo_over_languages(load):
    recipes = load("recipes")

    def average(difference):
        return {"difference": difference, "difference_ci95": [difference - 1, difference + 1]}

    results = {
        "the demo": recipes.Result(100.0, 3.0, {"fr": 20.0, "de": 30.0}, average(0.0)),
        "dense": recipes.Result(80.0, 3.25, {"fr": 19.0, "de": 27.0}, average(-2.0)),
    }
    rows = [line.split("|") for line in recipes.table_of(results).splitlines()]
    demo, dense = ([cell.strip() for cell in row[1:-1]] for row in rows[2:])
    assert demo == ["the demo", "", "1.00", "3.000", "25.0", ""]
    assert dense[2:5] == ["0.80", "3.250", "23.0"]
    assert dense[5] == "-2.0 (-3.0 to -1.0)"


def test_recipes_need_the_data_of_the_demo_and_say_if_they_are_interrupted(
    load, tmp_path, monkeypatch, capsys
):
    recipes = load("recipes")
    monkeypatch.setattr(sys, "argv", ["recipes.py", "--data", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        recipes.main()
    assert end.value.code == 2
    assert f"there is no folder {tmp_path / 'corpus'}. Make both" in capsys.readouterr().err
    for part in ("corpus", "prepared"):
        (tmp_path / part).mkdir()

    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(recipes, "compare", interrupted)
    with pytest.raises(SystemExit) as end:
        recipes.main()
    assert end.value.code == 130
    assert "The same command goes on from there." in capsys.readouterr().err
