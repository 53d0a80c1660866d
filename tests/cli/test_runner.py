"""Failures that the user can mend have a message; defects of the program have none."""

import dataclasses
import errno
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
from gzip import BadGzipFile

import pytest

from gshard_nmt.cli import runner
from gshard_nmt.cli.flags import Command
from gshard_nmt.cli.runner import run, user_message
from gshard_nmt.errors import TryAgain, UserError


def ending(error: BaseException) -> Command:
    """Returns a command that raises the error."""

    def action(values) -> None:
        raise error

    return Command("gshard-try", "tries.", "gshard-try", (), lambda flags: None, action)


ENDINGS = [
    (UserError("no such thing."), 2, "no such thing."),
    (UserError("a tensor \x1b[31mx."), 2, r"a tensor \x1b[31mx."),
    (TryAgain("a peer died."), 75, "a peer died."),
    (KeyboardInterrupt(), 130, "interrupted"),
    (KeyboardInterrupt("interrupted; saved step 3"), 130, "interrupted; saved step 3"),
    (PermissionError(13, "Permission denied", "/locked/x"), 2,
     "/locked/x: Permission denied. Give another file or folder, or change its permissions."),
    (OSError(116, "Stale file handle", "/x"), 75,
     "/x: Stale file handle. The disk or the file server has failed; try again when it works."),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), 2,
     "the input is not UTF-8 (invalid start byte). Convert it, for instance with iconv."),
]  # fmt: skip


@pytest.mark.parametrize(("error", "code", "message"), ENDINGS)
def test_the_way_a_command_ends_is_its_exit_code(capsys, error, code, message):
    assert run(ending(error), []) == code
    assert capsys.readouterr() == ("", f"gshard-try: {message}\n")


def test_an_error_of_a_library_of_buckets_is_temporary_unless_a_name_is_wrong(capsys):
    library = {"__name__": "gcsfs.retry"}
    exec("def ask(error):\n    raise error", library)

    def ended(error: Exception) -> int:
        command = ending(error)
        return run(dataclasses.replace(command, run=lambda _: library["ask"](error)), [])

    assert ended(Exception("Rate limit, 429")) == 75
    assert ended(OSError("Forbidden: storage.objects.get")) == 75
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("gshard-try: the object store failed: Rate limit, 429. Start the same")
    assert second.startswith("gshard-try: the object store failed: Forbidden: storage.objects.get.")
    assert ended(FileNotFoundError(2, "No such file", "gs://b/run")) == 2
    assert ended(PermissionError("Access Denied")) == 2
    assert "check the account and its permissions" in capsys.readouterr().err
    assert ended(MemoryError()) == 2
    with pytest.raises(TypeError):
        ended(TypeError("a defect"))


ROOT = pathlib.Path(runner.__file__).parents[2]


def python_command(code: str) -> list[str]:
    """Returns the command line of a Python process that runs the code. `end(action)` runs a command."""
    setup = """
        import sys, time
        from gshard_nmt.cli.flags import Command
        from gshard_nmt.cli.runner import run
        def end(action):
            nothing = lambda flags: None
            command = Command("gshard-try", "", "", (), nothing, lambda values: action())
            sys.exit(run(command, []))
    """
    return [sys.executable, "-c", textwrap.dedent(setup) + textwrap.dedent(code)]


def python(code: str, stdout=subprocess.PIPE) -> subprocess.Popen[str]:
    return subprocess.Popen(
        python_command(code),
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )


def result_of(code: str) -> tuple[int, str, str]:
    """Runs a program to its end, and returns its exit code and what it wrote to stdout and stderr."""
    process = python(code)
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def test_sigterm_interrupts_and_leaves_time_to_save():
    process = python("""
        def action():
            try:
                print("ready", flush=True)
                for _ in range(600):  # a signal just before a long sleep would be heard after it
                    time.sleep(0.1)
            except KeyboardInterrupt:
                raise KeyboardInterrupt("interrupted; saved step 3")
        end(action)
    """)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "gshard-try: interrupted; saved step 3\n")


