"""A run that starts from another run: what is read, printed and recorded, and what is refused."""

import dataclasses
import json
import shutil
import types

import numpy as np
import pytest

from gshard_nmt.data.sets.manifest import checksum
from gshard_nmt.data.text.vocabulary import Vocabulary, VocabularySpec, train_vocabulary
from gshard_nmt.errors import UserError
from gshard_nmt.run.arrays import as_groups, state_specs, step_functions, weight_specs, weights_of
from gshard_nmt.run.checkpoint.checkpoint_writer import CheckpointWriter
from gshard_nmt.run.checkpoint.manifest import Scores
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.starting_point import Init, StartingPoint, _matched_rows
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.processes import ALONE
from tests.model.examples import TOGETHER
from tests.run.facts import budget_facts, data_facts
from tests.train_loop import prepared

__all__ = ["prepared"]

CONFIG = load_config("demo").replace(
    data={"source_length": 24, "target_length": 20, "rows": 4, "minimum_pairs": 1},
    model={"model_dim": 8, "hidden_dim": 12, "expert_hidden_dim": 12, "heads": 2, "head_dim": 4},
    mesh={"shape": (1,)},
    optimizer={"min_factored_size": 8},
    train={"ema": 0.5, "bleu_sentences": 0},
)
STEPS = (3, 6)


def values_of(config, data, seed: int) -> dict[str, np.ndarray]:
    """Random values of every array of a state."""
    random = np.random.default_rng(seed)
    specs = state_specs(step_functions(config, data.summary(config.data)))
    return {n: (9 * random.random(s.shape)).astype(s.dtype) for n, s in specs.items()}


@pytest.fixture(scope="module")
def other(tmp_path_factory, prepared):
    """A run folder with two checkpoints; that of step 3 is the best."""
    run = RunFolder(tmp_path_factory.mktemp("other") / "run")
    run.claim(CONFIG, prepared)
    save(run, CONFIG, prepared, STEPS)
    return run


def save(run, config, data, steps) -> None:
    """Writes checkpoints of random values."""
    devices = runtime.start(config.mesh)
    specs = state_specs(step_functions(config, data.summary(config.data)))
    letters = {g: {n: s.letters for n, s in t.items()} for g, t in as_groups(specs).items()}
    checkpoints = CheckpointWriter(run.checkpoints, identity=run.identity())
    for step in steps:
        groups = as_groups(devices.put(values_of(config, data, step), specs))
        facts = {"seconds": 1.0, "tokens": {}, "moment_steps": 40}
        scores = Scores({"dev_nll": float(step)}, {"dev_batches": 1})
        checkpoints.save(step, groups, letters, facts, scores)
    checkpoints.close()


@pytest.fixture
def run(tmp_path):
    """The folder of a new run."""
    (tmp_path / "new").mkdir()
    return RunFolder(tmp_path / "new")


def start(run, other, data, config=CONFIG, checkpoint="best", note=lambda line: None):
    """Returns the old state and the state of step 0 of a run that starts from another one."""
    functions = step_functions(config, data.summary(config.data))
    point = StartingPoint.find(run, Init.of(other.path, checkpoint), config, data, functions)
    devices = runtime.start(config.mesh)
    old = point.read(devices, ALONE)
    initial = devices.put(values_of(config, data, 0), state_specs(functions))
    old.report(run, True, note)
    return old, {name: np.asarray(array) for name, array in old.applied_to(initial).items()}


def test_an_equal_run_starts_with_the_weights_and_moments_to_the_bit(run, other, prepared):
    old, state = start(run, other, prepared)
    before, initial = values_of(CONFIG, prepared, 3), values_of(CONFIG, prepared, 0)
    assert state.keys() == initial.keys()
    for name, array in state.items():
        group, _, rest = name.partition("/")
        # The average of the best checkpoint becomes the weights, and the new average begins as they do.
        wanted = {"parameters": f"ema/{rest}", "ema": name, "moments": name}.get(group)
        expected = initial[name] if wanted is None else before[wanted]
        assert array.tobytes() == expected.tobytes(), name
    # The moments have seen the steps of the run, and of the run before it.
    assert old.moment_steps == 3 + 40


