"""A smaller model for some languages: its run folder, its weights, and what is refused."""

import numpy as np
import pytest

from gshard_nmt.data.corpus import write_pairs
from gshard_nmt.errors import UserError
from gshard_nmt.export_smaller import chosen_pairs, export_smaller, saved
from gshard_nmt.import_model import import_model
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.values import read_run_config
from tests.exchange.test_huggingface import GOLDENS
from tests.test_import_model import weights_in

ROWS = [("The file is empty.", "Le dossier est vide."), ("No, it has three.", "Non, il a trois.")]


def pair(source: str, target: str) -> dict[str, str]:
    return {"source": source, "target": target}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """An imported run, and a corpus of en-fr."""
    folder = tmp_path_factory.mktemp("smaller")
    import_model(GOLDENS / "m2m_100", folder / "run")
    write_pairs(folder / "corpus" / "en-fr", "train", "en", "fr", ROWS)
    return folder


def test_a_smaller_run_has_the_rows_that_its_text_needs(folders, tmp_path, capsys):
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
    assert read_run_config(small.config).model == read_run_config(whole.config).model
    told = capsys.readouterr().out
    assert "embeddings" in told
    assert "experts" not in told


def test_a_language_of_all_directions_need_not_be_named():
    pairs = [pair("de", "en"), pair("fr", "en"), pair("pl", "en")]
    assert chosen_pairs(pairs, ["de", "fr"]) == pairs[:2]
    pairs = [pair("de", "fr"), pair("fr", "de"), pair("fr", "en"), pair("en", "fr")]
    assert chosen_pairs(pairs, ["de", "fr"]) == pairs[:2]


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


def test_a_folder_that_is_not_empty_is_refused(folders):
    with pytest.raises(UserError, match="is not empty; give a new folder"):
        export_smaller(folders / "run", folders / "run", ["en", "fr"], folders / "corpus")


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
