import shlex

import pytest

from gshard_nmt.cli import commands
from gshard_nmt.cli.flags import Command, Flags, command_text, help_text, parse_flags
from gshard_nmt.cli.runner import run


def command(action=lambda values: None) -> Command:
    def define(flags: Flags) -> None:
        flags.integer("beam", "K", "width", 4, minimum=1)
        flags.text("out", "DIR", "where")
        flags.switch("scores", "whether")
        flags.choice("norm", "NAME", "how", ["gnmt", "none"])
        flags.texts("root", "DIR", "a folder")
        flags.number("alpha", "X", "exponent", 1e12, minimum=0)
        flags.words("name", "WORD ...", "names")

    return Command("gshard-try", "tries.", "gshard-try --out x", ("out",), define, action)


MISTAKES = [
    (["--bem", "3", "--out=x"],
     "there is no flag --bem; did you mean '--beam'? See gshard-try --help."),
    (["--zebra"], "there is no flag --zebra. See gshard-try --help."),
    (["--beam=four", "--out=x"],
     "--beam is 'four'; it must be a positive integer. See gshard-try --help."),
    (["--beam=0", "--out=x"], "--beam is '0'; it must be a positive integer. See gshard-try --help."),
    (["--alpha=nan", "--out=x"],
     "--alpha is 'nan'; it must be a non-negative number. See gshard-try --help."),
    (["--scores=7", "--out=x"], "--scores is '7'; it must be true or false. See gshard-try --help."),
    (["--out"], "Missing value for flag --out. See gshard-try --help."),
    ([], "--out is missing. For example:\n  gshard-try --out x\nSee gshard-try --help."),
    (["--out="], "--out is missing. For example:\n  gshard-try --out x\nSee gshard-try --help."),
    (["--norm=gmnt", "--out=x"],
     "--norm is 'gmnt'; it must be one of gnmt, none. See gshard-try --help."),
    (["word", "--out=x"],
     "'word' is not a flag; write a flag as --name value. See gshard-try --help."),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_wrong_command_line_ends_with_2_and_one_message(capsys, arguments, message):
    assert run(command(), arguments) == 2
    assert capsys.readouterr() == ("", f"gshard-try: {message}\n")


def test_the_flags_reach_the_command():
    calls = []
    words = ["--out", "x", "--noscores", "--beam", "7", "--root=a", "--root", "b"]
    assert run(command(calls.append), words) == 0
    (values,) = calls
    assert values.root == ["a", "b"]
    assert (values.out, values.scores, values.beam) == ("x", False, 7)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--name", "a", "b"], ["a", "b"]),
        (["--name=a", "b", "--beam", "3", "--name", "c"], ["a", "b", "c"]),
        (["-name", "a", "--scores"], ["a"]),
        (["--name", "--beam=3"], [""]),
        ([], []),
    ],
)
def test_a_flag_of_several_words_collects_them(words, names):
    assert parse_flags(command(), ["--out", "x", *words]).name == names


def test_help_is_complete():
    assert help_text(command()) == (
        "gshard-try: tries.\n\nExample:\n  gshard-try --out x\n\nFlags:\n"
        "  --beam K                width (default: 4)\n"
        "  --out DIR               where (required)\n"
        "  --scores                whether\n"
        "  --norm NAME             how\n"
        "  --root DIR              a folder\n"
        "  --alpha X               exponent (default: 1e+12)\n"
        "  --name WORD ...         names\n"
        "  --help                  print this text\n"
        "  --version               print the version\n"
    )


@pytest.mark.parametrize("command", commands.COMMANDS.values(), ids=lambda command: command.name)
def test_help_names_every_flag_and_an_example(capsys, command):
    assert run(command, ["--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    flags = Flags()
    command.define(flags)
    for name in [*flags.values, "help", "version"]:
        assert f"  --{name}" in out
    assert command.example in out
    text = " ".join(out.split())
    assert all(f"{flags.abouts[name]} (required" in text for name in command.required)
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("command", commands.COMMANDS.values(), ids=lambda command: command.name)
def test_the_example_of_the_help_is_accepted(command):
    words = command.example.split("| ")[-1].split()
    parse_flags(command, words[len(command.name.split()) :])


def test_the_text_of_a_command_gives_the_same_values_again():
    arguments = ["--out", "a folder/it's", "--root=a", "--root=b", "--scores", "--beam", "7"]
    values = parse_flags(command(), arguments)
    text = command_text("gshard-try", values)
    program, *words = shlex.split(text)
    assert program == "gshard-try"
    assert "alpha" not in text
    assert parse_flags(command(), words).flag_values_dict() == values.flag_values_dict()
    # A default that was given may say more than one that was not, as --num_processes 1 does.
    given = parse_flags(command(), ["--out=a", "--beam=4"])
    assert command_text("x", given) == "x --beam=4 --out=a"


@pytest.mark.parametrize(
    ("program", "words", "advice"),
    [
        ("train", ["--steps", "100"], "use --gin 'Train.steps = ...'"),
        ("train", ["--max-steps=100"], "use --gin 'Train.steps = ...'"),
        ("train", ["--lr", "5e-4"], "use --gin 'Optimizer.learning_rate = ...'"),
        ("train", ["--output_dir", "x"], "use --workdir"),
        ("train", ["--model", "big"], "use --config"),
        ("train", ["--resume"], "the same command resumes"),
        ("decode", ["--model", "x"], "use --workdir"),
        ("decode", ["--num-beams", "5"], "use --beam"),
        ("decode", ["--batch_size", "32"], "use --gin 'Decode.rows = ...'"),
        ("decode", ["--top_k", "32"], "use --gin 'Decode.top_k = ...'"),
        ("eval", ["--zebra"], ""),
    ],
)
def test_a_flag_of_another_system_is_answered_with_ours(capsys, program, words, advice):
    assert commands.main([program, *words]) == 2
    expected = f"there is no flag --{words[0].partition('=')[0][2:]}"
    expected += f"; {advice}" if advice else ". See"
    assert expected in capsys.readouterr().err