@pytest.mark.parametrize(
    ("checkpoint", "step", "group", "moment_steps"),
    [("last", 6, "ema", 46), ("average:2", 0, "ema", 0)],
)
def test_the_checkpoint_is_chosen_as_in_decoding(
    run, other, prepared, checkpoint, step, group, moment_steps
):
    old, state = start(run, other, prepared, checkpoint=checkpoint)
    values = [values_of(CONFIG, prepared, s) for s in ([step] if step else STEPS)]
    name = "encoder/block/moe_0/wi"
    expected = np.mean([v[f"{group}/{name}"] for v in values], axis=0)
    np.testing.assert_allclose(state[f"parameters/{name}"], expected, rtol=1e-6)
    # A mean of checkpoints has no moments.
    assert old.moment_steps == moment_steps
    moments = values[0] if moment_steps else values_of(CONFIG, prepared, 0)
    name = f"moments/full/{name}"
    name = name if name in state else name.replace("full", "row")
    np.testing.assert_array_equal(state[name], moments[name])


def test_the_table_has_each_weight_once_and_init_json_has_the_table(run, other, prepared, capsys):
    config = CONFIG.replace(
        model={"experts": 0, "encoder_layers": 3, "decoder_layers": 2, "moe_every": 1},
        train={"freeze": ("decoder/*",)},
    )
    notes = []
    start(run, other, prepared, config, note=notes.append)
    lines = capsys.readouterr().out.splitlines()
    record = json.loads((run.path / "init.json").read_text())
    assert len(lines) == len(record["arrays"]) + 1
    assert [line.split()[0] for line in lines[1:]] == [row["array"] for row in record["arrays"]]
    declared = step_functions(config, prepared.summary(config.data)).declare_parameters()
    rows = [row for row in record["arrays"] if not row["begins"].startswith("left out")]
    assert sorted(row["array"] for row in rows) == sorted(declared)
    left_out = {row["array"] for row in record["arrays"]} - {row["array"] for row in rows}
    assert left_out == {
        f"{stack}/block/moe_0/{w}"
        for stack in ("encoder", "decoder")
        for w in ("gate", "wi", "wo", "norm/scale")
    }
    by_name = {row["array"]: row for row in rows}
    assert by_name["decoder/final_norm/scale"]["moments"] == "frozen"
    assert by_name["encoder/block/self_attention_0/output"] == {
        "array": "encoder/block/self_attention_0/output",
        "shape": [3, 2, 4, 8],
        "moments": "kept",
        "begins": "copied: self_attention_0[0], self_attention_0[0] times 0, self_attention_1[0]",
    }
    assert record["weights"] == "step 3 (Train.ema)"
    assert record["checkpoint"] == "best"
    assert record["from"] == str(other.path)
    (note,) = notes
    assert note == f"starting from {other.path}, step 3 (Train.ema)"


def test_moments_change_as_their_weights_do(run, other, prepared):
    config = CONFIG.replace(model={"experts": 16, "encoder_layers": 4})
    _, state = start(run, other, prepared, config)
    before = values_of(CONFIG, prepared, 3)
    row = "moments/row/encoder/block/moe_0/wi"
    assert state[row].shape == (2, 16, 8)
    np.testing.assert_array_equal(state[row], np.tile(before[row], (2, 2, 1)))
    gate = "moments/full/encoder/block/moe_0/gate"
    gate = gate if gate in state else "moments/column/encoder/block/moe_0/gate"
    np.testing.assert_array_equal(state[gate], np.concatenate([np.tile(before[gate], 2)] * 2))
    # The output of a silent copy is 0, and its moments are not.
    name = "encoder/block/self_attention_0/output"
    assert not state[f"parameters/{name}"][1].any()
    moments = next(n for n in state if n.startswith("moments/") and n.endswith(name))
    np.testing.assert_array_equal(state[moments][1], before[moments][0])


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory, prepared):
    """Data of two vocabularies, "old" and "new"."""
    texts = ["the red apple runs fast", "the green tree sleeps", "seven apples run to the house"]
    german = ["der rote Apfel läuft", "die grünen Bäume"] * 3
    data = {}
    for name, extra, tags in (("old", [], ("<2fr>",)), ("new", german, ("<2nn>", "<2fr>"))):
        folder = tmp_path_factory.mktemp(name)
        spec = VocabularySpec(300 + 20 * len(extra), tags=tags)
        size = train_vocabulary(texts * 3 + extra, spec, folder / "source.model").size
        shutil.copy(folder / "source.model", folder / "target.model")
        sizes = dict.fromkeys(("source_vocabulary", "target_vocabulary"), size)
        summary = prepared.summary(CONFIG.data) | sizes
        data[name] = types.SimpleNamespace(folder=folder, summary=lambda _, s=summary: s)
    return data


