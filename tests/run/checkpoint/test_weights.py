"""--checkpoint: the best, the last, a step, or the mean of the last N."""

import shutil

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints, Retention
from gshard_nmt.run.checkpoint.checkpoint_writer import CheckpointWriter
from gshard_nmt.run.checkpoint.manifest import Scores
from gshard_nmt.run.checkpoint.weights import Chosen, expected_label, load_weights
from tests.run.checkpoints import LETTERS, abstract, assert_equal, make_unreadable, state

SPECS = abstract(state(1))["parameters"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with three checkpoints. That of step 20 is the best."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    writer = CheckpointWriter(folder, Retention(last=3))
    for step in (10, 20, 35):
        scores = Scores({"dev_nll": abs(step - 20.0)}, {"dev_batches": 1})
        writer.save(step, state(step), LETTERS, {"seconds": 1.0}, scores)
    writer.close()
    return folder


@pytest.fixture
def damaged(written, tmp_path):
    """A copy whose last checkpoint has arrays that cannot be read."""
    shutil.copytree(written, tmp_path / "checkpoints")
    shutil.rmtree(tmp_path / "checkpoints" / "35" / "parameters", ignore_errors=True)
    for file in (tmp_path / "checkpoints" / "35").rglob("*"):
        if file.is_file() and file.name not in ("manifest.json", "commit_success.txt"):
            file.write_bytes(b"")
    return tmp_path / "checkpoints"


def load(folder, text, specs=SPECS):
    return load_weights(Checkpoints(folder), Chosen.parse(text), specs)


@pytest.mark.parametrize(("text", "step"), [("best", 20), ("last", 35), ("10", 10), (" LAST ", 35)])
def test_one_checkpoint_is_chosen_by_name_or_step(written, text, step):
    loaded = load(written, text)
    assert (loaded.step, loaded.origin, loaded.passed_over) == (step, f"step {step}", ())
    assert_equal(loaded.weights, state(step)["parameters"])
    assert loaded.label == Checkpoints(written).manifest(step).label
    assert loaded.label == expected_label(Checkpoints(written), Chosen.parse(text))


def test_an_average_is_the_mean_of_the_newest(written):
    loaded = load(written, "average:2")
    assert (loaded.step, loaded.origin) == (35, "steps 20, 35 (averaged)")
    wanted = {}
    for name, array in state(0)["parameters"].items():
        sums = sum(np.asarray(state(step)["parameters"][name], np.float64) for step in (35, 20))
        wanted[name] = jax.device_put((sums / 2).astype(array.dtype))
    assert_equal(loaded.weights, wanted)
    labels = [Checkpoints(written).manifest(step).label for step in (35, 20)]
    assert loaded.label == f"average of {labels[0]}; {labels[1]}"
    assert loaded.label == expected_label(Checkpoints(written), Chosen("average", 2))
    assert load(written, "average:3").label != loaded.label


def with_average(step: int) -> dict[str, dict]:
    """A state whose moving average of the weights is ten times as large as the weights."""
    return state(step) | {"ema": state(10 * step)["parameters"]}


def test_the_moving_average_decodes_if_there_is_one(tmp_path):
    writer = CheckpointWriter(tmp_path, Retention(last=3))
    for step, groups in ((1, state(1)), (2, with_average(2)), (3, with_average(3))):
        writer.save(step, groups, LETTERS | {"ema": LETTERS["parameters"]}, {})
    writer.close()
    for text, scale, origin in (
        ("last", 30, "step 3 (Train.ema)"),
        ("2", 20, "step 2 (Train.ema)"),
        ("1", 1, "step 1"),
        ("average:2", 25, "steps 2, 3 (averaged, Train.ema)"),
        # The checkpoint that has no moving average counts with its weights.
        ("average:3", 17, "steps 1, 2, 3 (averaged, Train.ema)"),
    ):
        loaded = load(tmp_path, text)
        assert loaded.origin == origin
        assert_equal(loaded.weights, state(scale)["parameters"])
        assert loaded.label == expected_label(Checkpoints(tmp_path), Chosen.parse(text))


def test_an_average_is_split_over_the_devices_as_the_run_asks(written):
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    axes = {"experts/w": PartitionSpec(None, "x"), "b": PartitionSpec()}
    specs = {
        name: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=NamedSharding(mesh, axes[name]))
        for name, s in SPECS.items()
    }
    split, whole = (load(written, "average:2", s).weights for s in (specs, SPECS))
    for name, array in split.items():
        assert array.sharding == specs[name].sharding
        assert np.array_equal(np.asarray(array), np.asarray(whole[name]))


