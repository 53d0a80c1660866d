import errno
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import pytest
from absl import flags

from gshard_nmt import __version__
from gshard_nmt.cli import commands
from gshard_nmt.cli.runner import Program, flag_help, help_text, parse_flags, run
from gshard_nmt.errors import TryAgain, UserError

PROGRAMS = {
    "gshard-data": commands.data_program,
    "gshard-train": commands.train_program,
    "gshard-decode": commands.decode_program,
    "gshard-eval": commands.eval_program,
    "gshard-inspect": commands.inspect_program,
}


def program(action=lambda values: None) -> Program:
    def define(values: flags.FlagValues) -> None:
        flags.DEFINE_integer("beam", 4, "width", lower_bound=1, flag_values=values)
        flags.DEFINE_string("out", None, "where", flag_values=values)
        flags.DEFINE_boolean("scores", False, "whether", flag_values=values)
        flags.DEFINE_enum("norm", "gnmt", ["gnmt", "none"], "how", flag_values=values)
        flags.DEFINE_multi_string("root", [], "a folder; repeats", flag_values=values)

    return Program("gshard-try", "tries.", "gshard-try --out x", ("out",), define, action)


def ending(error: BaseException) -> Program:
    def action(values: flags.FlagValues) -> None:
        raise error

    return program(action)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--bem", "3", "--out=x"],
            "there is no flag --bem; did you mean '--beam'? See gshard-try --help.",
        ),
        (["--zebra"], "there is no flag --zebra. See gshard-try --help."),
        (
            ["--beam=four", "--out=x"],
            "--beam is 'four'; it takes a positive integer. See gshard-try --help.",
        ),
        (
            ["--beam=0", "--out=x"],
            "--beam is '0'; it takes a positive integer. See gshard-try --help.",
        ),
        (
            ["--scores=7", "--out=x"],
            "--scores is '7'; it takes true or false. See gshard-try --help.",
        ),
        (["--out"], "Missing value for flag --out. See gshard-try --help."),
        ([], "--out is missing. For example:\n  gshard-try --out x\nSee gshard-try --help."),
        (
            ["--out="],
            "--out is missing. For example:\n  gshard-try --out x\nSee gshard-try --help.",
        ),
        (
            ["--norm=gmnt", "--out=x"],
            "--norm is 'gmnt'; it takes one of gnmt, none. See gshard-try --help.",
        ),
        (
            ["word", "--out=x"],
            "'word' is not a flag; a flag is written --name value. See gshard-try --help.",
        ),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_one_message(capsys, arguments, message):
    assert run(program(), arguments) == 2
    assert capsys.readouterr() == ("", f"gshard-try: {message}\n")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("no such thing."), 2, "no such thing."),
        (TryAgain("a peer died."), 75, "a peer died."),
        (KeyboardInterrupt(), 130, "interrupted"),
        (KeyboardInterrupt("interrupted; saved step 3"), 130, "interrupted; saved step 3"),
        (
            PermissionError(13, "Permission denied", "/locked/x"),
            2,
            "/locked/x: Permission denied.",
        ),
        (
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
            2,
            "the input is not UTF-8 (invalid start byte); convert it, for instance with iconv.",
        ),
    ],
)
def test_the_way_a_program_ends_is_its_exit_code(capsys, error, code, message):
    assert run(ending(error), ["--out=x"]) == code
    assert capsys.readouterr() == ("", f"gshard-try: {message}\n")


def test_all_missing_flags_are_named_at_once(capsys):
    assert commands.train_program([]) == 2
    assert capsys.readouterr().err == (
        "gshard-train: --config, --data and --workdir are missing. For example:\n"
        "  gshard-train --config demo --data data --workdir runs/demo\nSee gshard-train --help.\n"
    )


@pytest.mark.parametrize("error", [ValueError("bug"), FileNotFoundError(2, "gone"), OSError("?")])
def test_a_mistake_of_ours_keeps_its_traceback(error):
    with pytest.raises(type(error)):
        run(ending(error), ["--out=x"])


def test_the_flags_reach_the_program(capsys):
    seen = []
    assert run(program(seen.append), ["--out", "x", "--noscores", "--beam", "7"]) == 0
    assert (seen[0].out, seen[0].scores, seen[0].beam) == ("x", False, 7)


ROOT = pathlib.Path(commands.__file__).parents[2]


