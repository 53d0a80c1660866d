"""The flags of gshard-data show, plan and check: mistakes are explained, and the verbs run."""

import pytest

from gshard_nmt.cli import commands
from gshard_nmt.cli.data_commands import define_corpora, read_corpora
from gshard_nmt.cli.flags import Flags
from gshard_nmt.errors import UserError
from tests.data.cleaning import corpora

AVERAGE = ["checkpoint", "average", "--workdir=."]
MISTAKES = [
    (["data", "plan", "--config=demo"], "--data is missing."),
    (["data", "plan", "--config=demo", "--data=a", "--out=plan.txt"],
     "--out is 'plan.txt'; it must end in .json. Give"),
    (["data", "plan", "--config=demo", "--data=a", "--steps=0"], "--steps is '0'; it must be"),
    (["data", "plan", "--config=demo", "--data=a", "--steps=9999999999"],
     "--steps is '9999999999'; it must be an integer in the range [1, "),
    (["eval", "--sentences=9999999999"], "--sentences is '9999999999'; it must be an integer in the"),
    (["data", "show", "--config=demo"], "--data is missing."),
    (["data", "show", "--config=demo", "--data=none"], "there is no such folder; make it with gshard"),
    (["data", "show", "--config=demo", "--data=none", "--step=0"], "--step is '0'; it must be"),
    (["data", "check"], "--corpus is missing."),
    (["data", "check", "--corpus=.", "--report=x.pdf"], "must end in .json. Give another name."),
    (["data", "check", "--corpus=.", "--gin=Data.rows = 3"], "--gin has no effect without --config."),
    (["checkpoint", "diff", "--workdir=."], "--steps is ''; it must be two steps, such as --steps 4"),
    (["checkpoint", "diff", "--workdir=.", "--steps=4"], "--steps is '4'; it must be two steps"),
    (["checkpoint", "diff", "--workdir=.", f"--steps=4,{'9' * 5000}"], "it must be whole numbers with"),
    (["checkpoint", "diff", "--workdir=.", "--steps=4,x"], "--steps is '4,x'; it must be whole numbers"),
    ([*AVERAGE, "--out=a"], "--last is missing and --steps is ''; give one of them"),
    ([*AVERAGE, "--out=a", "--last=2", "--steps=1,2"], "--last is 2 and --steps is '1,2'; give"),
    ([*AVERAGE, "--out=a", "--steps=7"], "--steps is '7'; give one of them, with at least two"),
    ([*AVERAGE, "--out=a", "--steps=8,8"], "at least two different checkpoints"),
    ([*AVERAGE, "--out=a", "--last=1"], "--last is '1'; it must be"),
    ([*AVERAGE, "--last=2"], "--out is missing."),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_mistakes_are_explained(capsys, arguments, message):
    assert commands.main(arguments) == 2
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


def test_show_begins_a_phase_at_its_share_of_the_run(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr("gshard_nmt.show_batches.show_batches", lambda *given: shown.append(given))
    assert commands.main(["data", "show", "--config=demo", f"--data={tmp_path}"]) == 0
    assert [phase.from_step for phase in shown[0][0].phases] == [0, 1750]
