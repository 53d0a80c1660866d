"""What a checkpoint of training holds, and budget.json."""

import dataclasses
import types

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gshard_nmt.errors import UserError
from gshard_nmt.run import training_state
from gshard_nmt.run.checkpoint.checkpoint_writer import CheckpointWriter
from gshard_nmt.run.checkpoint.manifest import Scores
from gshard_nmt.run.training_state import Patience, RunCounters, TrainingState
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpec
from gshard_nmt.spmd.mesh import Mesh
from tests.train_loop import DEMO


def programs(*names: str) -> types.SimpleNamespace:
    """The programs of a run whose state has these arrays."""
    specs = dict.fromkeys(names, ArraySpec((2, 3), np.dtype(np.float32), "EM"))
    return types.SimpleNamespace(devices=runtime.start(DEMO.mesh), state_specs=specs, config=DEMO)


def training(of: types.SimpleNamespace, value: float = 0.0, **facts) -> TrainingState:
    """A state in which the arrays are value, value + 1 and so on."""
    arrays = {n: np.full((2, 3), value + i, np.float32) for i, n in enumerate(of.state_specs)}
    shape = training_state.input_specs(DEMO.data)["position"].shape[:-1]
    position = np.arange(np.prod(shape)).reshape(shape) - 2**40
    facts = {"counters": RunCounters(step=3), "patience": Patience("dev_nll")} | facts
    return TrainingState(of.devices.put(arrays, of.state_specs), position, **facts)


def test_a_checkpoint_restores_the_state_the_input_and_the_counters(tmp_path):
    of = programs("parameters/a/w", "moments/row/a/w", "ema/a/w", "step")
    checkpoints = CheckpointWriter(tmp_path / "checkpoints")
    counters = RunCounters(step=3, tokens={"fr": 9, "de": 5}, seconds=1.5)
    patience = Patience("dev_bleu", best=12.5, validations=1)
    state = training(of, counters=counters, patience=patience)
    for counters.step in (3, 4):
        training_state.save(checkpoints, of, state)
    checkpoints.close()
    # The newest is damaged, so the one before it is used, and the user is told.
    (tmp_path / "checkpoints" / "4" / "manifest.ocdbt").unlink()
    notes: list[str] = []
    restored = training_state.restore(checkpoints, of, notes.append)
    assert restored.counters == RunCounters(step=3, tokens={"fr": 9, "de": 5}, seconds=1.5)
    assert restored.patience == patience
    (problem,) = notes
    assert problem.startswith(f"{tmp_path}/checkpoints/4: its arrays cannot be read: ")
    assert problem.endswith(". Going on from step 3")
    np.testing.assert_array_equal(restored.position, state.position)
    assert restored.arrays.keys() == state.arrays.keys()
    for name, array in state.arrays.items():
        np.testing.assert_array_equal(restored.arrays[name], array)


@pytest.mark.parametrize(
    ("before", "note"),
    [
        (False, "Train.ema is new: the average begins as the weights of step 3"),
        (True, "Train.ema is off: the average of step 3 is left out"),
    ],
)
def test_the_moving_average_may_be_switched_on_and_off(tmp_path, before, note):
    plain, both = programs("parameters/w", "m"), programs("parameters/w", "m", "ema/w")
    first, second = (both, plain) if before else (plain, both)
    checkpoints = CheckpointWriter(tmp_path / "checkpoints")
    state = training(first)
    training_state.save(checkpoints, first, state)
    checkpoints.close()
    assert ("ema" in checkpoints.manifest(3).tensors) == before
    notes: list[str] = []
    arrays = training_state.restore(checkpoints, second, notes.append).arrays
    assert notes == [note]
    assert arrays.keys() == second.state_specs.keys()
    for name, array in arrays.items():
        expected = state.arrays["parameters/w" if name == "ema/w" else name]
        np.testing.assert_array_equal(array, expected)
    if not before:
        weight, average = arrays["parameters/w"], arrays["ema/w"]
        assert average.sharding == weight.sharding
        # The step reuses the memory of both.
        weight.delete()
        np.testing.assert_array_equal(average, state.arrays["parameters/w"])


