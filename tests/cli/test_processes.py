"""The process flags of a program, and what its processes have in common."""

import pytest

from gshard_nmt.cli import commands, processes
from gshard_nmt.cli.commands import TRAIN
from gshard_nmt.cli.decode_command import DECODE
from gshard_nmt.cli.flags import parse_flags
from gshard_nmt.errors import UserError
from gshard_nmt.run import together
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.processes import Job, Processes

TWO = ["--coordinator=h:1", "--num_processes=2", "--process_id=1"]


def test_flags_name_the_processes_and_the_program(monkeypatch):
    joined = []
    monkeypatch.setattr(together, "join", joined.append)
    monkeypatch.setattr(processes, "_keep_stdout_clean", lambda: None)
    values = parse_flags(DECODE, ["--workdir=run", *TWO, "--peer_timeout=9"])
    job = Job("gshard-decode", trains=False)
    assert processes.join(values, "gshard-decode") == Processes("h:1", 2, 1, 9, job)
    assert joined == [Processes("h:1", 2, 1, 9, job)]
    alone = processes.join(parse_flags(DECODE, ["--workdir=run"]), "gshard-decode")
    assert (alone.count, alone.job, len(joined)) == (1, job, 1)
    with pytest.raises(UserError, match="1000000"):
        parse_flags(DECODE, ["--workdir=run", "--peer_timeout=1000001"])
    # A cluster is asked only if no flag says how many there are.
    monkeypatch.setattr("gshard_nmt.spmd.processes.detect", lambda timeout: pytest.fail("asked"))
    one = parse_flags(DECODE, ["--workdir=run", "--num_processes=1"])
    assert processes.join(one, "gshard-decode").count == 1


def different(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in {*before, *after} if before.get(name) != after.get(name)}


def test_processes_share_the_settings_and_the_flags_but_not_input_and_output():
    config = load_config("demo")
    first = parse_flags(DECODE, ["--workdir=run", "--input=a", "--output=b", *TWO])
    second = parse_flags(DECODE, ["--workdir=run", *TWO[:2], "--process_id=0"])
    facts = processes.facts(first, config)
    assert processes.facts(second, config) == facts
    other = parse_flags(DECODE, ["--workdir=run", "--nbest=2"])
    assert different(processes.facts(other, config), facts) == {"--nbest"}
    changed = config.replace(decode={"beam": 2})
    assert different(processes.facts(first, changed), facts) == {"Decode.beam"}


LONG = tuple(f"{tag}-Latn-x-region{tag}" for tag in ("aa", "bb", "cc", "dd", "ee", "ff"))


def test_settings_data_and_packages_are_what_processes_have_in_common(tmp_path):
    """Every setting is compared, however long it is: the text of a config has it on several lines."""
    values = parse_flags(TRAIN, ["--config=demo", "--workdir=a run", f"--data={tmp_path}"])
    config = load_config("demo").replace(data={"languages": LONG})
    facts = processes.facts(values, config)
    assert facts["--workdir"] == "a run"
    assert {"gshard-nmt", "jax", "jaxlib"} < facts.keys()
    (tmp_path / "manifest.json").write_text("{}")
    after = processes.facts(values, config.replace(data={"languages": (*LONG[:-1], "fr")}))
    assert different(facts, after) == {"Data.languages", "manifest.json of --data"}


@pytest.mark.parametrize("flag", ["--process_id=3", "--coordinator=h:1"])
@pytest.mark.parametrize("program", ["train", "decode", "eval"])
def test_a_process_is_not_alone_because_a_flag_was_forgotten(program, flag, capsys):
    assert commands.main([program, "--workdir=run", flag]) == 2
    name = flag.partition("=")[0]
    assert f"{name} has no effect without --num_processes." in capsys.readouterr().err
