"""Batches: whole examples, exact epochs, exact resume, the same for any number of processes."""

import collections
import dataclasses
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.data.batches import TrainBatches, dev_batches, dev_examples
from gshard_nmt.data.config import Data
from gshard_nmt.data.vocabulary import BOS
from tests.data.synthetic import write_prepared_data

CONFIG = Data(source_length=24, target_length=20, rows=4, packing_window=3)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "prepared"
    return write_prepared_data(folder, CONFIG, {"fr": 120, "de": 40})


def take(batches: TrainBatches, number: int):
    """Returns the next batches and the state after them, and stops the iterator."""
    taken = [next(batches) for _ in range(number)]
    state = batches.state()
    batches.close()
    return taken, state


def unpack(arrays) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Returns the examples of a batch, row by row."""
    examples = []
    for row in range(len(arrays["source_ids"])):
        segments = arrays["source_segments"][row].max()
        for segment in range(1, segments + 1):
            source = arrays["source_ids"][row][arrays["source_segments"][row] == segment]
            target = arrays["target_labels"][row][arrays["target_segments"][row] == segment]
            examples.append((tuple(source.tolist()), tuple(target.tolist())))
    return examples


def train_examples(data, config) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    readers = [data.reader(pair, "train") for pair in data.pairs_of(config)]
    return [
        (tuple(example.source.tolist()), tuple(example.target.tolist()))
        for reader in readers
        for example in reader.read(np.arange(len(reader)))
    ]


def assert_equal_batches(batches, others) -> None:
    for (arrays, info), (other_arrays, other_info) in zip(batches, others, strict=True):
        assert info == other_info
        assert arrays.keys() == other_arrays.keys()
        for name in arrays:
            np.testing.assert_array_equal(arrays[name], other_arrays[name])


def test_batches_hold_whole_examples_of_the_data(data):
    ((arrays, info), (second, _)), _ = take(TrainBatches(data, CONFIG), 2)
    examples = unpack(arrays)
    assert set(examples) <= set(train_examples(data, CONFIG))
    assert len(examples) > CONFIG.rows
    assert unpack(second) != examples
    tokens = (arrays["source_segments"] > 0).sum() + (arrays["target_segments"] > 0).sum()
    assert tokens == sum(len(s) + len(t) for s, t in examples)
    assert info.fill == tokens / (CONFIG.rows * (CONFIG.source_length + CONFIG.target_length))
    for side in ("source", "target"):
        starts = arrays[f"{side}_positions"] == 0
        np.testing.assert_array_equal(arrays[f"{side}_segments"][~starts] > 0, True)
    begins = (arrays["target_positions"] == 0) & (arrays["target_segments"] > 0)
    assert (arrays["target_inputs"][begins] == BOS).all()
    inside = arrays["target_positions"] > 0
    np.testing.assert_array_equal(
        arrays["target_inputs"][inside], np.roll(arrays["target_labels"], 1, axis=1)[inside]
    )


def test_a_run_of_one_language_shows_each_of_its_examples(data):
    config = dataclasses.replace(CONFIG, languages=("de",))
    batches, _ = take(TrainBatches(data, config), 30)
    shown = {example for arrays, _ in batches for example in unpack(arrays)}
    assert shown == set(train_examples(data, config))


def test_each_draw_is_in_one_row_or_waits(data):
    """After any batch, the examples shown and those that wait are the draws taken, each once."""
    batches, state = take(TrainBatches(data, CONFIG), 9)
    shown = collections.Counter(example for arrays, _ in batches for example in unpack(arrays))
    source = TrainBatches(data, CONFIG)
    source.close()
    taken = [
        source.draw_number(row, np.arange(cursor)) for row, cursor in enumerate(state["cursors"])
    ]
    waiting = state["waiting"][state["waiting"] >= 0]
    assert 0 < len(waiting) <= CONFIG.rows * CONFIG.packing_window
    expected = source.read(np.setdiff1d(np.concatenate(taken), waiting))
    assert shown == collections.Counter(
        (tuple(example.source.tolist()), tuple(example.target.tolist())) for example in expected
    )


@settings(deadline=None, max_examples=6)
@given(before=st.integers(0, 12), window=st.integers(1, 5), seed=st.integers(0, 3))
def test_resuming_gives_the_batches_that_would_have_come(data, before, window, seed):
    config = dataclasses.replace(CONFIG, packing_window=window, seed=seed)
    whole, last_state = take(TrainBatches(data, config), before + 3)
    _, state = take(TrainBatches(data, config), before)
    resumed, resumed_state = take(TrainBatches(data, config, state=state), 3)
    assert_equal_batches(whole[before:], resumed)
    for name, array in last_state.items():
        np.testing.assert_array_equal(resumed_state[name], array)


def test_a_process_makes_its_own_rows_of_the_same_batches(data):
    whole, whole_state = take(TrainBatches(data, CONFIG), 3)
    part, part_state = take(TrainBatches(data, CONFIG, rows=range(1, 3)), 3)
    for (arrays, _), (part_arrays, _) in zip(whole, part, strict=True):
        for name in arrays:
            np.testing.assert_array_equal(arrays[name][1:3], part_arrays[name])
    for name, array in whole_state.items():
        np.testing.assert_array_equal(part_state[name][1:3], array[1:3])
    # The state of rows that another process makes does not change.
    assert not part_state["cursors"][[0, 3]].any()


def test_an_error_of_the_background_thread_is_raised_in_the_training_loop(data, tmp_path):
    broken = write_prepared_data(tmp_path / "prepared", CONFIG, {"fr": 20})
    (shard,) = (tmp_path / "prepared" / "fr-en").glob("train-*")
    shard.unlink()
    batches = TrainBatches(broken, CONFIG)
    with pytest.raises(Exception, match="train-00000"):
        next(batches)
    batches.close()


def test_a_reader_that_hangs_does_not_keep_the_process_alive(data, monkeypatch):
    """A file server that is dead never answers."""
    reads, answers = threading.Event(), threading.Event()

    def hang(self, draws):
        reads.set()
        answers.wait()
        raise OSError

    monkeypatch.setattr(TrainBatches, "read", hang)
    batches = TrainBatches(data, CONFIG)
    assert reads.wait(10)
    batches.close(seconds=0.05)
    assert batches._thread.daemon
    assert batches._thread.is_alive()
    answers.set()
    batches.close(10)
    assert not batches._thread.is_alive()


def test_dev_batches_hold_every_dev_example_once(data):
    batches = list(dev_batches(data, CONFIG, "fr", 100))
    assert all(batch["source_ids"].shape == (CONFIG.rows, 24) for batch in batches)
    packed = sorted(example for batch in batches for example in unpack(batch))
    examples = dev_examples(data, CONFIG, "fr", 0)
    assert len(examples) == 30
    expected = sorted((tuple(e.source.tolist()), tuple(e.target.tolist())) for e in examples)
    assert packed == expected
    assert len(list(dev_batches(data, CONFIG, "fr", 1))) == 1 < len(batches)
    assert len(dev_examples(data, CONFIG, "fr", 7)) == 7
