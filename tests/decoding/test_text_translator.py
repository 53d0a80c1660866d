"""Text: translations in the order of their lines, long lines, prefixes, scores, and weights."""

import re
import types

import numpy as np
import pytest

from gshard_nmt.decoding import text_translator as module
from gshard_nmt.decoding.expert_use import ExpertUse
from gshard_nmt.decoding.text_translator import TextTranslator, load_translator
from gshard_nmt.errors import UserError
from gshard_nmt.run.arrays import step_functions
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints, Restored, Retention
from gshard_nmt.run.checkpoint.manifest import Manifest
from gshard_nmt.run.checkpoint.weights import Loaded
from tests.decoding.copying import CONFIG, EOS, CopyingDevices, copying


class Letters:
    """A vocabulary of letters; `encode_source` marks the direction with a first id."""

    def encode_source(self, lines, source, target):
        assert (source, target) == ("fr", "en")
        return [[2, *map(ord, line), EOS] for line in lines]

    def first(self, target):
        return []

    def encode(self, texts):
        return [[ord(letter) for letter in text] for text in texts]

    def decode(self, sentences):
        return ["".join(chr(i) for i in ids if i > 2) for ids in sentences]


def text_translator(nbest: int = 1) -> TextTranslator:
    run = types.SimpleNamespace(vocabularies=lambda: (Letters(), Letters()))
    return TextTranslator(run, copying(nbest)[0], Loaded({}, 7, "", "step 7"))


def test_the_experts_are_counted_on_pairs_of_lines_that_both_have_text(monkeypatch):
    counted = []

    def count(translator, texts):
        counted.extend(texts)
        return ExpertUse([], *[np.zeros(0)] * 4)

    monkeypatch.setattr("gshard_nmt.decoding.translator.Translator.count_experts", count)
    tests = [["fr", "en", ["ab", " ", "c"], ["x", "y", ""]], ["fr", "en", [], []]]
    assert text_translator().expert_use(tests).origin == "step 7"
    assert counted == [[([2, ord("a"), ord("b"), EOS], [ord("x"), EOS]), ([], []), ([], [])], []]


@pytest.mark.parametrize("chunk_size", [1, 2, 100])
def test_text_is_translated_line_by_line_and_a_line_without_letters_is_copied(chunk_size):
    # Khmer writes the space of no width between words, and training text keeps it.
    lines = ["abcde", "", "f", "  ", "g\xad\u2060h", "a\u200bb", " ()\t… ", "\xad", "👍🏽", "1"]
    translations = list(text_translator().translate(lines, "fr", "en", chunk_size))
    copies = ["abcde", "", "f", "", "gh", "a\u200bb", "() …", "\xad", "👍🏽", "1"]
    assert [[h.text for h in nbest] for nbest in translations] == [[text] for text in copies]
    expected = [-7, 0, -3, 0, -4, -5, 0, 0, 0, -3]
    assert [nbest[0].score for nbest in translations] == expected
    pairs = list(zip(lines, [nbest[0].text for nbest in translations], strict=True))
    assert list(text_translator().score(pairs, "fr", "en")) == expected


def test_a_line_that_is_too_long_is_translated_in_pieces_that_are_joined():
    # A row has 8 ids: the mark of the direction, at most 6 letters, and the end.
    lines = ["ab. cd", "ab. cdefg hi", "", "abcdefghijklm", "ab ------- . . cd"]
    translations = [best for (best,) in text_translator().translate(lines, "fr", "en")]
    assert [best.text for best in translations] == [
        *("ab. cd", "ab. cdefg hi", ""),
        "abcdef ghi jklm",
        "ab ------- . . cd",
    ]
    assert [best.pieces for best in translations] == [1, 3, 1, 3, 4]
    # The score of a piece is minus its number of ids. Each of these lines has log-probabilities
    # -n * norm(n) for its pieces of n ids, and all their ids together.
    norm = [((5 + n) / 6) ** CONFIG.decode.alpha for n in range(40)]
    for best, sizes in ((translations[1], (5, 7, 4)), (translations[3], (8, 5, 6))):
        log_prob = -sum(n * norm[n] for n in sizes)
        assert best.score == pytest.approx(log_prob / norm[sum(sizes)])
        assert best.evidence == pytest.approx((log_prob, sum(sizes), sum(sizes), False))
    assert translations[2].evidence == (0, 0, 0, False)


def test_samples_are_sorted_by_score_after_the_pieces_of_a_long_line_are_joined():
    ids = [[ord(letter), EOS] for letter in "xyz"]
    by_piece = {"ab.": (-1.0, -3.0, -2.0), "cdef": (-9.0, -1.0, -1.0), "g": (-3.0, -1.0, -2.0)}

    def translate_ids(sources, prefixes):
        texts = ["".join(map(chr, source[1:-1])) for source in sources]
        return [
            [(tokens[:-1], score) for tokens, score in zip(ids, by_piece[text], strict=True)]
            for text in texts
        ]

    translator = text_translator(nbest=3)
    translator.of_ids.translate_ids = translate_ids
    (long, short) = translator.translate(["ab. cdef", "g"], "fr", "en")
    # A sample is joined with the samples of its number, so that the pieces stay independent.
    assert [best.text for best in long] == ["z z", "y y", "x x"]
    assert [best.text for best in short] == ["y", "z", "x"]
    for hypotheses in (long, short):
        assert [best.score for best in hypotheses] == sorted(
            (best.score for best in hypotheses), reverse=True
        )


