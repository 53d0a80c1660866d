"""A model that transformers wrote is imported, trained further, gets a language, and goes back."""

import json

import numpy as np
import pytest

from gshard_nmt.cli import commands
from gshard_nmt.data.sets.corpus import write_pairs
from gshard_nmt.exchange.huggingface_weights import Tensors
from tests.exchange.test_huggingface import GOLDENS

WORDS = """
the le, file fichier, is est, missing introuvable, open ouvrez, one un, other autre, folder dossier,
empty vide, no non, it il, has a
"""
ENGLISH, FRENCH = zip(*map(str.split, WORDS.split(",")), strict=True)
# Another language for a program that checks its script.
BACKWARDS = [word[::-1] for word in FRENCH]
GREEK = [word.translate(str.maketrans("abdefhilnoprstuv", "αβδεφηιλνοπρστυω")) for word in FRENCH]
FEW = ["--gin=Train.steps = 2", "--gin=Data.rows = 2", "--gin=Data.packing_window = 4"]


def write_corpus(folder, language, words):
    rng = np.random.default_rng(1)
    for split, number in (("train", 100), ("dev", 3), ("test", 3)):
        chosen = [rng.integers(0, len(words), rng.integers(2, 6)) for _ in range(number)]
        rows = [tuple(" ".join(t[i] for i in row) for t in (words, ENGLISH)) for row in chosen]
        write_pairs(folder / f"{language}-en", split, language, "en", rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "language", "words", "source"),
    [("m2m_100", "cs", BACKWARDS, "cs"), ("marian", "el", GREEK, "en")],
)
def test_an_imported_model_goes_further_and_back(
    name, language, words, source, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "text", "fr", FRENCH)
    write_corpus(tmp_path / "new", language, words)

    def run(*arguments):
        assert commands.main([str(argument) for argument in arguments]) == 0
        return capsys.readouterr()

    run("import", "--from", GOLDENS / name, "--workdir", "first")
    config = ["--config", "first/config.gin"]
    prepare = ["data", "prepare", *config, "--corpus", "text", "--vocabulary_of", "first"]
    run(*prepare, "--out", "data")
    # The products of a run that multiplies bfloat16 are not those of the model that is exported.
    exact = "--gin=Model.matmul_precision = 'default'"
    adding = ["train", "--add_language", language, "--data", "new", "--workdir", "third"]
    adding += ["--gin=Train.steps = 2", "--gin=Train.bleu_sentences = 2", exact]
    if name == "marian":
        assert commands.main([*adding, "--init_from", "first"]) == 2
        assert (
            "first has no prepared data of its own, and --replay is not given"
            in capsys.readouterr().err
        )
        run(*adding, "--init_from", "first", "--replay", "data", *FEW[1:])
    else:
        run("train", *config, "--data=data", "--init_from=first", "--workdir=second", exact, *FEW)
        run(*adding, "--init_from", "second")
    run("export", "--workdir", "third", "--out", "exported", "--format", "huggingface")
    run("import", "--from", "exported", "--workdir", "fourth")

    # What was trained is written: all but the bias, which stays.
    old, new = Tensors(GOLDENS / name), Tensors(tmp_path / "exported")
    assert new.unread == {tensor for tensor in old.unread if "embed_positions" not in tensor}
    sizes = [json.loads((t.folder / "config.json").read_text())["vocab_size"] for t in (old, new)]
    before, after = (
        t.read("model.shared.weight", (size, 16)) for t, size in zip((old, new), sizes, strict=True)
    )
    assert len(after) > len(before)
    assert not np.allclose(after[: len(before)], before)
    (tmp_path / "lines").write_text("\n".join(ENGLISH if source == "en" else words) + "\n")
    languages = ["--lang", source, "--target", language if source == "en" else "en"]
    for workdir in ("third", "fourth"):
        options = ["--input", "lines", "--format", "jsonl", "--output", f"{workdir}.jsonl"]
        run("decode", "--workdir", workdir, *languages, *options, "--beam", "2")
    results = [
        [json.loads(line) for line in (tmp_path / f"{workdir}.jsonl").read_text().splitlines()]
        for workdir in ("third", "fourth")
    ]
    for third, fourth in zip(*results, strict=True):
        (ours,), (theirs,) = third["translations"], fourth["translations"]
        assert ours["text"] == theirs["text"]
        assert ours["score"] == pytest.approx(theirs["score"], abs=1e-3)