def test_a_damaged_checkpoint_is_passed_over_and_named(damaged):
    assert load(damaged, "last").step == 20
    loaded = load(damaged, "average:2")
    assert loaded.origin == "steps 10, 20 (averaged)"
    (problem,) = loaded.passed_over
    assert problem.startswith(f"{damaged / '35'}: ")


def test_an_average_takes_what_its_run_has_saved_meanwhile(written, tmp_path, monkeypatch):
    folder, sound = shutil.copytree(written, tmp_path / "checkpoints"), Checkpoints.sound
    (folder / "10").rename(tmp_path / "10")

    def beside_a_run(*arguments):
        for restored in sound(*arguments):
            if (tmp_path / "10").exists():
                (tmp_path / "10").rename(folder / "10")
                shutil.rmtree(folder / "20")
            yield restored

    monkeypatch.setattr(Checkpoints, "sound", beside_a_run)
    assert load(folder, "average:2").origin == "steps 10, 35 (averaged)"


def test_a_damaged_step_that_was_asked_for_is_an_error(damaged):
    with pytest.raises(UserError) as error:
        load(damaged, "35")
    message = str(error.value)
    assert message.startswith(f"--checkpoint is 35, and it cannot be used: {damaged / '35'}: ")
    assert message.endswith(". There are checkpoints of 10, 20; give one of these, or best.")


def test_a_disk_that_fails_says_nothing_about_a_checkpoint(written, tmp_path, monkeypatch):
    written = shutil.copytree(written, tmp_path / "copy")
    make_unreadable(written / "35" / "manifest.json")
    monkeypatch.setattr("gshard_nmt.reading.time.sleep", lambda _: None)
    for text in ("35", "average:3"):
        with pytest.raises((TryAgain, UserError), match="cannot be read"):
            load(written, text)


def test_a_step_that_does_not_exist_lists_those_that_do(written):
    with pytest.raises(UserError) as error:
        load(written, "30")
    assert str(error.value) == (
        f"--checkpoint is 30, and {written} has none of this step. There are checkpoints of 10, 20, 35; "
        "give one of these, or best."
    )
    assert expected_label(Checkpoints(written), Chosen.parse("30")) == ""


def test_an_average_of_more_than_there_are_says_how_many_are_sound(damaged):
    with pytest.raises(UserError) as error:
        load(damaged, "average:3")
    first, problem = str(error.value).split("\n")
    assert first == (
        f"--checkpoint is average:3; {damaged} has 2 sound checkpoints (10, 20). Give a smaller number, "
        "or train with a larger Train.keep_last."
    )
    assert problem.startswith(f"  {damaged / '35'}: ")


def test_a_run_without_checkpoints_is_an_error(tmp_path):
    for text in ("best", "last", "10", "average:2"):
        with pytest.raises(UserError, match="checkpoint"):
            load(tmp_path / "none", text)
        assert expected_label(Checkpoints(tmp_path / "none"), Chosen.parse(text)) == ""


@pytest.mark.parametrize(
    "text", ["", "newest", "-1", "1.5", "average", "average:", "average:x", "٣", "last:weights"]
)
def test_other_words_are_an_error(text):
    with pytest.raises(UserError, match=r"it must be best, last, a step such as 500, or average:N"):
        Chosen.parse(text)
