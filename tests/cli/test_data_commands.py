"""The flags of gshard-data show, plan and check: mistakes are explained, and the verbs run."""

import pytest

from gshard_nmt.cli import commands
from tests.data.cleaning import corpora


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["plan", "--config=demo"],
            "--data or --sizes must say how large each language is, but neither",
        ),
        (["plan", "--config=demo", "--data=a", "--sizes=fr=1"], "is, but both are given. Give one"),
        (["plan", "--config=demo", "--sizes=fr"], "--sizes has 'fr'; it must name each language"),
        (
            ["plan", "--config=demo", "--sizes=fr=1", "--out=plan.txt"],
            "--out is 'plan.txt'; it must end in .json. Give",
        ),
        (["plan", "--config=demo", "--sizes=fr=1", "--steps=0"], "--steps is '0'; it must be"),
        (["show", "--config=demo"], "--data is missing."),
        (
            ["show", "--config=demo", "--data=none"],
            "there is no such folder; make it with gshard-data",
        ),
        (["show", "--config=demo", "--data=none", "--step=0"], "--step is '0'; it must be"),
        (["check"], "--corpus is missing."),
        (["check", "--corpus=none"], "--corpus none: there is no such folder"),
        (
            ["check", "--corpus=.", "--report=x.pdf"],
            "must end in .json. Give another name.",
        ),
        (["check", "--corpus=.", "--gin=Data.rows = 3"], "--gin has no effect without --config."),
        (
            ["plan", "--config=demo", "--data=.", "--pair_tokens=9"],
            "--pair_tokens has no effect without --sizes.",
        ),
    ],
)
def test_mistakes_are_explained(capsys, arguments, message):
    assert commands.data_program(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_plan_needs_no_data(capsys, tmp_path):
    arguments = ["plan", "--config=demo", "--sizes=fr=1000,de=10", "--steps=50"]
    assert commands.data_program([*arguments, f"--out={tmp_path / 'plan.json'}"]) == 0
    assert "steps 1 to 50: temperature 1" in capsys.readouterr().out
    assert (tmp_path / "plan.json").is_file()


def test_a_check_ends_with_0_unless_it_is_strict(capsys, tmp_path):
    corpora.write(tmp_path, "fr", {"train": [("a", "b")] * 3})
    assert commands.data_program(["check", f"--corpus={tmp_path}"]) == 0
    assert "fr-en dev: missing" in capsys.readouterr().out
    assert commands.data_program(["check", f"--corpus={tmp_path}", "--strict"]) == 2
    assert "2 things look wrong and --strict was given" in capsys.readouterr().err


def test_a_check_reads_several_corpora_and_buckets(capsys, tmp_path, bucket):
    corpora.write(tmp_path, "fr", {split: [("a", "b")] for split in ("train", "dev", "test")})
    bucket.write("texts/back/fr-en/train.tsv", b"c\td\n")
    arguments = [f"--corpus={tmp_path}", "--corpus=back=gs://texts/back"]
    assert commands.data_program(["check", *arguments]) == 0
    words = f"{tmp_path}, gs://texts/back: nothing looks wrong in 2 pairs with 4 lines."
    assert words in capsys.readouterr().out
