"""The flags of baselines: their defaults, and the message for each mistake."""

import dataclasses
import pathlib

import pytest

from gshard_nmt import add_language as program
from gshard_nmt import train as train_module
from gshard_nmt.baselines import Request
from gshard_nmt.cli import commands, train_command
from gshard_nmt.cli.commands import TRAIN
from gshard_nmt.cli.flags import parse_flags
from gshard_nmt.run.baselines import SIZES
from gshard_nmt.run.starting_point import Init

NEEDED = ["--config=bilingual", "--data=data", "--workdir=new"]
HERE = pathlib.Path()


def request(*words):
    return train_command._read_request(parse_flags(TRAIN, [*NEEDED, "--baselines_of=.", *words]))


def test_by_default_baselines_converge_and_all_languages_are_trained():
    assert request() == Request(HERE, "converged", "by_pairs", languages=[])
    assert {*train_command.SIZES} == {*SIZES, "by_pairs", "config"}


def test_the_flags_reach_the_request():
    words = "--languages=fr, de", "--sizes=config"
    assert request(*words) == Request(HERE, "converged", "config", ["fr", "de"])
    assert request("--until=budget").until == "budget"


RUN = ["train", "--config=demo", "--data=.", "--workdir=new"]
FLAGS = ["train", "--add_language=nn", "--data=.", "--workdir=new"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (FLAGS, "--add_language has no effect without --init_from."),
        ([*FLAGS, "--init_from=.", "--config=demo"], "--add_language and --config are given"),
        ([*FLAGS, "--init_from=.", "--num_processes=2"],
         "--add_language runs in one process. Leave out"),
        ([*RUN, "--baselines_of=.", "--num_processes=2"], "--baselines_of runs in one process."),
        ([*FLAGS, "--init_from=gs://b/run"], "--init_from gs://b/run: it is a URL, but this flag"),
        ([*FLAGS, "--init_from=."], "is not a run folder; give the --workdir of"),
        ([*RUN, "--new_pieces=3"], "--new_pieces has no effect without --add_language."),
        (["train", "--data=.", "--workdir=new"], "--config is missing. For example:"),
        ([*RUN, "--until=budget"], "--until has no effect without --baselines_of"),
        ([*RUN, "--baselines_of=.", "--sizes=huge"], "--sizes is 'huge'; it must be"),
        ([*RUN, "--baselines_of=.", "--until=budget", "--sizes=base"], "--sizes is given with --until"),
        ([*RUN, "--checkpoint=last"], "--checkpoint has no effect without --init_from."),
        ([*RUN, "--init_from=.", "--baselines_of=."], "--init_from and --baselines_of are given;"),
        ([*RUN, "--init_from=.", "--checkpoint=x"], "--checkpoint is 'x'; it must be best, last"),
    ],
)  # fmt: skip
def test_wrong_flags_are_refused(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    assert commands.main(words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_run_that_has_begun_does_not_need_the_other_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new").mkdir()
    starts = []
    monkeypatch.setattr(train_module, "train", lambda *arguments: starts.append(arguments))
    words = ["train", "--config=demo", "--data=.", "--workdir=new", "--init_from=gone"]
    assert commands.main(words) == 2
    assert "--init_from gone: there is no such folder" in capsys.readouterr().err
    (tmp_path / "new" / "data.json").touch()
    assert commands.main(words) == 0
    assert starts[0][-1].init == Init.of(pathlib.Path("gone"), "best")
    monkeypatch.setattr("gshard_nmt.baselines.train_baselines", lambda train, *w: train(*w[:3]))
    assert commands.main([*RUN, "--baselines_of=."]) == 0
    assert [start.waits for *_, start in starts] == [True, False]


def test_the_program_gets_the_flags_and_trains_with_the_run_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    requests, starts = [], []

    def add_language(request, train):
        requests.append(request)
        train("config", tmp_path / "new-data", None, "a command")

    monkeypatch.setattr(program, "add_language", add_language)
    monkeypatch.setattr(train_module, "train", lambda *arguments: starts.append(arguments))
    words = [*FLAGS, "--init_from=.", "--replay=.", "--new_pieces=7", "--gin=Train.steps = 3"]
    assert commands.main([*words, "--checkpoint=last", "--max_minutes=2"]) == 0
    (request,) = requests
    assert (request.language, request.new_pieces) == ("nn", 7)
    assert request.init == Init.of(tmp_path, "last")
    assert request.settings == ("Train.steps = 3",)
    assert (request.workdir.name, request.data.name) == ("new", "new-data")
    here = dataclasses.replace(request, workdir=pathlib.Path())
    assert here.data == tmp_path.with_name(f"{tmp_path.name}-data")
    ((config, data, workdir, _, start),) = starts
    assert (config, data, workdir) == ("config", tmp_path / "new-data", request.workdir)
    assert start.command == "a command"
    assert start.limit.minutes == 2