def words(code: str) -> list[str]:
    """The command line of a program that does as the code says."""
    setup = """
        import sys, time
        from gshard_nmt.cli.runner import Program, run
        def end(action):
            nothing = lambda values: None
            program = Program("gshard-try", "", "", (), nothing, lambda values: action())
            sys.exit(run(program, []))
    """
    text = textwrap.dedent(setup) + textwrap.dedent(code)
    return [sys.executable, "-c", text]


def python(code: str, stdout=subprocess.PIPE) -> subprocess.Popen[str]:
    return subprocess.Popen(words(code), stdout=stdout, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def test_sigterm_interrupts_and_leaves_time_to_save():
    process = python("""
        def action():
            try:
                print("ready", flush=True)
                time.sleep(60)
            except KeyboardInterrupt:
                raise KeyboardInterrupt("interrupted; saved step 3")
        end(action)
    """)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "gshard-try: interrupted; saved step 3\n")


def test_a_reader_that_goes_away_is_no_error():
    process = python("""
        def action():
            for _ in range(100_000):
                print("a line of text")
        end(action)
    """)
    assert process.stdout.readline() == "a line of text\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(30) == 141


def test_closed_streams_swallow_what_is_printed_and_keep_their_numbers(tmp_path):
    code = """
        def action():
            print("into nothing")
            print("nor here", file=sys.stderr)
            with open(sys.argv[1], "w") as file:
                file.write(str(file.fileno()))
        end(action)
    """
    file = tmp_path / "number"
    closed = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *words(code), str(file)]
    assert subprocess.run(closed, cwd=ROOT, timeout=30).returncode == 0
    assert int(file.read_text()) > 2


def test_a_full_disk_behind_stdout_is_named():
    with open("/dev/full", "w") as full:
        process = python("end(lambda: print('x' * 100_000))", stdout=full)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 2
    assert err == (
        "gshard-try: stdout, or a file that was being written: No space left on device.\n"
    )


def test_an_interruption_of_a_callback_is_not_lost():
    """jax has such a callback, and Python ignores what it raises."""
    process = python("""
        import gc, signal
        # Python leaves SIGINT ignored where it starts so, as in a shell's background.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        def callback(*_):
            gc.callbacks.remove(callback)
            signal.raise_signal(signal.SIGINT)
        def action():
            gc.callbacks.append(callback)
            gc.collect()
            time.sleep(1)
            print("went on")
        end(action)
    """)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "gshard-try: interrupted\n")


COMPILING = """
    import atexit
    atexit.register(lambda: print("took down the interpreter"))
    compiler = {"__name__": "jax._src.compiler"}
    exec("def compile(*words): raise KeyboardInterrupt(*words)", compiler)
    def action():
        print("a line of the report")
        compiler["compile"](%s)
    end(action)
"""


def test_an_interrupted_compilation_leaves_at_once_with_all_that_was_printed():
    """XLA's threads crash as the interpreter is taken down."""
    process = python(COMPILING % "")
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "a line of the report\n")
    assert err == "gshard-try: interrupted\n"


def test_an_interruption_that_was_saved_leaves_as_usual():
    process = python(COMPILING % "'saved at step 3'")
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "a line of the report\ntook down the interpreter\n")
    assert err == "gshard-try: saved at step 3\n"


def test_another_broken_pipe_is_a_mistake_of_ours():
    process = python("""
        def action():
            raise BrokenPipeError
        end(action)
    """)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "BrokenPipeError" in err


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_tells_its_version(capsys, name):
    assert PROGRAMS[name](["--version"]) == 0
    assert capsys.readouterr() == (f"gshard-nmt {__version__}\n", "")


ALL = [
    commands.HARVEST,
    commands.PREPARE,
    commands.TRAIN,
    commands.DECODE,
    commands.EVAL,
    commands.INSPECT,
]


@pytest.mark.parametrize("each", ALL, ids=lambda program: program.name)
def test_help_names_every_flag_and_an_example(capsys, each):
    assert run(each, ["--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    values = flags.FlagValues()
    each.define(values)
    for name in [*values, "help", "version"]:
        assert f"  --{name}" in out
    assert each.example in out
    assert all(
        f"{flag_help(values[name])} (required)" in " ".join(out.split()) for name in each.required
    )
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("each", ALL, ids=lambda program: program.name)
def test_the_example_of_the_help_is_accepted(each):
    words = each.example.split("| ")[-1].split()
    parse_flags(each, words[len(each.name.split()) :])


def test_help_is_complete():
    assert help_text(program()) == (
        "gshard-try: tries.\n\nExample:\n  gshard-try --out x\n\nFlags:\n"
        "  --beam K                width (default: 4)\n"
        "  --out DIR               where (required)\n"
        "  --scores                whether\n"
        "  --norm                  how (default: gnmt)\n"
        "  --root DIR              a folder; repeats\n"
        "  --help                  print this\n"
        "  --version               print the version\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which verb? There are: harvest, prepare. See gshard-data --help."),
        (
            ["harvets"],
            "there is no verb 'harvets'; did you mean 'harvest'? There are: harvest, prepare, "
            "which come first. See gshard-data --help.",
        ),
    ],
)
def test_gshard_data_wants_a_verb(capsys, arguments, message):
    assert commands.data_program(arguments) == 2
    assert capsys.readouterr() == ("", f"gshard-data: {message}\n")


