"""A vocabulary that gets the pieces and tags of a new language: what stays as it was, and what is new."""

import random

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import sentencepiece

from gshard_nmt.data.preparation.vocabulary_growth import (
    Newcomer,
    grow_pair,
    grown,
    grown_together,
    learn,
    pairs_of,
)
from gshard_nmt.data.sets.corpus import find_pairs
from gshard_nmt.data.text.vocabulary import (
    EOS,
    Vocabulary,
    VocabularySpec,
    train_vocabulary,
    with_tags,
)
from tests.newcomer import CONFIG, make_run, write_corpus

LETTERS = {
    "old": ("bcdfgl", "aei"),
    "latin": ("bdgklm", "aou"),  # a language in a script that the vocabulary knows
    "greek": ("βγδζκλ", "αεο"),
}


def text_of(kind: str, lines: int = 150, seed: int = 1) -> list[str]:
    """Lines of two to five words out of 60 that have one to three syllables."""
    rng = random.Random(f"{kind} {seed}")
    consonants, vowels = LETTERS[kind]
    words = [
        "".join(rng.choice(consonants) + rng.choice(vowels) for _ in range(rng.randint(1, 3)))
        for _ in range(60)
    ]
    return [" ".join(rng.choices(words, k=rng.randint(2, 5))) for _ in range(lines)]


OLD_TEXT = text_of("old")


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def old(request, tmp_path_factory) -> Vocabulary:
    spec = VocabularySpec(320, request.param, tags=("<spare1>", "<2fr>", "<2de>"))
    file = tmp_path_factory.mktemp("old") / "source.model"
    return train_vocabulary([*OLD_TEXT, *text_of("latin", 3)], spec, file)


def banned(old: Vocabulary, lines=OLD_TEXT) -> set[str]:
    ids = [token for sentence in old.encode(lines) for token in (*sentence, EOS)]
    return pairs_of(old, np.array(ids))


@pytest.fixture(params=["latin", "greek"])
def growth(request, old):
    return grown(old, text_of(request.param), banned(old), ["<2el>"], 60)


def test_old_ids_keep_their_pieces_and_scores(old, growth):
    new, pieces = growth
    assert len(pieces) >= 20
    renamed = {("control", "<spare1>"): ("control", "<2el>")}
    keys = old.keys()
    assert new.keys()[: old.size] == [renamed.get(key, key) for key in keys]
    assert {piece: new.subwords[piece] for piece in old.subwords} == old.subwords
    assert [p for p, (i, _) in new.subwords.items() if i >= old.size] == pieces
    # The size divides over a mesh as it did before.
    assert old.size % 64 == new.size % 64 == 0


def test_new_text_needs_fewer_tokens_and_comes_back(old, growth):
    lines, (new, pieces) = [*text_of("latin"), *text_of("greek")], growth
    own = lines[:150] if "ko" in pieces or "go" in pieces else lines[150:]
    before, after = (sum(map(len, v.encode(own))) for v in (old, new))
    assert after < 0.8 * before
    assert new.decode(new.encode(lines)) == lines


@hypothesis.given(
    old_lines=st.lists(st.text("abcdeß λ.", min_size=1, max_size=20), min_size=1, max_size=20),
    new_lines=st.lists(st.text("abcdeγλδ .", min_size=1, max_size=20), min_size=1, max_size=20),
)
@hypothesis.settings(deadline=None, max_examples=20)
def test_text_without_new_characters_keeps_its_pieces(old, old_lines, new_lines):
    new, pieces = grown(old, new_lines * 10, banned(old, old_lines), [], 30)
    characters = {piece for piece in pieces if len(piece) == 1}
    kept = [line for line in old_lines if not characters & set(line)]
    assert old.encode(kept) == new.encode(kept)
    assert new.keys()[: old.size] == old.keys()
    lines = [" ".join(line.split()) for line in (*old_lines, *new_lines)]
    assert new.decode(new.encode(lines)) == lines


def test_characters_that_were_bytes_become_pieces_first(old):
    pieces = grown(old, ["λόγος καὶ λόγος"] * 5, set(), [], 4)[1]
    assert len(pieces) == 4
    assert set(pieces) <= set("λόγοςκαὶ")
    # A character that occurs twice stays bytes.
    assert not grown(old, ["λλ"], set(), [], 9)[1]


def test_a_piece_has_letters_alone_and_one_word(old):
    pieces = grown(old, ["γδ1 γδ. -γδ"] * 20, set(), [], 40)[1]
    assert "γδ" in pieces
    assert "▁γδ" in pieces
    # Other characters stay alone.
    assert {piece for piece in pieces if len(piece) > 1} == {"γδ", "▁γδ"}


