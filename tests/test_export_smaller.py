"""A smaller model for some languages: its run folder, its weights, and what is refused."""

import types

import numpy as np
import pytest

from gshard_nmt import export as program
from gshard_nmt.data.sets.corpus import find_pairs, write_pairs
from gshard_nmt.errors import UserError
from gshard_nmt.exchange import run_folders
from gshard_nmt.exchange.run_folders import chosen_directions
from gshard_nmt.exchange.smaller import Cut
from gshard_nmt.export import export_smaller, saved
from gshard_nmt.import_model import import_model
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.identity import hash_of_settings
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.settings.values import read_run_config
from tests.exchange.test_huggingface import GOLDENS
from tests.exchange.test_smaller import use_of
from tests.test_import_model import weights_in

ROWS = [("The file is empty.", "Le dossier est vide."), ("No, it has three.", "Non, il a trois.")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """An imported run on two devices, and a corpus of en-fr."""
    folder = tmp_path_factory.mktemp("smaller")
    import_model(GOLDENS / "m2m_100", folder / "run")
    run = RunFolder(folder / "run")
    run.write_text("config.gin", read_run_config(run.config).replace(mesh={"shape": (2,)}).text)
    write_pairs(folder / "corpus" / "en-fr", "train", "en", "fr", ROWS)
    return folder


def test_a_smaller_run_has_the_rows_that_its_text_needs(folders, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run_folders, "SMALLEST_VOCABULARY", 330)
    out = tmp_path / "small"
    export_smaller(folders / "run", out, ["en", "fr"], folders / "corpus")
    whole, small = RunFolder(folders / "run"), RunFolder(out)
    assert [(p["source"], p["target"]) for p in small.data["pairs"]] == [("en", "fr"), ("fr", "en")]
    before, after = weights_in(folders / "run"), weights_in(out)
    names = {"target_embedding", "output_bias"}
    for name in before.keys() - names:
        np.testing.assert_array_equal(after[name], before[name])
    old, new = whole.vocabularies(), small.vocabularies()
    assert old[0].size > new[0].size == new[1].size == len(after["target_embedding"])
    for side, line in ((0, ROWS[0][0]), (1, ROWS[0][1]), (0, ROWS[1][1])):
        was = old[side].encode_source([line], "en", "fr")[0]
        now = new[side].encode_source([line], "en", "fr")[0]
        assert old[side].pieces(was) == new[side].pieces(now)
        for name in names:
            np.testing.assert_array_equal(after[name][now], before[name][was])
    assert new[0].tag("<de>") is None
    assert len(new[0].tags("en", "fr")) == len(new[1].first("fr")) == 1
    banned = [old[1].pieces(whole.data["never"]), new[1].pieces(small.data["never"])]
    assert banned[0][:2] == banned[1][:2] == ["<pad>", "<start>"]
    assert set(banned[1]) == set(banned[0]) & set(new[1].pieces(range(new[1].size)))
    config = read_run_config(small.config)
    assert config.model == read_run_config(whole.config).model
    # Any machine can decode with one device.
    assert config.mesh.num_devices == 1
    assert small.identity()["config"] == hash_of_settings(config)
    assert small.data["prepared"]["source_vocabulary"] == config.data.source_vocabulary == 330
    assert [path.name for path in small.checkpoints.iterdir() if path.name.isdigit()] == ["0"]
    told = capsys.readouterr().out
    (row,) = [line.split() for line in told.splitlines() if line.split()[:1] == ["embeddings"]]
    share = 1 - len(after["target_embedding"]) / len(before["target_embedding"])
    assert row[-1] == f"{share:.0%}"
    assert "experts" not in told


def test_a_language_of_all_directions_need_not_be_named():
    pairs = [("de", "en"), ("fr", "en"), ("pl", "en")]
    assert chosen_directions(pairs, ["de", "fr"]) == pairs[:2]
    pairs = [("de", "fr"), ("fr", "de"), ("fr", "en"), ("en", "fr")]
    assert chosen_directions(pairs, ["de", "fr"]) == pairs[:2]
    # Neither the two sources nor the two targets are the same everywhere.
    pairs = [("de", "fr"), ("de", "en"), ("fr", "en")]
    assert chosen_directions(pairs, ["de", "fr"]) == pairs[:1]


def test_all_text_of_a_side_is_read_in_blocks(tmp_path, monkeypatch):
    """The second direction reads the same files from the other side."""
    monkeypatch.setattr(program, "_BLOCK", 2)
    lines = {"train": ROWS * 2 + ROWS[:1], "dev": [("Dev.", "Dév.")], "test": [("No.", "Non.")]}
    for split, rows in lines.items():
        write_pairs(tmp_path / "en-fr", split, "en", "fr", rows)
    (corpus,) = find_pairs(tmp_path)
    every = [row for rows in lines.values() for row in rows]
    for direction, column in ((("en", "fr"), 0), (("fr", "en"), 1)):
        for side, place in (("source", column), ("target", 1 - column)):
            blocks = list(program._blocks({direction: corpus}, side))
            assert [line for block in blocks for line in block] == [row[place] for row in every]
            assert max(map(len, blocks)) == 2


@pytest.mark.parametrize(
    ("name", "is_shared", "is_same"),
    [
        ("m2m_demo", True, True),
        ("m2m_demo", False, True),  # a joint vocabulary, whose two files must stay equal
        ("demo", False, False),
    ],
)
def test_sides_with_one_embedding_or_one_vocabulary_keep_the_ids_of_both(
    monkeypatch, name, is_shared, is_same
):
    """Each side uses an id of its own, and each vocabulary has an id that always stays."""
    monkeypatch.setattr(program, "used_ids", lambda number, blocks: {number})
    monkeypatch.setattr(
        program, "kept_ids", lambda number, used, dropped: np.array(sorted({*used, 10 * number}))
    )
    config = load_config(name).replace(model={"shared_embedding": is_shared})
    kept = program._kept_ids(config, {"source": 1, "target": 2}, {}, set())
    expected = ([1, 2, 10, 20], [1, 2, 10, 20]) if is_same else ([1, 10], [2, 20])
    assert (kept["source"].tolist(), kept["target"].tolist()) == expected


def test_the_experts_that_stay_are_those_of_the_dev_text(tmp_path, capsys):
    write_pairs(tmp_path / "en-fr", "train", "en", "fr", ROWS)
    (corpus,) = find_pairs(tmp_path)
    cut = Cut({"source": np.arange(400), "target": np.arange(7)})
    asked = []

    def expert_use(tests):
        asked.append(tests)
        return use_of([[50, 0, 49, 1], [10, 20, 30, 40], [97, 1, 1, 1]])

    translator = types.SimpleNamespace(expert_use=expert_use)
    texts = {("fr", "en"): corpus}
    with pytest.raises(
        UserError, match="--keep_choices needs dev text, and the corpus has no split"
    ):
        program._with_experts(cut, translator, texts, 0.6)
    write_pairs(tmp_path / "en-fr", "dev", "en", "fr", [("Dev.", "Dév."), ("No.", "Non.")])
    (corpus,) = find_pairs(tmp_path)
    smaller = program._with_experts(cut, translator, {("fr", "en"): corpus}, 0.6)
    assert asked == [[("fr", "en", ["Dév.", "Non."], ["Dev.", "No."])]]
    assert smaller.experts.tolist() == [[0, 2], [2, 3], [0, 1]]
    assert smaller.layers == use_of([[1], [1]]).layers
    assert "Each layer keeps 2 of 4 experts; they get 70% or more" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        (["en", "fx"], "--languages has fx; this model has de, en, fr"),
        (["en"], "the model translates in no direction between them"),
        (
            ["en", "de"],
            "has no text of de-en, which decides what is cut. Add a folder of this pair",
        ),
    ],
)
def test_languages_without_a_model_or_text_are_refused(folders, tmp_path, languages, message):
    with pytest.raises(UserError) as error:
        export_smaller(folders / "run", tmp_path / "small", languages, folders / "corpus")
    assert message in str(error.value)
    assert not (tmp_path / "small").exists()


def test_the_table_has_the_bytes_of_each_part():
    before = {
        "source_embedding": np.zeros((8, 4), np.float32),
        "encoder/block/moe_0/wi": np.zeros((1, 4, 4, 8), np.float32),
        "encoder/final_norm/scale": np.zeros(4, np.float32),
    }
    after = before | {"source_embedding": np.zeros((2, 4), np.float32)}
    assert saved(before, after) == [
        ("embeddings", 128, 32),
        ("experts", 512, 512),
        ("all weights", 656, 560),
    ]
