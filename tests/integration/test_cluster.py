"""`gshard-data prepare --scheduler`: a Dask scheduler and two workers, as processes."""

import contextlib
import gc
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from distributed import Client

from gshard_nmt.data.worker_pool import DaskPool
from gshard_nmt.errors import TryAgain, UserError
from tests.data.preparation.small_corpus import content, write_corpus
from tests.data.test_worker_pool import call

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


class Cluster:
    """A scheduler and its workers."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self._log = (folder / "cluster.log").open("a")
        self._folder = folder
        self.scheduler = self.start_scheduler()
        self.workers = [self.start_worker() for _ in range(2)]

    def start_scheduler(self):
        return self._start("dask_scheduler", "--host=127.0.0.1", f"--port={self.port}")

    def start_worker(self, before=""):
        """Starts a worker that cleans nothing while there is a file `hold`."""
        slow = f"from tests.integration import slow_cleaning as s; s.install({str(self._folder)!r})"
        flags = (self.address, "--nthreads=1", "--no-nanny", "--host=127.0.0.1")
        return self._start("dask_worker", *flags, before=before or slow)

    def _start(self, name, *flags, before=""):
        program = f"import sys; {before}\nfrom distributed.cli.{name} import main\nmain()"
        return subprocess.Popen(
            [sys.executable, "-c", program, "--no-dashboard", *flags],
            cwd="/",
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def close(self):
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()
        self._log.close()


@pytest.fixture
def cluster(tmp_path):
    with contextlib.closing(Cluster(tmp_path)) as processes:
        yield processes


def start(tmp_path, corpus, out, *flags):
    words = [
        *("prepare", "--config=demo", f"--corpus={corpus}", f"--out={tmp_path / out}"),
        *(f"--gin=Data.{side}_vocabulary = 330" for side in ("source", "target")),
        "--gin=Data.minimum_pairs = 1",
        *flags,
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "gshard_nmt", "data", *words],
        cwd=ROOT,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / f"cache of {out}")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(program):
    output = program.communicate(timeout=200)[0]
    return program.returncode, output


def wait_for(file):
    for _ in range(2000):
        if file.exists():
            return
        time.sleep(0.05)
    raise AssertionError(f"{file} is not there")


def test_the_bytes_are_those_of_one_process_whoever_is_killed(tmp_path, cluster):
    corpus = write_corpus(tmp_path / "corpus")
    code, said = end(start(tmp_path, corpus, "alone", "--workers=1"))
    assert code == 0, said
    expected = content(tmp_path / "alone")
    assert {"manifest.json", "fr-en/train-00000.ids"} <= set(expected)
    on_cluster = f"--scheduler={cluster.address}"

    # A worker dies in the middle: another one does its units.
    hold, begun = tmp_path / "hold", tmp_path / "begun"
    hold.touch()
    program = start(tmp_path, f"file://{corpus}", "killed worker", on_cluster)
    wait_for(begun)
    cluster.workers[0].kill()
    hold.unlink()
    code, said = end(program)
    assert code == 0, said
    assert content(tmp_path / "killed worker") == expected

    # The scheduler dies: the program says so, and the same command goes on.
    hold.touch()
    begun.unlink()
    program = start(tmp_path, os.path.relpath(corpus, ROOT), "killed scheduler", on_cluster)
    wait_for(begun)
    cluster.scheduler.kill()
    code, said = end(program)
    hold.unlink()
    assert code == 75, said
    assert "the Dask scheduler is gone. Start it and its workers again" in said
    assert (tmp_path / "killed scheduler.partial" / "read").is_dir()
    with contextlib.closing(Cluster(tmp_path)) as other:
        on_other = f"--scheduler={other.address}"
        code, said = end(start(tmp_path, corpus, "killed scheduler", on_other))
        assert code == 0, said
        assert content(tmp_path / "killed scheduler") == expected
        assert not (tmp_path / "killed scheduler.partial").exists()


def test_errors_of_calls_arrive_and_a_call_that_ends_its_workers_is_given_up(tmp_path, cluster):
    with DaskPool(cluster.address, tmp_path) as pool:
        assert {n for n, _ in pool.map(call, [(n,) for n in range(5)])} == set(range(5))
    for what, error, words in (
        ("user", UserError, r"^a line is wrong\.$"),
        ("disk", OSError, "No space left"),
    ):
        with pytest.raises(error, match=words), DaskPool(cluster.address, tmp_path) as pool:
            list(pool.map(call, [(1,), (what,)]))
    for _ in range(3):
        cluster.workers.append(cluster.start_worker())
    with (
        pytest.raises(UserError, match=r"ended one worker after the other"),
        DaskPool(cluster.address, tmp_path) as pool,
    ):
        list(pool.map(call, [(1,), ("killed",)]))
    with DaskPool(cluster.address, tmp_path) as pool:
        cluster.scheduler.kill()
        with pytest.raises(TryAgain):
            list(pool.map(call, [(n,) for n in range(3)]))


def clients() -> set[int]:
    return {id(thing) for thing in gc.get_objects() if type(thing) is Client}


def test_a_cluster_that_cannot_do_the_work_is_refused(tmp_path, cluster, monkeypatch):
    def refuse(words, scheduler=cluster.address, folder=tmp_path):
        with pytest.raises(UserError, match=words), DaskPool(scheduler, folder):
            pass

    gc.disable()
    try:
        others = clients()
        refuse(r"^--scheduler is 'nowhere', but no Dask scheduler answers there", "nowhere")
        # A client that is left may be collected while the next one starts, and then both hang.
        assert clients() <= others
    finally:
        gc.enable()
    refuse(r"^the worker tcp://.* answers .*False.* /no/such. All workers need", folder="/no/such")
    monkeypatch.setattr("gshard_nmt.__version__", "9")
    refuse(r"^the worker tcp://.* answers .*0\.1\.0.* and not .*'9'")
    monkeypatch.undo()
    cluster.workers.append(cluster.start_worker("sys.modules['gshard_nmt'] = None"))
    time.sleep(3)
    refuse(r"^the worker tcp://.* answers .*ModuleNotFoundError")
    for worker in cluster.workers:
        worker.kill()
    monkeypatch.setattr("gshard_nmt.data.worker_pool._SECONDS_TO_ANSWER", 2)
    time.sleep(1)
    refuse(r"which has no workers\. Start some with `dask worker tcp://")
