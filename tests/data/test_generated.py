"""A generator in a process of its own: its items, its errors, and no process that stays."""

import itertools
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gshard_nmt.data.worker_pool import Generated
from gshard_nmt.errors import TryAgain


def test_it_yields_what_the_generator_yields_and_raises_what_it_raises():
    other = Generated(map, int, ["1", "2", "x"])
    items = iter(other)
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(RuntimeError, match=r"(?s)Traceback.*ValueError: invalid literal.*'x'"):
        next(items)
    other.close()


def test_what_it_prints_is_no_item_and_its_own_end_is_a_defect(capfd):
    other = Generated(map, print, ["a line"])
    items = iter(other)
    assert next(items) is None
    with pytest.raises(RuntimeError, match="ended with code 0"):
        next(items)
    other.close()
    assert capfd.readouterr().err == "a line\n"


def test_signals_to_a_whole_job_do_not_end_it_and_what_does_is_told():
    other = Generated(itertools.count)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        other._process.send_signal(number)
    items = iter(other)
    assert next(items) == 0
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        other._process.send_signal(number)
    # More than a pipe holds, so these come after the signals.
    assert list(itertools.islice(items, 100_000)) == [*range(1, 100_001)]
    other._process.kill()
    with pytest.raises(TryAgain, match="perhaps for lack of memory"):
        list(items)
    other.close()


def test_it_ends_with_the_process_that_wanted_its_items():
    code = (
        "import itertools, os; from gshard_nmt.data.worker_pool import Generated; "
        "other = Generated(itertools.count); items = iter(other); next(items); "
        "print(other._process.pid, flush=True); "
        "os.kill(os.getpid(), 9)"
    )
    wanted = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert wanted.returncode == -signal.SIGKILL
    assert not wanted.stderr
    deadline = time.monotonic() + 20
    while is_running(int(wanted.stdout)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(int(wanted.stdout))


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False
