"""gshard-data translate: a corpus of two commands, translated once, and going on after a stop."""

import gzip
import types

import pytest

from gshard_nmt.cli import commands
from gshard_nmt.data.sets.corpus import find_pairs, read_pairs
from gshard_nmt.decoding.text_translator import Hypothesis
from gshard_nmt.errors import TryAgain
from gshard_nmt.translate_corpus import Files


class Shouting:
    """Translates to capitals, and counts the lines. The line "stop" raises TryAgain once."""

    checkpoint, longest_source = "step 5, abc", 64
    of_ids = types.SimpleNamespace(rows=1)

    def __init__(self):
        self.lines, self.stops = 0, True

    def translate(self, lines, source, target):
        assert (source, target) == ("fr", "en")
        for line in lines:
            if line == "stop" and self.stops:
                self.stops = False
                raise TryAgain("the machine was taken")
            self.lines += 1
            yield [Hypothesis(line.upper(), -len(line) / 10)]


@pytest.fixture
def model(monkeypatch):
    """The model of every run, with the label of its checkpoint."""
    model = Shouting()
    monkeypatch.setattr("gshard_nmt.decode.load_translator", lambda *_, **__: model)
    monkeypatch.setattr(
        "gshard_nmt.run.checkpoint.weights.expected_label", lambda *_: model.checkpoint
    )
    return model


@pytest.fixture
def words(tmp_path, run_folder):
    """A command line, and the run folder and the input that it names."""
    text = "un mot\nencore un\n\nstop\ntrois mots de plus\n"
    (tmp_path / "mono.fr.gz").write_bytes(gzip.compress(text.encode()))
    folders = {"workdir": "run", "input": "mono.fr.gz", "out": "out"}
    return ["translate", "--lang=fr", *(f"--{f}={tmp_path / p}" for f, p in folders.items())]


def pairs(tmp_path, source: str, target: str) -> list[tuple[str, str]]:
    (pair,) = find_pairs(tmp_path / "out")
    assert (pair.source, pair.target) == (source, target)
    return list(read_pairs(pair, "train", source, target))


def test_a_stopped_command_goes_on_and_then_only_the_filters_run(tmp_path, words, model, capsys):
    assert commands.main(["data", *words]) == 75
    assert model.lines == 3
    assert commands.main(["data", *words]) == 0
    assert model.lines == 3 + 3  # the first two lines are not translated again
    assert len(pairs(tmp_path, "fr", "en")) == 3
    assert commands.main(["data", *words, "--min_score=-1"]) == 0
    assert model.lines == 6
    assert "only the filters run" in capsys.readouterr().err
    assert pairs(tmp_path, "fr", "en") == [
        ("un mot", "UN MOT"),
        ("encore un", "ENCORE UN"),
        ("stop", "STOP"),
    ]


def test_another_checkpoint_or_search_translates_again(words, model):
    model.stops = False
    assert commands.main(["data", *words]) == 0
    assert commands.main(["data", *words, "--beam=2"]) == 0
    model.checkpoint = "step 6, def"
    assert commands.main(["data", *words, "--beam=2"]) == 0
    assert model.lines == 15


def test_facts_of_earlier_translations_are_not_trusted_after_a_death(words, model, monkeypatch):
    model.stops = False
    assert commands.main(["data", *words]) == 0
    model.checkpoint = "step 6, def"
    with monkeypatch.context() as patch:
        record = Files.record

        def die(files, made_of):
            if len(made_of) > 1:
                raise TryAgain("the machine was taken")
            record(files, made_of)

        patch.setattr(Files, "record", die)
        assert commands.main(["data", *words]) == 75
    model.checkpoint = "step 5, abc"
    assert commands.main(["data", *words]) == 0
    assert model.lines == 15


def test_a_back_translation_has_the_input_as_its_target(tmp_path, words, model):
    model.stops = False
    assert commands.main(["data", *words, "--back_translation"]) == 0
    assert pairs(tmp_path, "en", "fr")[0] == ("UN MOT", "un mot")


@pytest.mark.parametrize(
    "flag", ["--max_ratio=2000", "--max_ratio=0.5", "--min_score=-1e15", "--min_score=3e9"]
)
def test_a_wrong_limit_is_named_before_anything_is_translated(words, model, capsys, flag):
    assert commands.main(["data", *words, flag]) == 2
    assert f"{flag.split('=')[0]} is '{flag.split('=')[1]}'; it must be " in capsys.readouterr().err
    assert model.lines == 0


def test_the_files_of_the_run_are_no_place_for_pairs(tmp_path, words, model, capsys):
    assert commands.main(["data", *words, f"--out={tmp_path / 'run' / 'checkpoints'}"]) == 2
    assert "gshard-data translate: --out " in (error := capsys.readouterr().err)
    assert "is a file that the run" in error


def test_another_input_of_the_same_name_is_refused(tmp_path, words, model, capsys):
    model.stops = False
    assert commands.main(["data", *words]) == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "mono.fr.gz").rename(tmp_path / "other" / "mono.fr.gz")
    assert commands.main(["data", *words, f"--input={tmp_path / 'other' / 'mono.fr.gz'}"]) == 2
    assert "which has the same name as" in capsys.readouterr().err
