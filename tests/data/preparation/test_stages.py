"""The units of the stages depend on the text, and not on the other languages."""

import contextlib

from gshard_nmt.data.preparation.stages import Stages
from gshard_nmt.data.preparation.texts import Direction, LanguageText

from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation import chunks
from gshard_nmt.data.preparation.work import WorkFolder
from gshard_nmt.data.sets.corpus import find_pairs, write_pairs
from gshard_nmt.data.worker_pool import WorkerPool
from tests.data.killed_work import Silent


@contextlib.contextmanager
def cleaned(tmp_path, name, languages, settings):
    """Reads and cleans languages; yields the stages, the pairs and the clean text."""
    pairs = [p for p in find_pairs(tmp_path / "corpus") if p.source in languages]
    with WorkerPool(1) as pool, WorkFolder(tmp_path / name, pool) as work:
        stages = Stages(Data(), settings, work, Silent())
        texts = stages.read([item for pair in pairs for item in pair.texts])
        yield stages, pairs, stages.cleaner.clean([LanguageText.of([p], texts) for p in pairs])


def units_of(tmp_path, name, languages):
    """Reads and cleans languages; returns the folders of the finished units by stage."""
    with cleaned(tmp_path, name, languages, Cleaning(duplicates=("pair",))) as (_, _, clean):
        pass
    names = {place.name: {f.name for f in place.iterdir()} for place in (tmp_path / name).iterdir()}
    return clean, {stage: folders for stage, folders in names.items() if stage != "unfinished"}


def test_another_language_does_not_change_the_units_of_a_language(tmp_path):
    for language in ("fr", "de"):
        for split in ("train", "dev"):
            rows = [(f"{language} {split} {i % 7} un", f"{split} {i % 7} one") for i in range(9)]
            write_pairs(tmp_path / "corpus" / f"{language}-en", split, language, "en", rows)
    clean, alone = units_of(tmp_path, "alone", ("fr",))
    both, together = units_of(tmp_path, "together", ("fr", "de"))
    assert "clean" in alone
    assert all(alone[stage] < together[stage] for stage in alone)
    assert clean["fr-en", "train"].rows == both["fr-en", "train"].rows == 7
    assert clean["fr-en", "train"].removed == {"duplicate pair": 2}
    assert clean["fr-en", "dev"].rows == 9


def test_without_filters_no_training_text_is_read_again(tmp_path):
    for split, rows in (
        ("train", [("un", "one"), ("un", "one"), ("", "x")]),
        ("dev", [("a", "b")]),
    ):
        write_pairs(tmp_path / "corpus" / "fr-en", split, "fr", "en", rows)
    settings = Cleaning(filters=(), duplicates=())
    with cleaned(tmp_path, "work", ("fr",), settings) as (_, _, clean):
        text = clean["fr-en", "train"]
        assert (text.pairs, text.rows, text.removed, text.samples()) == (3, 3, {}, {})
        assert [part.read().sources for part in text.parts] == [["un", "un", ""]]
    assert [f.name[:9] for f in (tmp_path / "work" / "clean").iterdir()] == ["fr-en_dev"]


def test_a_report_reads_few_chunks_of_a_large_text_and_enough_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "_CHECKED_ROWS", 500)
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 1000)
    rows = [(f"source {i}", f"target {i}") for i in range(30_000)]
    write_pairs(tmp_path / "corpus" / "fr-en", "train", "fr", "en", rows)
    settings = Cleaning(filters=(), duplicates=())
    with cleaned(tmp_path, "work", ("fr",), settings) as (stages, pairs, clean):
        text = clean["fr-en", "train"]
        assert len(text.parts) == 30
        (sample,) = stages.sample([(Direction(pairs[0], "fr", "en"), text)], limit=50)
        assert 1 < len(sample.folders) <= 8
        lines = sample.lines("source")
    assert len(lines) == 50
    chosen = [int(line.split()[1]) for line in lines]
    assert min(chosen) < 5_000
    assert max(chosen) > 25_000
