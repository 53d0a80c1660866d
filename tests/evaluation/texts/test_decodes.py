"""Translations that are kept: read back as they were, and never mistaken for others."""

import pytest

from gshard_nmt import files
from gshard_nmt.evaluation.texts import decodes

IDENTITY = {"sources": "abc", "checkpoint": ["5"]}
LINES = ["Hello", "", "a\rb\u2028c\x85d", "ümlaut", "\ud7ff\U0001f600"]


@pytest.fixture
def folder(tmp_path):
    decodes.store(tmp_path / "decodes", "test.fr-en", IDENTITY, LINES, "step 5")
    return tmp_path / "decodes"


def load(folder):
    return decodes.load(folder, "test.fr-en", IDENTITY)


def test_translations_are_read_back_as_they_were(folder):
    assert load(folder) == (LINES, "step 5")
    assert (folder / "test.fr-en.txt").read_bytes() == "".join(f"{x}\n" for x in LINES).encode()


def test_translations_of_something_else_are_not_used(folder):
    assert decodes.load(folder, "test.fr-en", IDENTITY | {"sources": "x"}) is None
    assert decodes.load(folder, "test.de-en", IDENTITY) is None
    assert decodes.load(folder / "gone", "test.fr-en", IDENTITY) is None


@pytest.mark.parametrize("moment", [0, 1])
@pytest.mark.parametrize("writes_first", [True, False])
def test_after_an_interrupted_write_no_wrong_text_is_used(
    folder, monkeypatch, moment, writes_first
):
    """The text is new and its description old, or the other way round; in both cases they do not fit."""
    write, count = files.write, 0

    def interrupted(path, content):
        nonlocal count
        count += 1
        if count <= moment or writes_first:
            write(path, content)
        if count > moment:
            raise KeyboardInterrupt

    monkeypatch.setattr(files, "write", interrupted)
    longer = [*LINES, "more"]
    new = IDENTITY | {"sources": "longer"}
    with pytest.raises(KeyboardInterrupt):
        decodes.store(folder, "test.fr-en", new, longer, "step 6")
    for identity, expected in ((IDENTITY, (LINES, "step 5")), (new, (longer, "step 6"))):
        assert decodes.load(folder, "test.fr-en", identity) in (None, expected)


@pytest.mark.parametrize("name", ["test.fr-en.txt", "test.fr-en.json"])
@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b'{"identity": 5}', b"Hello\n"])
def test_damaged_files_are_not_used(folder, name, content):
    (folder / name).write_bytes(content)
    assert load(folder) is None


def test_the_descriptions_change_with_the_translations(folder):
    before = decodes.descriptions(folder)
    assert list(before) == ["test.fr-en"]
    assert decodes.descriptions(folder) == before
    decodes.store(folder, "test.fr-en", IDENTITY | {"sources": "x"}, LINES, "step 5")
    (folder / "a folder.json").mkdir()
    after = decodes.descriptions(folder)
    assert list(after) == ["test.fr-en"]
    assert after != before
    ((name, fact),) = decodes.translated_again(folder, before)
    assert name == "translated again"
    assert fact.startswith("test.fr-en: ")
    assert decodes.translated_again(folder, after) == []
    assert decodes.descriptions(folder / "none") == {}
