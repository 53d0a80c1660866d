"""The functions of the stages that clean, one unit after the other."""

import dataclasses

from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.preparation import chunks, filtering, inputs
from gshard_nmt.data.preparation.chunks import Chunk, Part
from gshard_nmt.data.preparation.filtering import (
    CleanText,
    clean_all,
    drop,
    filter_rows,
    find_duplicates,
    hold_out,
    part_of,
)
from gshard_nmt.data.preparation.inputs import SplitText
from gshard_nmt.data.preparation.work import Finished
from gshard_nmt.data.sets.corpus import CorpusPair, find_pairs, write_pairs
from tests.data.preparation.small_corpus import work_folder

KINDS = ("pair", "target")


def write(folder, sources, targets):
    folder.mkdir()
    chunks.write(folder / "chunk", chunks.content_of(Chunk(sources, targets)))
    return folder / "chunk"


def made(folder):
    folder.mkdir()
    return folder


def test_filters_then_duplicates_of_all_chunks(tmp_path):
    settings = Cleaning(filters=("empty", "overlap"), duplicates=KINDS)
    held = write(tmp_path / "held", ["une phrase"], ["a sentence"])
    result = hold_out(made(tmp_path / "hashes"), [held], "fr", "en", 6)
    assert result["hashes"] > 0
    texts = [
        (["a1", "", "Une phrase!", "b1"], ["a", "x", "A sentence.", "b"]),
        (["a1", "b2", "c1", ""], ["a", "b", "c", "d"]),
    ]
    folders, parts = [], []
    for number, sides in enumerate(texts):
        file = write(tmp_path / f"in{number}", *sides)
        folders.append(made(tmp_path / f"clean{number}"))
        hashes = tmp_path / "hashes" / filtering.HELD_OUT
        part, names = Part(file, 4), ("fr", "en")
        result = filter_rows(folders[-1], part, names, settings=settings, held_out=[hashes])
        parts.append(part_of(Finished(folders[-1], result)))
        if number == 0:
            assert result["removed"] == {"empty": 1, "overlap": 1}
            assert result["rows"] == 2
    files = tuple(folder / filtering.SIGNATURES for folder in folders)
    buckets = []
    for bucket in range(2):
        buckets.append(made(tmp_path / f"bucket{bucket}"))
        find_duplicates(buckets[-1], files, bucket, 2)
    places = tuple(folder / filtering.DUPLICATES for folder in buckets)
    for number, (removed, left) in enumerate(
        [({}, ["a1", "b1"]), ({"duplicate pair": 1, "duplicate target": 1}, ["c1"])]
    ):
        out = made(tmp_path / f"drop{number}")
        result = drop(out, parts[number], number, places, KINDS)
        assert result["removed"] == removed
        part = part_of(Finished(out, result))
        assert chunks.read(part.file).sources == left
        assert part.rows == len(left)
    drops = [tmp_path / "drop0", tmp_path / "drop1"]
    text = SplitText(CorpusPair(tmp_path / "fr-en", "fr", "en"), "train", ())
    samples = CleanText(text, {}, (), (*folders, *drops)).to_report().samples
    assert {name: [row[1:] for row in rows] for name, rows in samples.items()} == {
        "empty": [("", "x"), ("", "d")],
        "overlap": [("Une phrase!", "A sentence.")],
        "duplicate pair": [("a1", "a")],
        "duplicate target": [("b2", "b")],
    }


def cleaned(tmp_path, name, languages, settings):
    """Reads and cleans languages; returns the clean text, and the units by stage."""
    pairs = [p for p in find_pairs(tmp_path / "corpus") if p.source in languages]
    with work_folder(tmp_path / name) as work:
        clean = clean_all(work, settings, pairs, inputs.read_all(work, pairs))
    units = {place.name: {f.name for f in place.iterdir()} for place in (tmp_path / name).iterdir()}
    del units["unfinished"]
    return clean, units


def test_the_units_of_a_language_depend_on_its_text_and_not_on_other_languages(tmp_path):
    for language in ("fr", "de"):
        for split in ("train", "dev"):
            rows = [(f"{language} {split} {i % 7} un", f"{split} {i % 7} one") for i in range(9)]
            write_pairs(tmp_path / "corpus" / f"{language}-en", split, language, "en", rows)
    settings = Cleaning(duplicates=("pair",))
    clean, alone = cleaned(tmp_path, "alone", ("fr",), settings)
    both, together = cleaned(tmp_path, "together", ("fr", "de"), settings)
    assert "clean" in alone
    assert all(alone[stage] < together[stage] for stage in alone)
    assert clean["fr-en", "train"].rows == both["fr-en", "train"].rows == 7
    assert clean["fr-en", "train"].removed == {"duplicate pair": 2}
    assert clean["fr-en", "dev"].rows == 9
    _, other = cleaned(tmp_path, "alone", ("fr",), dataclasses.replace(settings, ratio=9.0))
    dev = {name for name in alone["clean"] if name.startswith("fr-en_dev")}
    assert alone["clean"] & other["clean"] == dev


def test_text_to_test_one_direction_is_not_in_the_training_text_of_the_other(tmp_path):
    write_pairs(tmp_path / "corpus/fr-en", "test", "fr", "en", [("un test", "a test")])
    write_pairs(tmp_path / "corpus/en-fr", "train", "en", "fr", [("A test", "Un test"), ("b", "c")])
    clean, _ = cleaned(tmp_path, "named", ("fr", "en"), Cleaning())
    assert clean["en-fr", "train"].removed == {"overlap": 1}
