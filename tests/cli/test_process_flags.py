"""The process flags of programs that decode, and what their processes have in common."""

import pytest

from gshard_nmt.cli import commands, process_flags, worker
from gshard_nmt.cli.commands import EVAL
from gshard_nmt.cli.decode_command import DECODE
from gshard_nmt.cli.flags import parse_flags
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.processes import Job, Processes

JOB = Job("gshard-decode", trains=False)
TWO = ["--coordinator=h:1", "--num_processes=2", "--process_id=1"]


def test_flags_name_the_processes_and_the_program():
    values = parse_flags(DECODE, ["--workdir=run", *TWO, "--peer_timeout=9"])
    assert process_flags.read_processes(values, JOB) == Processes("h:1", 2, 1, 9, JOB)
    alone = process_flags.read_processes(parse_flags(DECODE, ["--workdir=run"]), JOB)
    assert (alone.count, alone.job) == (1, JOB)


@pytest.mark.parametrize(
    ("command", "name", "flags"),
    [(DECODE, "decode", []), (EVAL, "eval", ["--corpus=c", "--report=r"])],
)
def test_the_worker_runs_the_same_program(command, name, flags):
    values = parse_flags(command, ["--workdir=run", "--gin=Decode.beam = 2", *flags, *TWO])
    processes = process_flags.read_processes(values, Job(f"gshard-{name}", trains=False))
    words = worker.command_line(values, processes)
    assert words[3] == name
    again = parse_flags(command, words[4:])
    assert {n: again[n].value for n in again} == {n: values[n].value for n in values}


def test_processes_share_the_settings_and_the_flags_but_not_input_and_output():
    config = load_config("demo")
    first = parse_flags(DECODE, ["--workdir=run", "--input=a", "--output=b", *TWO])
    second = parse_flags(DECODE, ["--workdir=run", *TWO[:2], "--process_id=0"])
    assert worker.decoding_identity(first, config, JOB) == worker.decoding_identity(
        second, config, JOB
    )
    other = parse_flags(DECODE, ["--workdir=run", "--nbest=2"])
    before, after = (worker.decoding_identity(v, config, JOB) for v in (first, other))
    assert {name for name in before if before[name] != after[name]} == {"--nbest"}
    changed = worker.decoding_identity(first, config.replace(decode={"beam": 2}), JOB)
    assert {name for name in before if before[name] != changed[name]} == {"Decode.beam"}


@pytest.mark.parametrize("flag", ["--process_id=3", "--process_id=0", "--coordinator=h:1"])
@pytest.mark.parametrize("program", ["train", "decode", "eval"])
def test_a_process_is_not_alone_because_a_flag_was_forgotten(program, flag, capsys):
    assert commands.main([program, "--workdir=run", flag]) == 2
    name = flag.partition("=")[0]
    assert f"{name} has no effect without --num_processes." in capsys.readouterr().err


def test_one_process_needs_neither_a_supervisor_nor_the_config(tmp_path):
    values = parse_flags(DECODE, ["--workdir=run"])
    processes = process_flags.join_to_decode(values, "gshard-decode", tmp_path, pytest.fail)
    assert processes.count == 1
