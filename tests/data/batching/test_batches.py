"""Batches: whole examples, exact epochs, exact resume, the same for any number of processes."""

import dataclasses
import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.data.batching import batches as batches_module
from gshard_nmt.data.batching.batches import TrainBatches, dev_batches, dev_examples, dev_pairs
from gshard_nmt.data.config import Data
from gshard_nmt.data.sets.records import ShardReader
from gshard_nmt.data.text.vocabulary import BOS
from gshard_nmt.errors import UserError
from tests.data.synthetic import write_prepared_data

CONFIG = Data(source_length=24, target_length=20, rows=4, packing_window=3)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "prepared"
    return write_prepared_data(folder, CONFIG, {"fr": 120, "de": 40})


def take(batches: TrainBatches, number: int):
    """Returns the next batches and the position after them, and stops the iterator."""
    taken = [next(batches) for _ in range(number)]
    position = batches.position()
    batches.close()
    return taken, position


def unpack(arrays) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Returns the examples of a batch, row by row."""
    examples = []
    for row in range(len(arrays["source_ids"])):
        for segment in range(1, arrays["source_segments"][row].max() + 1):
            source = arrays["source_ids"][row][arrays["source_segments"][row] == segment]
            target = arrays["target_labels"][row][arrays["target_segments"][row] == segment]
            examples.append((tuple(source.tolist()), tuple(target.tolist())))
    return examples


def train_examples(data, config) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [
        (tuple(example.source.tolist()), tuple(example.target.tolist()))
        for pair in data.pairs_of(config)
        for example in data.reader(pair, "train").read(np.arange(pair.splits["train"].examples))
    ]


def test_batches_hold_whole_examples_of_the_data(data):
    (arrays, second), _ = take(TrainBatches(data, CONFIG), 2)
    examples = unpack(arrays)
    assert set(examples) <= set(train_examples(data, CONFIG))
    assert len(examples) > CONFIG.rows
    assert unpack(second) != examples
    tokens = (arrays["source_segments"] > 0).sum() + (arrays["target_segments"] > 0).sum()
    assert tokens == sum(len(s) + len(t) for s, t in examples)
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
    shown = {example for arrays in batches for example in unpack(arrays)}
    assert shown == set(train_examples(data, config))


def on_hosts(data, config, hosts: int, steps: int, state=None):
    """Returns the batches of some hosts that train together, and the position that they save."""
    taken = []
    position = np.zeros((config.rows, 2 + len(config.phases)), np.int64)
    for rows in np.split(np.arange(config.rows), hosts):
        batches, after = take(TrainBatches(data, config, rows.tolist(), state), steps)
        taken.append(batches)
        position[rows] = after[rows]
    return [
        {name: np.concatenate([part[step][name] for part in taken]) for name in taken[0][0]}
        for step in range(steps)
    ], position


@settings(deadline=None, max_examples=8)
@given(
    parts=st.lists(
        st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 4)), min_size=1, max_size=3
    ),
    window=st.integers(1, 5),
    seed=st.integers(0, 3),
    schedule=st.sampled_from([(), ({"from_step": 3, "temperature": 1.0, "weights": {"de": 0}},)]),
)
def test_any_restarts_on_any_numbers_of_hosts_give_the_same_batches(
    data, parts, window, seed, schedule
):
    """16 rows are 2 streams, so 4 or 8 hosts share the rows of a stream."""
    config = dataclasses.replace(
        CONFIG, rows=16, packing_window=window, seed=seed, schedule=schedule
    )
    whole, last_state = take(TrainBatches(data, config), sum(steps for _, steps in parts))
    batches, state = [], None
    for hosts, steps in parts:
        made, state = on_hosts(data, config, hosts, steps, state)
        batches += made
    for arrays, made in zip(whole, batches, strict=True):
        for name in arrays:
            np.testing.assert_array_equal(arrays[name], made[name])
    np.testing.assert_array_equal(state, last_state)


@pytest.mark.parametrize(("cpus", "parts"), [(1, [40]), (6, [16, 16, 8])])
def test_other_processes_make_the_same_batches_at_the_same_positions(
    data, monkeypatch, cpus, parts
):
    """Each has whole streams."""
    monkeypatch.setattr(batches_module, "usable_cpus", lambda: cpus)
    config = dataclasses.replace(CONFIG, rows=40)  # 5 streams
    expected, state = take(TrainBatches(data, config), 9)
    batches = TrainBatches(data, config, apart=True)
    assert [len(process._call[1][2]) for process in batches._apart] == parts
    first, between = take(batches, 5)
    rest, after = take(TrainBatches(data, config, position=between, apart=True), 4)
    for arrays, made in zip(expected, first + rest, strict=True):
        for name in arrays:
            np.testing.assert_array_equal(arrays[name], made[name])
    np.testing.assert_array_equal(after, state)


@pytest.mark.parametrize("apart", [False, True])
def test_an_error_of_the_background_is_raised_in_the_training_loop(tmp_path, monkeypatch, apart):
    monkeypatch.setattr(batches_module, "usable_cpus", lambda: 4)
    config = dataclasses.replace(CONFIG, rows=32)
    broken = write_prepared_data(tmp_path / "prepared", config, {"fr": 20})
    (shard,) = (tmp_path / "prepared" / "fr-en").glob("train-*")
    shard.unlink()
    batches = TrainBatches(broken, config, apart=apart)
    with pytest.raises(UserError, match="train-00000"):
        next(batches)
    batches.close()


def test_a_reader_that_hangs_does_not_keep_the_process_alive(data, monkeypatch):
    """A file server that is dead never answers."""
    reads, answers = threading.Event(), threading.Event()

    def hang(self, shards, places):
        reads.set()
        answers.wait()
        raise OSError

    monkeypatch.setattr(ShardReader, "read_many", hang)
    batches = TrainBatches(data, CONFIG)
    assert reads.wait(10)
    batches.close(seconds=0.05)
    assert batches._thread.daemon
    assert batches._thread.is_alive()
    answers.set()
    batches.close(10)
    assert not batches._thread.is_alive()


def test_a_batch_can_be_waited_for(data):
    batches = TrainBatches(data, CONFIG)
    batches.wait()
    assert batches._queue.qsize()
    batches.close()


def test_close_closes_the_shards(data):
    batches = TrainBatches(data, CONFIG)
    next(batches)
    files = len(os.listdir("/proc/self/fd"))
    batches.close()
    assert len(os.listdir("/proc/self/fd")) == files - 2


def test_dev_batches_hold_every_dev_example_once(data):
    batches = list(dev_batches(data, CONFIG, "fr", 100))
    assert all(batch["source_ids"].shape == (CONFIG.rows, 24) for batch in batches)
    packed = sorted(example for batch in batches for example in unpack(batch))
    (pair,) = dev_pairs(data, CONFIG, "fr")
    examples = dev_examples(data, pair, 0)
    assert len(examples) == 30
    assert packed == sorted((tuple(e.source.tolist()), tuple(e.target.tolist())) for e in examples)
    assert len(list(dev_batches(data, CONFIG, "fr", 1))) == 1 < len(batches)
    assert len(dev_examples(data, pair, 7)) == 7


def test_a_dev_batch_has_text_of_all_directions(tmp_path):
    config = dataclasses.replace(CONFIG, direction="many-to-many")
    data = write_prepared_data(tmp_path / "data", config, {"fr": 400})
    (batch,) = dev_batches(data, config, "fr", 1)
    packed = sorted(unpack(batch))
    directions = [dev_examples(data, pair, 0) for pair in dev_pairs(data, config, "fr")]
    turns = [example for turn in zip(*directions, strict=True) for example in turn]
    pairs = [(tuple(e.source.tolist()), tuple(e.target.tolist())) for e in turns]
    assert packed == sorted(pairs[: len(packed)])
    assert 2 < len(packed) < len(directions[0])