def test_gshard_data_help_names_the_verbs(capsys):
    assert commands.data_program(["--help"]) == 0
    out, _ = capsys.readouterr()
    assert "gshard-data harvest" in out
    assert "gshard-data prepare" in out


def test_an_unknown_setting_is_an_error_even_where_it_is_not_used(capsys, tmp_path):
    arguments = ["prepare", "--config=demo", f"--corpus={tmp_path}", f"--out={tmp_path / 'data'}"]
    assert commands.data_program([*arguments, "--gin=Decode.bem = 3"]) == 2
    _, err = capsys.readouterr()
    assert err.startswith(
        "gshard-data prepare: --gin 'Decode.bem = 3': Decode has no setting 'bem'; did you mean "
        "'beam'? Decode has: beam, "
    )


def test_missing_folders_are_named_with_what_makes_them(capsys, tmp_path):
    gone = tmp_path / "gone"
    assert commands.train_program(["--config=demo", f"--data={gone}", "--workdir=w"]) == 2
    assert capsys.readouterr().err == (
        f"gshard-train: --data {gone}: there is no such folder; make it with gshard-data prepare.\n"
    )
    assert commands.decode_program([f"--workdir={gone}"]) == 2
    assert capsys.readouterr().err == (
        f"gshard-decode: --workdir {gone}: there is no such folder; make it with gshard-train.\n"
    )
    assert commands.eval_program([f"--workdir={tmp_path}", f"--corpus={gone}", "--report=r"]) == 2
    assert capsys.readouterr().err == (
        f"gshard-eval: --corpus {gone}: there is no such folder; make it with gshard-data harvest, "
        "or put your own text there.\n"
    )


@pytest.fixture
def run_folder(tmp_path):
    """A folder with the config of a run from French and German."""
    from gshard_nmt.settings.gin_reader import load_config

    (tmp_path / "config.gin").write_text(load_config("demo").text)
    pairs = [{"source": source, "target": "en"} for source in ("fr", "de")]
    (tmp_path / "data.json").write_text(json.dumps({"pairs": pairs}))
    return tmp_path


def test_decode_changes_the_runs_search_by_its_flags(monkeypatch, run_folder):
    from gshard_nmt.settings.values import read_run_config

    calls, lines = [], []

    def decode(*arguments):
        calls.append(arguments)
        lines.extend(arguments[2])

    monkeypatch.setattr("gshard_nmt.decode.decode", decode)
    source, output = run_folder / "in.txt", run_folder / "out.txt"
    source.write_text("un\rdeux\n")
    before = read_run_config(run_folder / "config.gin")
    code = commands.decode_program(
        [
            *(f"--workdir={run_folder}", "--lang=fr", "--beam=2", "--alpha=0.8"),
            *("--length_norm=lingvo", f"--input={source}", f"--output={output}", "--scores"),
        ]
    )
    assert code == 0
    config, workdir, _, _, language, target, nbest, scores = calls[0]
    assert (workdir, language, target, nbest, scores) == (run_folder, "fr", "", 1, True)
    assert (config.decode.beam, config.decode.length_norm, config.decode.alpha) == (
        2,
        "lingvo",
        0.8,
    )
    assert config.model == before.model
    assert lines == ["un\rdeux\n"]
    assert output.read_text() == ""


def test_decode_reads_stdin_and_writes_stdout(monkeypatch, capsys, run_folder):
    def upper(config, workdir, source, output, *rest):
        output.writelines(line.upper() for line in source)

    monkeypatch.setattr("gshard_nmt.decode.decode", upper)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("é\nb\n".encode())))
    assert commands.decode_program([f"--workdir={run_folder}", "--lang=fr"]) == 0
    assert capsys.readouterr() == ("É\nB\n", "")


