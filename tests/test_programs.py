"""The scripts that run programs: side by side, in order, and with time to save when they are stopped."""

import functools
import os
import signal
import threading
import time

import pytest

from scripts.programs import Job, run

WAITS = """
import pathlib, sys, time
own, other = map(pathlib.Path, sys.argv[1:3])
own.touch()
while not other.exists():
    time.sleep(0.01)
sys.exit(int(sys.argv[3]))
"""
SAVES = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def save(number, frame):
    time.sleep(0.4)
    (folder / "saved").touch()
    sys.exit(130)
signal.signal(signal.SIGTERM, save)
(folder / "started").touch()
for _ in range(600):  # a signal just before a long sleep would be heard after it
    time.sleep(0.1)
"""


def python(code, *arguments, log=None):
    return Job(["python", "-c", code, *arguments], log)


def test_programs_run_side_by_side_and_their_codes_keep_the_order(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    assert run([python(WAITS, a, b, "3"), python(WAITS, b, a, "0")], 2) == [3, 0]


def test_a_job_is_taken_when_the_one_before_has_ended(tmp_path, capfd):
    log = tmp_path / "logs" / "first.log"

    def jobs():
        yield python("print('one'); print('two'); print()", log=log)
        assert log.read_text() == "one\ntwo\n\n"
        yield python("raise SystemExit(7)")

    assert run(jobs()) == [0, 7]
    printed = capfd.readouterr().out
    assert "first ended with exit code 0: two" in printed
    assert f"> {log}" in printed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_program_that_is_stopped_may_save_before_this_one_ends(tmp_path, number, request):
    # Under nohup, SIGHUP is ignored, and a run goes on.
    before = signal.default_int_handler
    request.addfinalizer(functools.partial(signal.signal, number, signal.getsignal(number)))
    signal.signal(number, before)

    def stop():
        while not (tmp_path / "started").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run([python(SAVES, tmp_path)])
    thread.join()
    assert (tmp_path / "saved").exists()
    assert signal.getsignal(number) == before