@pytest.mark.parametrize("printing", ["print", "rich.console.Console().print"])
def test_a_closed_pipe_behind_stdout_is_no_error(printing):
    process = python(f"""
        import rich.console
        def action():
            for _ in range(100_000):
                {printing}("a line of text")
        end(action)
    """)
    assert process.stdout.readline() == "a line of text\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(30) == 141


@pytest.mark.parametrize("place", ["a closed pipe", "a full disk"])
def test_messages_that_cannot_be_written_end_no_program(place):
    """Training goes on although nobody reads its progress, or the disk of its log is full."""
    command = python_command("""
        from rich.console import Console
        def action():
            for _ in range(3):
                Console(stderr=True).print("a line of text")
                print("a line of text", file=sys.stderr)
            raise KeyboardInterrupt("saved")
        end(action)
    """)
    reader, descriptor = os.pipe()
    if place == "a full disk":
        os.dup2(os.open("/dev/full", os.O_WRONLY), descriptor)
    os.close(reader)
    process = subprocess.Popen(command, stderr=descriptor, cwd=ROOT)
    os.close(descriptor)
    assert process.wait(30) == 130


def test_closed_streams_take_any_text_and_keep_their_numbers(tmp_path):
    code = """
        def action():
            print("to a closed stdout")
            print("to a closed stderr", file=sys.stderr)
            with open(sys.argv[1], "w") as file:
                file.write(str(file.fileno()))
        end(action)
    """
    file = tmp_path / "number"
    closed = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *python_command(code), str(file)]
    assert subprocess.run(closed, cwd=ROOT, timeout=30).returncode == 0
    assert int(file.read_text()) > 2


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_full_disk_behind_stdout_is_named(size):
    with open("/dev/full", "w") as full:
        process = python(f"end(lambda: print('x' * {size}))", stdout=full)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 2
    assert err == (
        "gshard-try: stdout, or a file that was being used: No space left on device. Free some space, or "
        "give a place on another disk.\n"
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_pipes_that_do_not_block_lose_nothing(unbuffered):
    (reading, writing), (told, telling) = os.pipe(), os.pipe()
    os.set_blocking(writing, False)
    os.set_blocking(told, False)
    process = subprocess.Popen(
        python_command("end(lambda: print(sys.stdin.buffer.read1(9).decode() + 'x' * 300_000))"),
        stdin=told,
        stdout=writing,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    os.close(writing)
    os.close(told)
    threading.Timer(1.0, os.write, (telling, b"late ")).start()
    with open(reading) as pipe:
        assert pipe.read() == "late " + "x" * 300_000 + "\n"
    assert process.wait(30) == 0
    os.close(telling)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_line_that_is_cut_off_is_an_error(tmp_path, unbuffered):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))"
    code = f"{limit}; end(lambda: print('x' * 1500, end=''))"
    with (tmp_path / "out").open("w") as out:
        variables = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        result = subprocess.run(python_command(code), stdout=out, cwd=ROOT, env=variables)
    assert result.returncode == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [("UserError", 2), ("KeyboardInterrupt", 130), ("Stopped", 130), ("ZeroDivisionError", 1)],
)
def test_a_command_whose_output_is_not_read_ends_as_usual(error, code):
    reader, writer = os.pipe()
    os.close(reader)
    process = python(
        f"""
        from gshard_nmt.errors import UserError
        from gshard_nmt.run.together import Stopped
        def action():
            print("a line of text")
            raise {error}("the reason")
        end(action)
        """,
        stdout=writer,
    )
    os.close(writer)
    _, err = process.communicate(timeout=30)
    start, end = ("Traceback", "ZeroDivisionError") if code == 1 else ("gshard-try",) * 2
    assert process.returncode == code
    assert err.startswith(start)
    assert err.endswith(f"{end}: the reason\n")


def test_an_interruption_of_an_import_has_no_traceback():
    code = "import gshard_nmt.cli, signal; signal.signal(2, signal.default_int_handler)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; signal.raise_signal(2)"], capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