def test_a_state_that_is_not_finite_is_not_saved(tmp_path):
    of = programs("parameters/w")
    checkpoints = CheckpointWriter(tmp_path / "checkpoints")
    message = r"the state of step 3 is damaged and is not saved \(not finite: parameters/w"
    with pytest.raises(UserError, match=message):
        training_state.save(checkpoints, of, training(of, np.nan))
    checkpoints.close()
    assert checkpoints.steps() == []


SCHEDULE = ({"from_step": 5, "temperature": 1.0},)
DATA = load_config("demo").replace(data={"rows": 8, "schedule": SCHEDULE}).data
SPECS = training_state.input_specs(DATA)


def position() -> np.ndarray:
    """Numbers of more than 32 bits: the columns of two phases."""
    numbers = np.arange(32, dtype=np.int64).reshape(8, 4) * 2**33 + 7
    numbers[:, 2] = np.arange(8) + 2**40
    return numbers


def test_it_comes_back_as_it_was_on_any_mesh():
    for shape in (1, 2, 8):
        devices = runtime.start(Mesh(shape=(shape,)))
        array = training_state.position_to_devices(position(), SPECS, devices)["position"]
        assert array.dtype == np.int32
        assert array.addressable_shards[0].data.shape == (8 // shape, 4, 2)
        restored = training_state.position_from_devices(array)
        np.testing.assert_array_equal(restored, position())
        assert restored.dtype == np.int64


def test_a_process_reads_only_the_rows_of_its_own_devices():
    devices = runtime.start(Mesh(shape=(4,)))
    array = training_state.position_to_devices(position(), SPECS, devices)["position"]
    shards = array.addressable_shards[2:]
    local = types.SimpleNamespace(shape=array.shape, addressable_shards=shards)
    restored = training_state.position_from_devices(local)
    np.testing.assert_array_equal(restored[4:], position()[4:])
    assert not restored[:4].any()


def test_the_words_are_low_word_first():
    arrays = training_state.position_to_devices(position(), SPECS, runtime.start(Mesh()))
    assert np.asarray(arrays["position"])[3, 2].tolist() == [3, 2**8]
    assert jax.tree.map(lambda array: array.shape, arrays) == {"position": (8, 4, 2)}


def counted(patience: Patience, *values: float, **settings: object) -> Patience:
    for value in values:
        patience.count(Scores({patience.metric: value}, settings))
    return patience


def test_a_run_ends_after_the_given_number_of_validations_without_a_better_score():
    patience = counted(Patience("dev_nll"), 3.0, 2.0, 2.0, 2.5)
    assert patience.best == 2.0
    assert patience.is_over(2)
    assert not patience.is_over(3)
    assert not patience.is_over(0)
    assert not counted(patience, 1.9).is_over(1)


def test_scores_with_other_settings_start_the_count_anew():
    patience = counted(Patience("dev_bleu"), 30.0, 20.0, bleu_sentences=10)
    assert patience.validations == 1
    counted(patience, 5.0, bleu_sentences=100)
    assert (patience.best, patience.validations) == (5.0, 0)


def test_the_count_is_resumed_unless_another_metric_is_followed():
    patience = counted(Patience("dev_nll"), 2.0, 2.0, dev_batches=1)
    manifest = types.SimpleNamespace(facts={"patience": dataclasses.asdict(patience)})
    assert training_state.without_arrays(manifest, "dev_nll").patience == patience
    assert training_state.without_arrays(manifest, "dev_bleu").patience == Patience("dev_bleu")
    assert training_state.without_arrays(None, "dev_nll").patience == Patience("dev_nll")


def test_the_count_begins_when_bleu_is_above_0():
    patience = Patience("dev_bleu")
    for score in (0.0, 0.0, 0.0, 0.0):
        patience.count(Scores({"dev_bleu": score}))
        assert patience.validations == 0
    for score, validations in ((3.0, 0), (0.0, 1), (3.0, 2), (3.1, 0)):
        patience.count(Scores({"dev_bleu": score}))
        assert patience.validations == validations
    nll = Patience("dev_nll")
    for validations in (0, 1, 2):
        nll.count(Scores({"dev_nll": 0.0}))
        assert nll.validations == validations


LANGUAGES = ("fr", "de")


class TokensSeen:
    """The metric `tokens_seen`; it counts how often the host waits for it."""

    waits = 0

    def __init__(self, *numbers: int) -> None:
        self._words = np.array([[n % 2**32, n >> 32] for n in numbers], np.uint32)

    def __array__(self, dtype=None, copy=None):
        TokensSeen.waits += 1
        return self._words


def test_tokens_are_those_of_the_last_step_that_was_read():
    run = RunCounters()
    run.count(TokensSeen(5, 0), LANGUAGES)
    run.read()
    assert run.tokens == {"fr": 5}  # a language without tokens is left out
    run.count(TokensSeen(6, 1), LANGUAGES)
    run.count(TokensSeen(2**40, 3), LANGUAGES)
    assert (run.step, run.total_tokens) == (3, 5)
    run.read()
    assert run.tokens == {"fr": 2**40, "de": 3}
    assert run.total_tokens == 2**40 + 3
    before = TokensSeen.waits
    run.read()
    assert TokensSeen.waits == before, "nothing is new"
    assert RunCounters(**dataclasses.asdict(run)) == run


def test_seconds_leave_out_compilation_and_validation(now):
    run, seen = RunCounters(seconds=7.0), TokensSeen(0, 0)
    now.now += 60  # compilation
    run.skip_time()
    now.now += 2
    run.count(seen, LANGUAGES)
    now.now += 30  # validation
    run.skip_time()
    now.now += 3
    run.count(seen, LANGUAGES)
    now.now += 1
    run.count(seen, LANGUAGES)
    assert run.seconds == 7 + 2 + 3 + 1


def test_a_run_without_a_token_limit_never_waits_for_its_tokens():
    run, before = RunCounters(step=3, tokens={"fr": 10**9}), TokensSeen.waits
    for _ in range(6):
        assert not run.is_complete(10, 0, 100)
        run.count(TokensSeen(10**9, 0), LANGUAGES)
    run.count(TokensSeen(10**9, 0), LANGUAGES)
    assert run.is_complete(10, 0, 100)
    assert TokensSeen.waits == before


@given(
    fills=st.lists(st.integers(1, 1000), min_size=1, max_size=60),
    max_tokens=st.integers(1, 20_000),
    log_every=st.integers(1, 70),
    resumed_at=st.integers(0, 60),
)
def test_a_run_ends_at_the_first_step_that_reaches_its_tokens(
    fills, max_tokens, log_every, resumed_at
):
    """Neither log_every nor a restart changes the step."""
    totals = [0, *np.cumsum(fills).tolist()]
    last = next((step for step, total in enumerate(totals) if total >= max_tokens), len(fills))
    run = RunCounters()
    while not run.is_complete(len(fills), max_tokens, 1000):
        run.count(TokensSeen(totals[run.step + 1], 0), LANGUAGES)
        if run.step % log_every == 0 or run.step == resumed_at:
            run.read()
        if run.step == resumed_at:
            run = RunCounters(**dataclasses.asdict(run))
    assert run.step == last


def test_the_host_waits_for_few_steps_of_a_run_with_a_token_limit():
    """Batches are 90 % full. The host looks again only when full batches could have reached the limit."""
    run, before = RunCounters(), TokensSeen.waits
    while not run.is_complete(10**6, 900 * 2000, 1000):
        run.count(TokensSeen(900 * (run.step + 1), 0), LANGUAGES)
    assert run.step == 2000
    assert TokensSeen.waits - before <= 6
