"""Calls functions in other processes: those of this machine, or the workers of a Dask cluster.

Both are executors of `concurrent.futures`. A generator has a process of its own.
"""

import concurrent.futures
import contextlib
import gc
import logging
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import gshard_nmt
from gshard_nmt.errors import TryAgain, UserError

_SECONDS_TO_ANSWER = 30
_CPU_LIMIT = "/sys/fs/cgroup/cpu.max"


def usable_cpus() -> int:
    """Returns the CPUs that this process may use, also by the limit of a container."""
    cpus = len(os.sched_getaffinity(0))
    try:
        with open(_CPU_LIMIT) as file:
            quota, period = map(int, file.read().split())
    except (OSError, ValueError):  # no cgroup of version 2, or "max"
        return cpus
    return min(cpus, max(1, -(-quota // period)))


class WorkerPool:
    """Processes of this machine. A context manager: at its end, no process is left."""

    def __init__(self, workers: int) -> None:
        """Starts nothing yet. With one worker, everything runs in this process."""
        self._count = workers
        self._executor: concurrent.futures.Executor | None = None
        self._others: set[BaseProcess] = set()

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def map(
        self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], here: bool = False
    ) -> Iterator[tuple[int, Any]]:
        """Calls `function(*task)` for each task, and yields (index of the task, result) when ready.

        The function stands at the top of a module, so that it can be sent to a process. With `here`
        there is too little to do to start processes for it: if none has started before, the calls take
        place in this one.

        Raises:
          UserError: a call ended its process, for example because the memory was full.
          TryAgain: the scheduler of the cluster is gone.
          Exception: whatever the function raises. The other calls are given up.
        """
        if self._executor is None and (here or self._count == 1 or len(tasks) < 2):
            for index, task in enumerate(tasks):
                yield index, function(*task)
            return
        try:
            if self._executor is None:
                self._others = {*multiprocessing.active_children()}
                # A plain fork would copy the locks of the threads that draw the progress.
                context = multiprocessing.get_context("spawn")
                self._executor = ProcessPoolExecutor(self._count, context, _ignore_ctrl_c)
            # New workers begin with this mask, so Ctrl-C does not meet them while they start.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
            try:
                calls = {self._executor.submit(function, *task): i for i, task in enumerate(tasks)}
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            for call in concurrent.futures.as_completed(calls):
                yield calls[call], self._result(call)
        except BaseException as error:
            self.close()
            if isinstance(error, BrokenProcessPool):
                raise UserError(
                    "a worker process was ended from outside, perhaps for lack of memory. Use fewer "
                    "workers or end other programs; then give the same command again."
                ) from None
            raise

    def close(self) -> None:
        if self._executor is not None:
            for process in {*multiprocessing.active_children()} - self._others:
                process.terminate()
            self._executor.shutdown(cancel_futures=True)
            self._executor = None

    def _result(self, call: Future[Any]) -> Any:
        return call.result()


class DaskPool(WorkerPool):
    """The workers of a Dask cluster, which see `folder`. If one dies, another repeats its calls."""

    def __init__(self, scheduler: str, folder: Path) -> None:
        super().__init__(0)
        self._scheduler, self._folder = scheduler, os.path.realpath(folder)

    def __enter__(self) -> "DaskPool":
        """Connects, and looks at the workers; UserError if nobody answers or one cannot do the work."""
        try:
            import distributed
        except ImportError as error:
            raise UserError(
                f"--scheduler needs Dask, which is not installed here ({error}). Install it with: pip "
                "install 'gshard-nmt[cluster]'."
            ) from None
        for name in ("distributed", "distributed.client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # our messages say it
        problem = ""
        try:
            self._client = distributed.Client(
                self._scheduler, timeout=_SECONDS_TO_ANSWER, set_as_default=False
            )
        except (OSError, ValueError) as error:
            problem = str(error).rstrip(".")
        if problem:
            # A client that could not connect is part of a cycle. If it is collected while another client
            # starts, both wait for the same lock for good, and at the program's end it waits a minute.
            # So it is collected now.
            gc.collect()
            raise UserError(
                f"--scheduler is {self._scheduler!r}, but no Dask scheduler answers there ({problem}). "
                "Give the address that `dask scheduler` prints, such as tcp://10.0.0.1:8786."
            )
        try:
            self._check_workers()
        except BaseException:
            self._client.close()
            raise
        self._executor = self._client.get_executor(pure=False)
        return self

    def close(self) -> None:
        """Gives up all calls and leaves the cluster. A worker ends the call that it has begun."""
        if self._executor is not None:
            with contextlib.suppress(concurrent.futures.CancelledError, OSError):
                self._executor.shutdown(wait=False)
            self._client.close()
            self._executor = None

    def _check_workers(self) -> None:
        try:
            self._client.wait_for_workers(1, timeout=_SECONDS_TO_ANSWER)
        except TimeoutError:
            raise UserError(
                f"--scheduler is {self._scheduler!r}, which has no workers. Start some with `dask worker "
                f"{self._scheduler} --nworkers auto --nthreads 1`."
            ) from None
        expected = (gshard_nmt.__version__, True)
        answers = self._client.run(_look_at, self._folder, on_error="return")
        for worker, answer in answers.items():
            if answer != expected:
                raise UserError(
                    f"the worker {worker} answers {answer!r} and not {expected!r}, its version of "
                    f"gshard-nmt and whether it sees {self._folder}. All workers need this version, and "
                    "must see --corpus and --out under the same paths."
                )

    def _result(self, call: Future[Any]) -> Any:
        from distributed import KilledWorker

        try:
            return call.result()
        except KilledWorker:
            raise UserError(
                "a part of the work ended one worker after the other, perhaps for lack of memory. Give "
                "the workers more memory; the same command goes on."
            ) from None
        except concurrent.futures.CancelledError:
            raise TryAgain(
                "the Dask scheduler is gone. Start it and its workers again; the same command goes on."
            ) from None


class Generated:
    """What an endless `generator(*arguments)` yields in another process, ahead by what a pipe holds.

    Signals to a whole job do not end the process. `close` does, and so does the end of this one.
    """

    def __init__(self, generator: Callable[..., Iterator[Any]], *arguments: Any) -> None:
        """Starts the process. The generator stands at the top of a module."""
        self._call = generator, arguments
        # It imports what this process would import, wherever the user has started it.
        program = (
            f"import sys; sys.path[:] = {[*map(str, sys.path)]}; import {__name__} as w; w.answer()"
        )
        # Ctrl-C and a cluster send these to all processes of a job. The first one decides what happens.
        before = signal.pthread_sigmask(
            signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        )
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def __iter__(self) -> Iterator[Any]:
        """Asks for the items, and returns an iterator that waits for them.

        The iterator raises UserError or TryAgain if the generator does, TryAgain if the process was
        ended, and RuntimeError for a defect.
        """
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pickle.dump(self._call, pipe)
        return self._items()

    def close(self) -> None:
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a dead file server may hold it
            self._process.wait(1)
            for pipe in filter(None, (self._process.stdin, self._process.stdout)):
                pipe.close()

    def _items(self) -> Iterator[Any]:
        assert self._process.stdout
        try:
            while not isinstance(item := pickle.load(self._process.stdout), Exception):
                yield item
        except (EOFError, pickle.UnpicklingError):
            if (code := self._process.wait()) >= 0:
                raise RuntimeError(
                    f"a process of batches ended with code {code}, see above"
                ) from None
            raise TryAgain(
                "a process that makes the batches was ended from outside, perhaps for lack of memory. "
                "Give the same command again to go on."
            ) from None
        raise item


def _look_at(folder: str) -> tuple[str, bool]:
    return gshard_nmt.__version__, os.path.isdir(folder)


def _ignore_ctrl_c() -> None:
    """Prepares a worker process. Ctrl-C reaches all processes of a terminal; the main one decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends a worker whose main process was killed; it would wait for work, and keep its memory."""
    multiprocessing.parent_process().join()  # type: ignore[union-attr]
    os._exit(1)


def answer() -> None:
    """Is the other process: reads the call, and writes the items or an error."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no item
    sys.stdout = sys.stderr
    with contextlib.suppress(EOFError, BrokenPipeError):  # nobody wants the items
        for item in _until_error(*pickle.load(sys.stdin.buffer)):
            pickle.dump(item, out, protocol=5)
            out.flush()
    os._exit(0)


def _until_error(generator: Callable[..., Iterator[Any]], values: Sequence[Any]) -> Iterator[Any]:
    try:
        yield from generator(*values)
    except (UserError, TryAgain) as error:
        yield error
    except Exception:  # noqa: BLE001 - `Generated` raises it in the other process
        yield RuntimeError(traceback.format_exc())
