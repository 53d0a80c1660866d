"""The lines that vocabularies are trained on do not depend on the units they come from."""

import pytest
from gshard_nmt.data.preparation.text_sample import smallest, text_seed

from gshard_nmt.data.preparation import chunks
from gshard_nmt.data.preparation.chunks import Chunk, Part
from gshard_nmt.data.preparation.vocabularies import Sample, Sampling, Training, sample, train
from gshard_nmt.data.text.vocabulary import Vocabulary, VocabularySpec

SOURCES = [f"source {i % 700} é" for i in range(1500)]
TARGETS = [f"target {i}" for i in range(1500)]


def sampled(folder, sizes, limit, is_reversed=False):
    """Returns the sample of units with these numbers of rows."""
    first, folders = 0, []
    for number, size in enumerate(sizes):
        file = folder / f"{number}.zst"
        rows = slice(first, first + size)
        chunks.write(file, chunks.content_of(Chunk(SOURCES[rows], TARGETS[rows])))
        folders.append(folder / f"unit {number}")
        folders[-1].mkdir(parents=True)
        languages = ("en", "fr") if is_reversed else ("fr", "en")
        part = Part(file, size)
        sample(Sampling((part,), is_reversed, *languages, limit, 1500, 1), folders[-1])
        first += size
    return Sample(*languages, limit, tuple(folders))


@pytest.mark.parametrize("limit", [20, 5000])
def test_any_split_gives_the_same_lines(tmp_path, limit):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, more = (
        sampled(tmp_path / name, sizes, limit)
        for name, sizes in (("a", [1500]), ("b", [700, 1, 799]))
    )
    for side, lines in (("source", SOURCES), ("target", TARGETS)):
        expected = smallest(lines, limit, text_seed(1, side, "fr", "en")).lines
        assert one.lines(side) == more.lines(side) == expected


def test_few_candidates_are_written(tmp_path):
    chosen = sampled(tmp_path, [1500], 20)
    # Of 1500 lines, a few more than 2 * 20 + 1000 may be candidates, but no more than the limit.
    assert len(chosen.lines("target")) == 20
    assert (chosen.folders[0] / "target").stat().st_size < 1000


def test_a_reversed_direction_has_the_other_side_as_its_source(tmp_path):
    chosen = sampled(tmp_path, [1500], 10, is_reversed=True)
    assert all(line.startswith("target") for line in chosen.lines("source"))


def test_a_joint_vocabulary_learns_from_both_sides(tmp_path):
    chosen = sampled(tmp_path, [1500], 100)
    result = train(
        Training("source", ("source", "target"), (chosen,), VocabularySpec(330)), tmp_path
    )
    assert result["lines"] == 200
    assert Vocabulary.load(tmp_path / "source.model").size == result["size"]
