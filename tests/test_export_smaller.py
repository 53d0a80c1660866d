"""A smaller model for some languages: its run folder, its weights, and what is refused."""

import numpy as np
import pytest

from gshard_nmt import export as program
from gshard_nmt.data.sets.corpus import write_pairs
from gshard_nmt.errors import UserError
from gshard_nmt.exchange import run_folders
from gshard_nmt.exchange.run_folders import chosen_directions
from gshard_nmt.export import export_smaller
from gshard_nmt.import_model import import_model
from gshard_nmt.run.folder import RunFolder, hash_of_settings
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.settings.values import read_run_config
from tests.exchange.test_huggingface import GOLDENS
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
    monkeypatch.setattr(program.smaller, "used_ids", lambda number, blocks: {number})
    monkeypatch.setattr(
        program.smaller,
        "kept_ids",
        lambda number, used, dropped: np.array(sorted({*used, 10 * number})),
    )
    config = load_config(name).replace(model={"shared_embedding": is_shared})
    kept = program._kept_ids(config, {"source": 1, "target": 2}, {}, set())
    expected = ([1, 2, 10, 20], [1, 2, 10, 20]) if is_same else ([1, 10], [2, 20])
    assert (kept["source"].tolist(), kept["target"].tolist()) == expected


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