def test_an_interruption_in_a_callback_is_not_lost():
    """Python ignores the exceptions of such a callback, and jax has one."""
    assert result_of("""
        import gc, signal
        # Python ignores SIGINT if its parent did, as a shell does for background jobs.
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
    """) == (130, "", "gshard-try: interrupted\n")


COMPILING = """
    import atexit
    atexit.register(lambda: print("shut down the interpreter"))
    compiler = {"__name__": "jax._src.compiler"}
    exec("def compile(*words): raise KeyboardInterrupt(*words)", compiler)
    def action():
        print("a line of the report")
        compiler["compile"](%s)
    end(action)
"""


@pytest.mark.parametrize(
    ("message", "end", "told"),
    [
        ("", "", "interrupted"),
        pytest.param(
            "'saved'", "shut down the interpreter\n", "saved", id="after saving, as usual"
        ),
    ],
)
def test_an_interrupted_compilation_exits_at_once_and_keeps_the_output(message, end, told):
    """XLA's threads crash when the interpreter shuts down."""
    expected = (130, f"a line of the report\n{end}", f"gshard-try: {told}\n")
    assert result_of(COMPILING % message) == expected


@pytest.mark.parametrize("message", ["", "stopped at once"])
def test_ctrl_c_is_heard_while_a_library_works_and_never_returns(message):
    process = python(f"""
        import atexit, ctypes
        from gshard_nmt.spmd.waiting import wait_for
        atexit.register(lambda: print("shut down the interpreter"))
        def work():
            print("working", flush=True)
            ctypes.CDLL(None).sleep(600)  # as XLA does, without a Python instruction
        def action():
            try:
                wait_for(work)
            except KeyboardInterrupt:
                raise KeyboardInterrupt("{message}")
        end(action)
    """)
    assert process.stdout.readline() == "working\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert err == f"gshard-try: {message or 'interrupted'}\n"


def test_a_second_ctrl_c_waits_for_no_thread():
    assert result_of("""
        import threading, time
        from gshard_nmt.run.together import Stopped
        def action():
            threading.Thread(target=time.sleep, args=[600]).start()  # as if it wrote a checkpoint
            raise Stopped("stopped at once")
        end(action)
    """) == (130, "", "gshard-try: stopped at once\n")


def test_another_broken_pipe_is_an_unexpected_error():
    code, _, err = result_of("""
        def action():
            raise BrokenPipeError
        end(action)
    """)
    assert code == 1
    assert "BrokenPipeError" in err


OUT, FULL = "RESOURCE_EXHAUSTED", "OS error 28: No space left on device"


STARTS = [
    (OSError(errno.EACCES, "Permission denied", "/a"), "/a: Permission denied. Give another file"),
    (OSError(errno.ENXIO, "No such device", "/a"), "/a: No such device. Give another file or fol"),
    (OSError(errno.EXDEV, "Cross", b"/a", None, "/b"), "/a -> /b: Cross. Give another file or fol"),
    (OSError(errno.ENOSPC, "No space"), "stdout, or a file that was being used: No space. Free"),
    (OSError(errno.ETIMEDOUT, "Late"), "stdout, or a file that was being used: Late. The disk or"),
    (MemoryError(), "out of memory: this machine has no more. Lower Data.rows to train, or "),
    (RuntimeError(f"{OUT}: Out of memory.\nx"), f"out of memory: {OUT}: Out of memory. Lower D"),
    (ValueError(f"{OUT}: [{FULL}]"), f"the disk is full: {OUT}: [{FULL}]. Free some space"),
    (RuntimeError("x: Too many open files"), "too many files are open: x"),
    (RuntimeError("write failed: File too large"), "a file is too large: write failed"),
]


@pytest.mark.parametrize(("error", "start"), STARTS)
def test_a_failure_that_the_user_can_mend_says_what_to_do(error, start):
    assert user_message(error).startswith(start)


@pytest.mark.parametrize(
    "error",
    [ValueError("bug"), OSError("?"), FileNotFoundError(2, "gone"), BadGzipFile("Not a gzip")],
)
def test_a_defect_has_no_message_and_keeps_its_traceback(error):
    assert user_message(error) is None
    with pytest.raises(type(error)):
        run(ending(error), [])