@pytest.mark.parametrize("settings", TOGETHER.values(), ids=TOGETHER)
def test_another_vocabulary_keeps_the_rows_of_equal_pieces(tmp_path, run, vocabularies, settings):
    config, old_data, data = CONFIG.replace(model=settings), *vocabularies.values()
    source = fake_run(tmp_path / "source", old_data, config)
    old, state = start(run, source, data, config)
    before = values_of(config, old_data, 3)
    weights, _ = beside(source, data, config)
    of_pieces = {name for name, spec in old.old_specs.items() if spec.letters[0] == "V"}
    assert of_pieces == old.rows.keys()
    for weight, match in old.rows.items():
        assert (
            sum(match.is_known)
            < len(match.sources)
            == data.summary(config.data)["source_vocabulary"]
        )
        places = ("parameters", "moments/full", "moments/row", "moments/column")
        for name in {f"{place}/{weight}" for place in places} & state.keys():
            wanted = before[name.replace("parameters", "ema")]
            if len(wanted) == match.old_size:
                wanted = np.array([wanted[list(ids)].mean(0) for ids in match.sources if ids])
            has_source = [bool(ids) for ids in match.sources]
            rows = state[name] if len(state[name]) == len(wanted) else state[name][has_source]
            np.testing.assert_allclose(rows, wanted, rtol=1e-6, err_msg=name)
        # Beside learned weights, only the rows of known pieces are those of the other run.
        known, rows = np.array(match.is_known), np.asarray(weights[weight])
        np.testing.assert_array_equal(rows[known], state[f"parameters/{weight}"][known])
        assert (rows[~known] == LEARNED).all()
    for name in weights_of(state).keys() - of_pieces:
        np.testing.assert_array_equal(state[f"parameters/{name}"], before[f"ema/{name}"])
    for row in json.loads((run.path / "init.json").read_text())["arrays"]:
        if row["array"] in of_pieces:
            assert row["begins"] == old.rows[row["array"]].text
        elif row["array"] in old.old_specs:
            assert row["begins"] == "copied"


def test_each_side_begins_as_the_embedding_that_both_shared(tmp_path, run, prepared, monkeypatch):
    shared = CONFIG.replace(model={"shared_embedding": True})
    before = values_of(shared, prepared, 3)["ema/target_embedding"]
    _, state = start(run, fake_run(tmp_path / "source", prepared, shared), prepared)
    for side in ("source", "target"):
        np.testing.assert_array_equal(state[f"parameters/{side}_embedding"], before)
    seen, place = [], "gshard_nmt.run.starting_point._matched_rows"
    monkeypatch.setattr(place, lambda *words: seen.append(words[-1]) or _matched_rows(*words))
    find(run, Init.of(tmp_path / "source", "best"), prepared, shared)
    assert seen == [True]


def test_a_new_tag_begins_as_the_tags_of_the_source_if_both_share_an_embedding(tmp_path):
    """As in a model of Marian, where only the source has tags."""
    for name, added in (("old", ()), ("new", ("<2el>",))):
        (tmp_path / name).mkdir()
        for side, first in (("source", "<2fr>"), ("target", "<spare1>")):
            spec = VocabularySpec(300, tags=(first, *added))
            train_vocabulary(["a bad dad had a cab"] * 9, spec, tmp_path / name / f"{side}.model")
    new, names = types.SimpleNamespace(folder=tmp_path / "new"), ("source.model", "target.model")
    run = types.SimpleNamespace(
        identity=lambda: dict.fromkeys(names, ""),
        vocabularies=lambda: tuple(Vocabulary.load(tmp_path / "old" / name) for name in names),
    )
    tags = [Vocabulary.load(new.folder / name).tag("<2el>") for name in names]
    assert tags[0] == tags[1]
    sources = [
        _matched_rows("target_embedding", 9, run, new, shared).sources[tags[0]]
        for shared in (False, True)
    ]
    assert sources == [(), (tags[0] - 1,)]


def fake_run(path, data, config=CONFIG) -> RunFolder:
    """A run folder of data that is only vocabularies."""
    path.mkdir()
    run = RunFolder(path)
    for name in ("source.model", "target.model"):
        shutil.copy(data.folder / name, path / name)
    run.write_text("config.gin", config.text)
    files = {n: checksum(path / n) for n in ("source.model", "target.model")}
    facts = data.summary(config.data) | {"files": files | {"data": "0" * 64, "config": "0" * 64}}
    run.write_json("data.json", data_facts(**facts))
    save(run, config, data, [3])
    return run


