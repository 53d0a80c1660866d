"""Processes that call functions: results, errors, and no process left behind."""

import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from gshard_nmt.data import worker_pool
from gshard_nmt.data.worker_pool import WorkerPool, usable_cpus
from gshard_nmt.errors import UserError


def call(what):
    if what == "user":
        raise UserError("a line is wrong.", ["Data.rows"])
    if what == "disk":
        raise OSError(28, "No space left on device")
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return what, os.getpid()


def test_processes_share_the_calls_and_all_results_arrive():
    with WorkerPool(2) as pool:
        for numbers in (range(20), range(3)):
            results = dict(pool.map(call, [(n,) for n in numbers]))
            assert [results[n][0] for n in numbers] == list(numbers)
            assert os.getpid() not in {results[n][1] for n in numbers}
        with pytest.raises(UserError) as error:
            list(pool.map(call, [(1,), ("user",)]))
        assert (str(error.value), error.value.settings) == ("a line is wrong.", ("Data.rows",))
        with pytest.raises(OSError, match="No space left") as full:
            list(pool.map(call, [(1,), ("disk",)]))
        assert full.value.errno == 28
        with pytest.raises(UserError, match=r"ended from outside.*the same command"):
            list(pool.map(call, [(1,), ("killed",)]))
    assert not multiprocessing.active_children()


def test_few_calls_start_no_process_but_use_those_that_are_there():
    few = [(n,) for n in range(2)]
    with WorkerPool(2) as pool:
        assert {process for _, (_, process) in pool.map(call, few, here=True)} == {os.getpid()}
        list(pool.map(call, few))
        assert os.getpid() not in {process for _, (_, process) in pool.map(call, few, here=True)}


def test_workers_end_with_the_process_that_started_them():
    """Also if it is killed: then nobody tells them."""
    code = (
        "import os, signal; from tests.data.test_worker_pool import *\n"
        "if __name__ == '__main__':\n"
        "  pool = WorkerPool(2)\n"
        "  print(*{pid for _, (_, pid) in pool.map(call, [(n,) for n in range(9)])}, flush=True)\n"
        "  os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    pids, until = list(map(int, done.stdout.split())), time.monotonic() + 20
    while pids and time.monotonic() < until:
        pids = [pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()]
        time.sleep(0.05)
    assert not pids


def test_a_worker_that_died_before_a_call_is_named():
    with WorkerPool(2) as pool:
        list(pool.map(call, [(n,) for n in range(4)]))
        for process in multiprocessing.active_children():
            process.kill()
            process.join()
        while not pool._executor._broken:
            time.sleep(0.01)
        with pytest.raises(UserError, match="a worker process was ended from outside"):
            list(pool.map(call, [(n,) for n in range(4)]))


def test_a_loop_that_is_left_ends_the_processes():
    with WorkerPool(2) as pool:
        for _ in pool.map(call, [(n,) for n in range(50)]):
            break
        assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("limit", "cpus"), [("max 100000", 8), ("150000 100000", 2), ("10000 100000", 1), ("", 8)]
)
def test_the_cpus_of_a_container_are_those_of_its_limit(tmp_path, monkeypatch, limit, cpus):
    (tmp_path / "cpu.max").write_text(limit)
    monkeypatch.setattr(worker_pool, "_CPU_LIMIT", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert usable_cpus() == cpus
