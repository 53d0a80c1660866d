"""The flags of gshard-data show, plan and check: mistakes are explained, and the verbs run."""

import pytest

from gshard_nmt.cli import commands
from gshard_nmt.cli.data_commands import define_corpora, read_corpora
from gshard_nmt.cli.flags import Flags
from gshard_nmt.errors import UserError
from tests.data.cleaning import corpora

# fmt: off
MISTAKES = [
    (["plan", "--config=demo"], "--data is missing."),
    (["plan", "--config=demo", "--data=a", "--out=plan.txt"],
     "--out is 'plan.txt'; it must end in .json. Give"),
    (["plan", "--config=demo", "--data=a", "--steps=0"], "--steps is '0'; it must be"),
    (["show", "--config=demo"], "--data is missing."),
    (["show", "--config=demo", "--data=none"], "there is no such folder; make it with gshard-data"),
    (["show", "--config=demo", "--data=none", "--step=0"], "--step is '0'; it must be"),
    (["check"], "--corpus is missing."),
    (["check", "--corpus=none"], "--corpus none: there is no such folder"),
    (["check", "--corpus=.", "--report=x.pdf"], "must end in .json. Give another name."),
    (["check", "--corpus=.", "--gin=Data.rows = 3"], "--gin has no effect without --config."),
]
# fmt: on


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_mistakes_are_explained(capsys, arguments, message):
    assert commands.main(["data", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_check_reads_several_corpora_and_buckets(capsys, tmp_path, bucket):
    corpora.write(tmp_path, "fr", {split: [("a", "b")] for split in ("train", "dev", "test")})
    bucket.write("texts/back/fr-en/train.tsv", b"c\td\n")
    arguments = [f"--corpus={tmp_path}", "--corpus=back=gs://texts/back"]
    assert commands.main(["data", "check", *arguments]) == 0
    words = f"{tmp_path}, gs://texts/back: nothing looks wrong in 2 pairs with 4 lines."
    assert words in capsys.readouterr().out


def read(*texts):
    flags = Flags()
    define_corpora(flags)
    flags.values(["program", *(f"--corpus={text}" for text in texts)])
    return read_corpora(flags.values)


def test_corpora_have_names_and_the_one_without_comes_first(tmp_path):
    for name in ("a", "b", "c=d"):
        (tmp_path / name).mkdir()
    a, b, odd = (tmp_path / name for name in ("a", "b", "c=d"))
    assert read(a) == {"": a}
    assert list(read(f"back={b}", a, f"web-1={odd}").items()) == [
        ("", a),
        ("back", b),
        ("web-1", odd),
    ]
    # A path is not a name.
    assert read(odd) == {"": odd}


def test_a_name_stands_once_and_a_folder_must_exist(tmp_path):
    with pytest.raises(UserError) as error:
        read(tmp_path, tmp_path)
    assert str(error.value) == (
        f"--corpus {tmp_path}: another corpus has the name ''; each corpus but one needs a "
        f"name of its own. Write --corpus NAME={tmp_path}, or put the folders of both into one."
    )
    with pytest.raises(UserError, match="another corpus has the name 'back'"):
        read(f"back={tmp_path}", f"back={tmp_path}")
    for text in ("back=", f"b/ck={tmp_path}", ""):
        with pytest.raises(UserError) as error:
            read(text)
        assert str(error.value) == (
            f"--corpus {text!r}: there is no such folder, and it is not NAME=DIR with a name of letters, "
            "digits, - and _. Write, for example, --corpus back=DIR."
        )
    with pytest.raises(UserError, match=f"--corpus {tmp_path / 'gone'}: there is no such folder"):
        read(f"back={tmp_path / 'gone'}")


def test_a_corpus_may_be_in_a_bucket(bucket):
    bucket.write("texts/opus/fr-en/train.tsv", b"un\tone\n")
    assert str(read("gs://texts/opus")[""]) == "gs://texts/opus"
    with pytest.raises(UserError, match="there is no such folder"):
        read("gs://texts/other")
    with pytest.raises(UserError, match=r"this kind of URL is unknown; .* or s3://bucket/folder"):
        read("ftp://texts/opus")