def test_translations_begin_with_the_tag_of_their_language_if_there_is_one(monkeypatch):
    translator, calls = text_translator(), []

    def translate_ids(sources, prefixes):
        calls.append(prefixes)
        return [[([77, *ids[1:-1]], -1.0)] for ids in sources]

    monkeypatch.setattr(Letters, "first", lambda self, target: [77])
    translator.of_ids.translate_ids = translate_ids
    list(translator.translate(["a. b", "c"], "fr", "en", prefixes=["", "d"]))
    assert calls == [[[77], [77, ord("d")]]]
    # The tag is one of the tokens that the model can write.
    list(translator.translate(["a"], "fr", "en", prefixes=["x" * 12]))
    with pytest.raises(UserError, match="the prefix has 14 tokens; this model can write at most"):
        list(translator.translate(["a"], "fr", "en", prefixes=["x" * 13]))


def test_each_line_has_its_prefix_and_a_line_to_copy_with_a_prefix_is_translated():
    translate = text_translator()
    devices = translate.of_ids._devices
    prefixes = ["", "xy", "", "z"]
    translations = list(translate.translate(["ab", "c", "", " "], "fr", "en", 3, prefixes))
    assert [nbest[0].text for nbest in translations] == ["ab", "c", "", " "]
    forced = [
        "".join(map(chr, row[row > 0]))
        for batch in devices.batches
        for row in batch["prefix"][batch["source_segments"][:, 0] > 0]
    ]
    assert sorted(forced) == ["", "xy", "z"]


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (
            ("a", "x" * 14),
            "line 3: the translation has 14 tokens; this model can write at most 13. Shorten the "
            "translation, or leave the line out.",
        ),
        (
            ("a" * 7, "x"),
            "line 3 has 9 tokens; a line with a given translation can have at most 8 "
            "(Decode.source_lengths). Split the line, or leave it out.",
        ),
    ],
)
def test_a_pair_that_is_too_long_to_be_scored_is_named(pair, message):
    translate = text_translator()
    assert list(translate.score([("a" * 6, "x" * 13)], "fr", "en")) == [-8.0]
    with pytest.raises(UserError) as error:
        list(translate.score([("a", "x"), ("a", "x"), pair], "fr", "en"))
    assert str(error.value) == message
    with pytest.raises(UserError, match=r"^line 3"):
        list(translate.translate(["a", pair[0]], "fr", "en", prefixes=["", pair[1]], first_line=2))


@pytest.mark.parametrize("damaged", [[], ["checkpoints/3: it is damaged"]])
def test_the_best_checkpoint_is_loaded_and_a_damaged_one_is_named(
    monkeypatch, tmp_path, capsys, damaged
):
    class SavedCheckpoints(Checkpoints):
        def restore_best(self, groups):
            assert self.folder == tmp_path
            assert self._identity == {"config": "the hash of this run"}
            assert self.retention == Retention.of(CONFIG.train)
            step = [3, 5][len(damaged)]
            manifest = Manifest(step, {}, saved_at=1.0)
            ((group, specs),) = groups(manifest).items()
            weights = {"weights of": step, "names": list(specs)}
            return Restored(manifest, {group: weights}, tuple(damaged))

    devices = CopyingDevices()
    devices.abstract = lambda specs: specs
    monkeypatch.setattr(module.runtime, "start", lambda mesh, *_, **__: devices)
    monkeypatch.setattr(module, "fitted", lambda config, *_: config)
    monkeypatch.setattr(module, "Checkpoints", SavedCheckpoints)
    sizes = {"source_vocabulary": 300, "target_vocabulary": 200, "pairs": [], "never": [0, 7]}
    run = types.SimpleNamespace(
        data=sizes,
        programs_to_decode=None,
        programs=tmp_path / "programs",
        identity=lambda: {"config": "the hash of this run"},
        checkpoints=tmp_path,
        vocabularies=lambda: (Letters(), Letters()),
    )
    loaded = load_translator(CONFIG.replace(decode={"rows": 4}), run)
    assert loaded.step == loaded.of_ids.parameters["weights of"] == (5 if damaged else 3)
    expected = "".join(f"{text}. Using the checkpoint of step 5 instead.\n" for text in damaged)
    assert capsys.readouterr().err == expected
    # Evaluation keeps translations under the checkpoint that was read, not the one that was tried first.
    assert loaded.checkpoint == Manifest(loaded.step, {}, saved_at=1.0).label
    names = step_functions(CONFIG, sizes).declare_parameters()
    assert set(loaded.of_ids.parameters["names"]) == set(names)
    assert loaded.of_ids._never == (0, 7)


@pytest.mark.parametrize("broken", ["lengths", "scores"])
def test_a_model_whose_numbers_are_not_finite_is_an_error_and_not_an_empty_line(broken):
    translate = text_translator()
    devices = translate.of_ids._devices
    search = devices.search

    def without_hypotheses(batch):
        (result,) = search(batch)
        if broken == "lengths":
            return [result | {"lengths": np.zeros_like(result["lengths"])}]
        return [result | {"scores": np.full_like(result["scores"], np.nan)}]

    devices.search = without_hypotheses
    with pytest.raises(UserError) as error:
        list(translate.translate(["", "ab"], "fr", "en"))
    message = (
        "the checkpoint of step 7 has no translation for 'ab': its weights have values that are not "
        "finite. Use another checkpoint of the run."
    )
    assert str(error.value) == message
    with pytest.raises(UserError, match=re.escape(message)):
        list(translate.score([("ab", "x")], "fr", "en"))
