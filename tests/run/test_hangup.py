"""SIGHUP: a program whose terminal is gone saves and ends; with nohup it goes on."""

import os
import pathlib
import pty
import signal
import subprocess
import sys

from gshard_nmt.run import together
from gshard_nmt.run.together import stop_signals

ROOT = pathlib.Path(together.__file__).parents[2]
PROGRAM = """
import pathlib, signal, sys, time
from gshard_nmt.cli.flags import Command
from gshard_nmt.cli.runner import run
def action(values):
    try:
        print("ready", flush=True)
        for _ in range(600):  # a signal just before a long sleep would be heard after it
            time.sleep(0.1)
    except KeyboardInterrupt:
        print("saving", file=sys.stderr, flush=True)
        raise KeyboardInterrupt("saved")
code = run(Command("gshard-try", "", "", (), lambda flags: None, action), [])
pathlib.Path(sys.argv[1]).write_text(f"{code}")
sys.exit(code)
"""


def test_a_lost_terminal_leaves_time_to_save(tmp_path):
    """The program writes to the terminal after it is gone. That must not end it with an error."""
    own_end, terminal = pty.openpty()
    program = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{PROGRAM}"
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "code")],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        cwd=ROOT,
    )
    os.close(terminal)
    output = b""
    while not output.endswith(b"\n"):  # a read may return a part of the line
        output += os.read(own_end, 100)
    assert output == b"ready\r\n"
    os.close(own_end)
    assert process.wait(30) == 130
    assert (tmp_path / "code").read_text() == "130"


def test_a_program_that_ignores_sighup_ignores_it_further(monkeypatch):
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN)
    assert stop_signals() == (signal.SIGINT, signal.SIGTERM)
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_DFL)
    assert stop_signals() == (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
