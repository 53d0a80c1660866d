"""All translations of a run are of one checkpoint, though the run is trained on meanwhile."""

import pytest

from gshard_nmt import files
from gshard_nmt.decoding.runs import Choices
from gshard_nmt.evaluation import translations
from gshard_nmt.run.checkpoint.manifest import NAME, Manifest
from gshard_nmt.run.checkpoint.tensor_files import COMMIT_FILE
from gshard_nmt.settings.gin_reader import read_changes
from tests.evaluation.run_folders import make_run

TESTS = [
    translations.TestSet(tag, tag, "en", 5, [f"a {tag}", f"b {tag}"], ["a", "b"])
    for tag in ("fr", "de")
]


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path)


def save(run, step):
    """Saves a checkpoint without arrays and returns its label."""
    manifest = Manifest(step, {}, saved_at=float(step))
    folder = run.checkpoints / str(step)
    folder.mkdir(parents=True)
    (folder / NAME).write_text(manifest.text)
    (folder / COMMIT_FILE).touch()
    return manifest.label


class Translator:
    """Marks each line with its checkpoint, and records the languages. It keeps the checkpoint."""

    def __init__(self, checkpoint, then=lambda: None):
        self.checkpoint, self.then, self.languages, self.choices = checkpoint, then, [], []

    def __call__(self, workdir, source, target, lines, checkpoint):
        self.languages.append(source)
        self.choices.append(checkpoint)
        self.then()
        return [f"{line} {self.checkpoint}" for line in lines], "beam 4", self.checkpoint


def translate(run, translator, tests=TESTS):
    """Returns the checkpoint of each translation."""
    results = translations.translate_all(run, "test", tests, translator, Choices())
    for test, result in zip(tests, results, strict=True):
        assert [line[: len(test.sources[0])] for line in result.lines] == test.sources
        assert result.made_by == "beam 4"
    return [line.partition("step")[2] for result in results for line in result.lines]


def test_a_checkpoint_that_is_saved_meanwhile_does_not_get_the_translations_of_an_older_one(run):
    old, labels = save(run, 5), []
    first = Translator(old, then=lambda: labels or labels.append(save(run, 12)))
    assert translate(run, first) == [old.removeprefix("step")] * 4
    (new,) = labels
    second = Translator(new)
    assert translate(run, second) == [new.removeprefix("step")] * 4
    assert second.languages == ["fr", "de"]
    third = Translator(new)
    assert translate(run, third) == [new.removeprefix("step")] * 4
    assert third.languages == []


def test_a_damaged_best_checkpoint_does_not_get_the_translations_of_another_one(run):
    sound, damaged = save(run, 5), save(run, 12)
    assert translate(run, Translator(sound)) == [sound.removeprefix("step")] * 4
    repaired = Translator(damaged)
    assert translate(run, repaired) == [damaged.removeprefix("step")] * 4
    assert repaired.languages == ["fr", "de"]


def test_a_report_is_about_one_checkpoint(run):
    """French was translated before. The arrays of its checkpoint have been damaged since."""
    sound, damaged = save(run, 5), save(run, 12)
    translate(run, Translator(damaged), TESTS[:1])
    translator = Translator(sound)
    assert translate(run, translator) == [sound.removeprefix("step")] * 4
    assert translator.languages == ["de", "fr"]


def test_translations_of_another_choice_of_weights_are_not_used(run):
    labels = [save(run, step) for step in (5, 12)]
    average = f"average of {labels[1]}; {labels[0]}"
    for choice, label in (("best", labels[1]), ("5", labels[0]), ("average:2", average)):
        for expected in (["fr", "de"], []):
            translator = Translator(label)
            translations.translate_all(run, "test", TESTS, translator, Choices(choice))
            assert translator.languages == expected
            assert set(translator.choices) <= {choice}
    translate(run, again := Translator(labels[1]))
    assert again.languages == ["fr", "de"]


def test_changed_settings_of_decode_translate_again_and_another_mesh_does_not(run):
    label = save(run, 5)
    for statement, expected in (
        ("Decode.beam = 9", ["fr", "de"]),
        ("Decode.beam = 9", []),
        ("Mesh.shape = (1,)", ["fr", "de"]),  # as in the run, so the translations are new once more
        ("Mesh.shape = (8,)", []),
    ):
        translator = Translator(label)
        choices = Choices(changes=read_changes([statement]))
        translations.translate_all(run, "test", TESTS, translator, choices)
        assert translator.languages == expected


IDENTITY = {"sources": "abc", "checkpoint": ["5"]}
STORED = translations.Translations(
    ["Hello", "", "a\rb\u2028c\x85d", "ümlaut", "\ud7ff\U0001f600"], "step 5"
)


@pytest.fixture
def folder(tmp_path):
    translations.store(tmp_path / "decodes", "test.fr-en", IDENTITY, STORED)
    return tmp_path / "decodes"


def load(folder):
    return translations.load(folder, "test.fr-en", IDENTITY)


def test_a_link_of_somebody_else_is_not_followed(folder, tmp_path):
    (tmp_path / "mine").write_text("mine")
    (folder / "test.fr-en.txt").unlink()
    (folder / "test.fr-en.txt").symlink_to(tmp_path / "mine")
    translations.store(folder, "test.fr-en", IDENTITY, STORED)
    assert ((tmp_path / "mine").read_text(), load(folder)) == ("mine", STORED)


def test_translations_are_read_back_as_they_were(folder):
    assert load(folder) == STORED
    assert (folder / "test.fr-en.txt").read_bytes() == "".join(
        f"{x}\n" for x in STORED.lines
    ).encode()


@pytest.mark.parametrize("moment", [0, 1])
@pytest.mark.parametrize("writes_first", [True, False])
def test_after_an_interrupted_write_no_bad_text_is_used(folder, monkeypatch, moment, writes_first):
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
    longer = translations.Translations([*STORED.lines, "more"], "step 6")
    new = IDENTITY | {"sources": "longer"}
    with pytest.raises(KeyboardInterrupt):
        translations.store(folder, "test.fr-en", new, longer)
    for identity, expected in ((IDENTITY, STORED), (new, longer)):
        assert translations.load(folder, "test.fr-en", identity) in (None, expected)


@pytest.mark.parametrize("name", ["test.fr-en.txt", "test.fr-en.json"])
@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b'{"identity": 5}', b"Hello\n"])
def test_damaged_files_are_not_used(folder, name, content):
    (folder / name).write_bytes(content)
    assert load(folder) is None
