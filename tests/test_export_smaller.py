"""A smaller model for some languages: its run folder, its vocabulary, and what is refused."""

import types

import numpy as np
import pytest
from sentencepiece import sentencepiece_model_pb2

from gshard_nmt.data.preparation.vocabulary_growth import merge
from gshard_nmt.data.sets.corpus import write_pairs
from gshard_nmt.data.text.vocabulary import Vocabulary, VocabularySpec, train_vocabulary
from gshard_nmt.errors import UserError
from gshard_nmt.exchange import run_folders
from gshard_nmt.exchange.run_folders import chosen_directions, cut_vocabulary, kept_ids, used_ids
from gshard_nmt.export import export_smaller
from gshard_nmt.import_model import import_model
from gshard_nmt.run import starting_point
from gshard_nmt.run.folder import RunFolder, hash_of_settings
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
    for name, rows in (("en-fr", ROWS[:1]), ("fr-en", ROWS[1:])):
        write_pairs(folder / "corpus" / name, "train", "en", "fr", rows)
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
    # A run that starts from it does not write these ids either.
    kept = starting_point._inherited(small, types.SimpleNamespace(folder=out))
    assert set(kept["never"]) >= set(small.data["never"])
    init = starting_point.Init(str(out), "best")
    start = types.SimpleNamespace(init=init, run=small, inherited=kept)
    starting_point.StartingPoint.record(start, RunFolder(tmp_path))
    assert not (tmp_path / "imported").exists()
    assert "less); decode with gshard-decode --workdir" in capsys.readouterr().out


def test_a_language_of_all_directions_need_not_be_named():
    pairs = [("de", "en"), ("fr", "en"), ("pl", "en")]
    assert chosen_directions(pairs, ["de", "fr"]) == pairs[:2]
    pairs = [("de", "fr"), ("fr", "de"), ("fr", "en"), ("en", "fr")]
    assert chosen_directions(pairs, ["de", "fr"]) == pairs[:2]
    # Neither the two sources nor the two targets are the same everywhere.
    pairs = [("de", "fr"), ("de", "en"), ("fr", "en")]
    assert chosen_directions(pairs, ["de", "fr"]) == pairs[:1]


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        (["en", "fx"], "--languages has fx; this model has de, en, fr"),
        (["en"], "the model translates in no direction between them"),
        (["en", "de"], "has no text of de-en, which decides what is cut. Add a folder of this pair"),
    ],
)  # fmt: skip
def test_languages_without_a_model_or_text_are_refused(folders, tmp_path, languages, message):
    with pytest.raises(UserError) as error:
        export_smaller(folders / "run", tmp_path / "small", languages, folders / "corpus")
    assert message in str(error.value)
    assert not (tmp_path / "small").exists()


GERMAN = ["Die Datei wurde nicht gefunden.", "Der Ordner ist leer; öffnen Sie die Datei Ω."]
FRENCH = ["Le fichier est introuvable.", "Ouvrez un autre fichier, le dossier est vide !"]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_text_is_split_as_before(tmp_path, kind):
    spec = VocabularySpec(size=400, model=kind, tags=("<2de>", "<2fr>", "<spare1>"))
    vocabulary = train_vocabulary(GERMAN + FRENCH, spec, tmp_path / "source.model")
    kept = kept_ids(vocabulary, used_ids(vocabulary, [GERMAN]), ["fr"])
    smaller = Vocabulary(cut_vocabulary(vocabulary, kept))
    assert smaller.size == len(kept) < vocabulary.size
    table = np.random.default_rng(1).normal(size=(vocabulary.size, 4))
    for line in GERMAN:
        (old,), (new,) = vocabulary.encode([line]), smaller.encode([line])
        assert smaller.pieces(new) == vocabulary.pieces(old)
        np.testing.assert_array_equal(table[kept][new], table[old])
    # Text of the other language is still text: bytes spell what has no piece.
    assert smaller.decode(smaller.encode(FRENCH)) == FRENCH
    assert smaller.tag("<2fr>") is None
    assert smaller.tag("<2de>") is not None
    assert smaller.tag("<spare1>") is not None
    # The training settings inside the file name the tags that stay, and no other.
    settings = sentencepiece_model_pb2.ModelProto.FromString(smaller.content).trainer_spec
    assert list(settings.control_symbols) == ["<2de>", "<spare1>"]
    assert Vocabulary(smaller.content).keys()[:4] == vocabulary.keys()[:4]


def test_merges_are_the_pieces_on_the_way():
    """abab: ab has the highest score, twice; then abab. abc: bc comes before ab."""
    scores = {"ab": -1.0, "abab": -3.0, "bc": 0.0, "abc": -4.0}
    assert merge(list("abab"), scores) == {"ab", "abab"}
    assert merge(list("abc"), scores) == {"bc", "abc"}
    assert merge(["a"], scores) == set()
    # Of two neighbours with equal scores, the first are merged.
    assert merge(list("xyz"), {"xy": -1.0, "yz": -1.0, "xyz": -2.0}) == {"xy", "xyz"}