def test_tags_take_the_spare_ones_first_and_then_new_ids(old):
    new = grown(old, [], set(), ["<2el>", "<el>", "<2fr>"], 0)[0]
    assert new.tag("<2el>") == old.tag("<spare1>")
    assert new.tag("<2fr>") == old.tag("<2fr>")
    assert new.tag("<el>") == old.size
    without_spares = with_tags(old, ["<2el>"], "source.model")
    assert grown(without_spares, [], set(), ["<el>"], 0)[0].tag("<el>") == old.size
    assert new.size % 64 == 0


def test_nothing_to_add_changes_nothing(old):
    new, pieces = grown(old, OLD_TEXT, banned(old), ["<2fr>"], 60)
    assert pieces == []
    assert new is old


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("newcomer")
    write_corpus(folder / "new", "el")
    return folder


@pytest.fixture(scope="module")
def run(folder):
    return make_run(folder)


def newcomer(folder, run, directions=(("el", "en"),), targets=("en",), **settings) -> Newcomer:
    config = CONFIG.replace(data=settings).data
    pairs = find_pairs(folder / "new")
    return Newcomer("el", pairs, directions, set(targets), config, run.path, 40)


def test_only_the_side_that_has_the_language_grows(folder, run, tmp_path):
    (old, data), said = run, []
    grow_pair(newcomer(folder, old), data, tmp_path, lambda text, **options: said.append(text))
    source, target = old.vocabularies()
    grown = Vocabulary.load(tmp_path / "source.model")
    assert grown.size > source.size
    assert grown.keys()[: source.size] == source.keys()
    assert (tmp_path / "target.model").read_bytes() == target.content
    (line,) = said
    assert "new ones for el" in line


def test_a_target_language_gets_a_tag_if_there_are_several(folder, run):
    assert newcomer(folder, run[0]).tags() == []
    assert newcomer(folder, run[0], (("el", "en"), ("en", "el"))).tags() == ["<2el>"]
    assert newcomer(folder, run[0], [("en", "el")], ["fr"]).tags() == ["<2el>"]
    assert newcomer(folder, run[0], language_tags=True).tags() == ["<el>"]


def test_a_joint_vocabulary_grows_once(folder, tmp_path):
    joint = {"vocabulary": "joint", "source_vocabulary": 340, "target_vocabulary": 340}
    old, data = make_run(tmp_path, CONFIG.replace(data=joint))
    models = tmp_path / "models"
    models.mkdir()
    grow_pair(newcomer(folder, old, **joint), data, models, lambda *_, **__: None)
    assert (models / "source.model").read_bytes() == (models / "target.model").read_bytes()
    assert Vocabulary.load(models / "source.model").size > old.vocabularies()[0].size


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_vocabularies_of_one_embedding_get_the_same_ids(kind, tmp_path):
    olds = {}
    for side, text in (("source", OLD_TEXT), ("target", text_of("latin"))):
        # Imported vocabularies spell no characters as bytes.
        file = tmp_path / side
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text), model_prefix=str(file), vocab_size=60, model_type=kind,
            hard_vocab_limit=False, pad_id=0, eos_id=1, unk_id=2, bos_id=3, minloglevel=2,
        )  # fmt: skip
        olds[side] = Vocabulary.load(file.with_suffix(".model"))
    size = max(old.size for old in olds.values())
    names = [f"<filler{n}>" for n in range(size)]
    olds = {side: with_tags(old, names[old.size :], grows=True) for side, old in olds.items()}
    new_text = text_of("greek")
    learned = {"source": learn(olds["source"], new_text, set(), 40), "target": {}}
    news = grown_together(olds, learned, {"source": "<el>", "target": "<begin:el>"})
    assert news["source"].size == news["target"].size >= size + len(learned["source"]) + 1
    assert (news["source"].tag("<el>"), news["target"].tag("<begin:el>")) == (size, size)
    for side, old in olds.items():
        assert news[side].keys()[:size] == old.keys()
    # All characters of the new text were unknown.
    assert news["source"].decode(news["source"].encode(new_text)) == new_text
    assert max(map(len, learned["source"])) > 2
    # The other side still splits old text as before, and knows the characters.
    old_text = text_of("latin")
    assert news["target"].encode(old_text) == olds["target"].encode(old_text)
    assert news["target"].decode(news["target"].encode(new_text)) == new_text
    longer = {i for piece, (i, _) in news["source"].subwords.items() if i >= size and piece[1:]}
    assert not longer & {i for ids in news["target"].encode(new_text) for i in ids}
    # A piece that the target learns later gets the id that the source has for it.
    pieces = learn(news["target"], new_text, set(), 40)
    again = grown_together(news, {"source": {}, "target": pieces}, {})
    shared = [piece for piece in pieces if piece in news["source"].subwords]
    ids = [again["target"].subwords[piece][0] for piece in shared]
    expected = [news["source"].subwords[piece][0] for piece in shared]
    assert shared
    assert ids == expected
