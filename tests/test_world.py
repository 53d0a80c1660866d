"""The invented languages: what is the same in all of them, what differs, and the files."""

import numpy as np
import pytest

from scripts import world


def language(number: int, related: float) -> world.Language:
    ancestor = world.roots(np.random.default_rng(7))
    return world.make_language(np.random.default_rng([8, number]), ancestor, related)


def test_a_language_has_a_word_of_its_own_for_each_concept_of_a_part_of_speech():
    words = language(0, 0.0).words
    every = [word for part in world.PARTS for word in words[part]]
    assert {part: len(words[part]) for part in words} == world.PARTS
    assert len(set(every)) == len(every)


@pytest.mark.parametrize(
    ("related", "least", "most"), [(0.0, 0.0, 0.02), (0.5, 0.2, 0.3), (1.0, 1, 1)]
)
def test_two_relatives_share_the_words_that_both_have_from_their_ancestor(related, least, most):
    """Each has a word from the ancestor with probability `related`; sounds have shifted regularly."""
    one, other = language(0, related).words["noun"], language(1, related).words["noun"]
    votes = {}
    for a, b in zip(one, other, strict=True):
        for x, y in zip(a, b, strict=True):
            votes.setdefault(x, []).append(y)
    shift = str.maketrans({x: max(set(ys), key=ys.count) for x, ys in votes.items()})
    share = np.mean([a.translate(shift) == b for a, b in zip(one, other, strict=True)])
    assert least <= share <= most


def test_rules_of_a_language_place_words_and_marks():
    words = {"noun": ["dog", "cat"], "verb": ["see"], "adjective": ["big"]}
    sentence = ((0, 0, 1), (1, -1, 0)), 0, 2
    rules = {"words": words, "plural": "s", "tenses": ("", "ed", "el")}
    said = world.Language(order="SVO", adjective_first=True, is_particle=False, **rules).say(
        sentence
    )
    assert said == "big dogs seeel cat."
    said = world.Language(order="OVS", adjective_first=False, is_particle=True, **rules).say(
        sentence
    )
    assert said == "cat see el dog s big."


def test_concepts_have_frequencies_by_zipfs_law():
    nouns = [
        noun
        for (phrases, _, _) in world.sentences(np.random.default_rng(1), 20_000)
        for noun, *_ in phrases
    ]
    counts = np.bincount(nouns)
    assert counts[0] / counts[1] == pytest.approx(2, rel=0.1)
    assert counts[0] / counts[9] == pytest.approx(10, rel=0.15)


def test_the_same_flags_make_the_same_files_and_sizes_follow_a_power_law(tmp_path):
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        world.write_corpus(tmp_path / folder, 5, 0.3, 3000, seed)
    files = {
        folder: {
            str(f.relative_to(tmp_path / folder)): f.read_text()
            for f in (tmp_path / folder).rglob("*.*")
        }
        for folder in "abc"
    }
    assert files["a"] == files["b"]
    assert files["a"]["qaa-en/train.qaa"] != files["c"]["qaa-en/train.qaa"]
    lines = {name: text.count("\n") for name, text in files["a"].items()}
    assert [lines[f"qa{c}-en/train.en"] for c in "abcde"] == world.sizes(5, 3000)
    assert lines["qaa-en/train.qaa"] == lines["qaa-en/train.en"] == 1313
    assert lines["qae-en/test.qae"] == world.HELD_OUT


def run(monkeypatch, *flags) -> int:
    monkeypatch.setattr("sys.argv", ["world.py", *map(str, flags)])
    return world.main()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--related", "2"], "--related is 2.0; it must be from 0 to 1"),
        (["--seed", "-1"], "--seed is -1; it must be from 0 to 4294967295"),
        (["--out", "/"], "/ exists; remove it, or choose another --out"),
        (["--out", "/proc/x/y"], "--out /proc/x/y cannot be written"),
    ],
)
def test_a_flag_that_makes_no_corpus_is_refused(monkeypatch, capsys, flags, message):
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, *flags)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_an_interrupted_corpus_leaves_nothing(tmp_path, monkeypatch, capsys):
    def interrupt(out, *_):
        (out / "qaa-en").mkdir()
        raise KeyboardInterrupt

    flags = ("--out", tmp_path / "corpus", "--languages", 1, "--pairs", 300)
    with monkeypatch.context() as patch:
        patch.setattr(world, "write_corpus", interrupt)
        assert run(patch, *flags) == 130
    assert "interrupted" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
    assert run(monkeypatch, *flags) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]