def find(run, init, prepared, config=CONFIG):
    functions = step_functions(config, prepared.summary(config.data))
    return StartingPoint.find(run, init, config, prepared, functions)


def test_a_run_that_has_started_does_not_open_the_other_one_again(run, other, prepared, tmp_path):
    init = Init.of(other.path, "last")
    assert find(run, None, prepared) is None
    point = find(run, init, prepared)
    point.record(run)
    # Before the first checkpoint the same start is made again, also without the flag.
    assert find(run, None, prepared) == find(run, init, prepared) == point
    # The user may change the choice until then.
    another = Init.of(other.path, "best")
    assert find(run, another, prepared).init == another
    run.write_json("budget.json", budget_facts({"fr": 9}))
    gone = Init.of(tmp_path / "gone", "last")
    run.write_json("init.json", {"from": gone.run, "checkpoint": "last"})
    assert find(run, None, prepared) is find(run, gone, prepared) is None
    with pytest.raises(
        UserError, match=r"checkpoint best, but .* started from .* checkpoint last\. L"
    ):
        find(run, another, prepared)
    (run.path / "init.json").unlink()
    with pytest.raises(
        UserError, match=r"started from random weights\. Leave out --init_from to resu"
    ):
        find(run, init, prepared)


def test_what_does_not_fit_is_refused_before_anything_is_read(run, other, prepared, tmp_path):
    init = Init.of(other.path, "best")
    wide = CONFIG.replace(model={"model_dim": 16})
    with pytest.raises(
        UserError,
        match=r"has Model\.model_dim = 8, and this run has 16, so no weight fits\. Set Model\.model_dim",
    ):
        find(run, init, prepared, wide)
    with pytest.raises(UserError, match=r"is not a run folder: it has no data\.json"):
        find(run, Init.of(tmp_path, "best"), prepared)


def test_a_damaged_or_missing_checkpoint_is_named(run, other, prepared, tmp_path):
    copy = RunFolder(tmp_path / "copy")
    shutil.copytree(other.path, copy.path)
    (copy.checkpoints / "3" / "manifest.ocdbt").unlink()
    with pytest.raises(UserError, match=r"--checkpoint is 3, and it cannot be used"):
        start(run, copy, prepared, checkpoint="3")
    notes = []
    old, _ = start(run, copy, prepared, note=notes.append)
    assert old.loaded.step == 6
    assert notes[0].endswith("Using the checkpoint of step 6 (Train.ema) instead")
    assert not old.loaded.weights


LEARNED = 7.0


def beside(source, data, config):
    """Returns the weights of another run, as they are beside weights that are all `LEARNED`."""
    functions = step_functions(config, data.summary(config.data))
    point = StartingPoint.open(Init.of(source.path, "best"), config, data, functions)
    devices, specs = runtime.start(config.mesh), weight_specs(functions)
    values = {name: np.full(spec.shape, LEARNED, spec.dtype) for name, spec in specs.items()}
    return point.weights_beside(devices.put(values, specs), devices)


def test_the_old_weights_come_in_the_shapes_of_the_new_ones(other, prepared):
    """Half of 16 experts are copies, and copies of layers are new layers: they are as learned."""
    config = CONFIG.replace(model={"experts": 16, "encoder_layers": 4})
    weights, origin = beside(other, prepared, config)
    assert origin == "step 3 (Train.ema)"
    before = values_of(CONFIG, prepared, 3)
    for name in ("decoder/block/self_attention_0/query", "source_embedding"):
        np.testing.assert_array_equal(weights[name], before[f"ema/{name}"])
    for name in ("encoder/block/moe_0/wi", "encoder/block/self_attention_0/query"):
        assert (np.asarray(weights[name]) == LEARNED).all()


def test_a_complete_record_stays_if_the_run_comes_to_its_start_again(run, other, prepared):
    old, _ = start(run, other, prepared)
    before = (run.path / "init.json").read_text()
    old.record(run)
    assert (run.path / "init.json").read_text() == before
    dataclasses.replace(old, init=Init.of(other.path, "last")).record(run)
    assert "weights" not in json.loads((run.path / "init.json").read_text())