@pytest.mark.parametrize("wrong", ["--lang=xx", "--target=fr", "--nbest=5"])
def test_a_mistake_leaves_the_output_file_as_it_was(capsys, run_folder, wrong):
    output = run_folder / "out.txt"
    output.write_text("translated before\n")
    assert (
        commands.decode_program(
            [f"--workdir={run_folder}", "--lang=fr", f"--output={output}", wrong]
        )
        == 2
    )
    assert capsys.readouterr().err.startswith("gshard-decode: --")
    assert output.read_text() == "translated before\n"


def test_decode_names_a_missing_input(capsys, run_folder):
    arguments = [f"--workdir={run_folder}", "--lang=fr", "--input=gone.txt"]
    assert commands.decode_program(arguments) == 2
    assert capsys.readouterr().err == "gshard-decode: --input gone.txt: there is no such file.\n"


def test_help_waits_for_no_library(tmp_path):
    code = (
        "import sys; from gshard_nmt.cli import commands; commands.data_program(['harvest', '--help']); "
        "heavy = {'tensorflow', 'jax', 'numpy', 'matplotlib', 'gin', 'rich'} & set(sys.modules); "
        "sys.exit(f'imports {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_reading_a_config_imports_neither_tensorflow_nor_jax():
    code = (
        "import sys; from gshard_nmt.settings.gin_reader import load_config; load_config('demo'); "
        "heavy = {'tensorflow', 'jax', 'matplotlib'} & set(sys.modules); "
        "sys.exit(f'imports {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("value", ["nan", "inf", "0", "-1", "many"])
def test_a_budget_that_is_no_number_of_tokens_is_refused(capsys, value):
    assert commands.inspect_program(["--config=demo", f"--tokens={value}"]) == 2
    assert capsys.readouterr().err.startswith(f"gshard-inspect: --tokens is '{value}'; it takes ")


TOGETHER = """ Beside --config and --gin:
  the report     takes --topology, --scale_with_devices, --decoding, --tokens, --json, --html
  --parameters   takes no more
  --equivalence  takes --devices
  --doctor       takes --topology, --data, --workdir
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--equivalence", "--topology=nonsense", "--json=y.json"],
            f"--topology, --json are not used with --equivalence.{TOGETHER}",
        ),
        (["--devices=4"], f"--devices is not used for the report.{TOGETHER}"),
        (["--doctor", "--decoding"], f"--decoding is not used with --doctor.{TOGETHER}"),
        (
            ["--parameters", "--equivalence", "--doctor", "--devices=4"],
            "--parameters and --equivalence and --doctor are different inspections; give one of "
            "them at a time.\n",
        ),
        (
            ["--json=x", "--html=./x"],
            "--json and --html are both x; give each a file of its own.\n",
        ),
    ],
)
def test_flags_that_an_inspection_does_not_use_are_refused(capsys, arguments, message):
    assert commands.inspect_program(["--config=demo", *arguments]) == 2
    assert capsys.readouterr() == ("", f"gshard-inspect: {message}")


@pytest.mark.parametrize("flag", ["json", "html"])
def test_a_file_that_cannot_be_written_is_told_before_anything_is_compiled(
    capsys, monkeypatch, tmp_path, flag
):
    def compiles(*_):
        raise AssertionError

    monkeypatch.setattr("gshard_nmt.inspect.inspect_one", compiles)
    for file, why in ((tmp_path, "it is a folder"), ("/proc/x.json", "No such file or directory")):
        assert commands.inspect_program(["--config=demo", f"--{flag}={file}"]) == 2
        expected = f"gshard-inspect: --{flag} {file}: it cannot be written: {why}.\n"
        assert capsys.readouterr() == ("", expected)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["json", "html"])
def test_a_disk_that_is_full_after_compiling_is_told_with_the_flag(
    capsys, monkeypatch, tmp_path, flag
):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gshard_nmt.inspect.inspect_one", lambda *_: None)
    monkeypatch.setattr("gshard_nmt.inspect.terminal.report", lambda *_: "")
    monkeypatch.setattr("gshard_nmt.inspect.as_json", lambda found: {})
    monkeypatch.setattr("gshard_nmt.inspect.files.write", full)
    monkeypatch.setattr("gshard_nmt.inspect.write_page", full)
    file = tmp_path / "found"
    assert commands.inspect_program(["--config=demo", "--topology=cpu:2", f"--{flag}={file}"]) == 2
    assert capsys.readouterr().err == (
        f"gshard-inspect: --{flag} {file}: it cannot be written: No space left on device.\n"
    )
