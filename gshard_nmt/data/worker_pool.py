"""Worker processes: they call functions with tasks, and the results come back as they are ready.

A pool of one worker calls the functions in this process. Otherwise the processes start at the first
call and stay until the pool is closed. `start_early` makes their start fast.
"""

import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection, forkserver
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, cast

from gshard_nmt.errors import UserError


def usable_cpus() -> int:
    """Returns the number of CPUs that this process may use. A container may have a limit of its own."""
    cpus = len(os.sched_getaffinity(0))
    try:
        with open(_CPU_LIMIT) as file:
            quota, period = map(int, file.read().split())
    except (OSError, ValueError):  # no cgroup of version 2, or "max"
        return cpus
    return min(cpus, max(1, -(-quota // period)))


_CPU_LIMIT = "/sys/fs/cgroup/cpu.max"


# A plain fork would copy the locks of the threads that draw the progress.
_context: ForkServerContext | SpawnContext = multiprocessing.get_context("spawn")


def start_early(*modules: str) -> None:
    """Starts a process that imports modules, and of which all later worker processes are copies.

    The imports of a program and of its workers then take place at the same time, on two CPUs. Without
    this call, a worker process imports what it needs when it has its first task.

    Args:
      modules: the names of modules. They must not start threads when they are imported.
    """
    global _context
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    # Ctrl-C reaches all processes of a terminal. This one must not print a traceback.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
        _context = context
    except OSError:
        return  # It needs a socket in the folder for temporary files, which may be full.
    finally:
        signal.signal(signal.SIGINT, handler)


class Pool(Protocol):
    """Calls functions with tasks somewhere. A context manager."""

    def __enter__(self) -> "Pool": ...

    def __exit__(self, *_: object) -> None: ...

    def map(
        self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], here: bool = False
    ) -> Iterator[tuple[int, Any]]:
        """Calls `function(*task)` for each task; see `WorkerPool.map`."""


class WorkerPool:
    """Processes that call functions. A context manager: at its end, no process is left."""

    def __init__(self, workers: int) -> None:
        """Starts nothing yet. With one worker, everything runs in this process."""
        self._count = workers
        self._processes: dict[connection.Connection, BaseProcess] = {}

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes, also in the middle of a call."""
        for process in self._processes.values():
            process.terminate()
        for pipe, process in self._processes.items():
            process.join()
            pipe.close()
        self._processes = {}

    def map(
        self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], here: bool = False
    ) -> Iterator[tuple[int, Any]]:
        """Calls `function(*task)` for each task, and yields (index of the task, result) when ready.

        Args:
          function: a function at the top of a module, so that it can be sent to a process.
          tasks: the arguments of each call.
          here: whether no process may start for these calls, because there is too little to do. If none
            has started before, they take place in this process.

        Raises:
          UserError: a process was killed from outside.
          Exception: whatever the function raises. The calls of the other processes are given up.
        """
        if (here and not self._processes) or self._count == 1 or len(tasks) < 2:
            for index, task in enumerate(tasks):
                yield index, function(*task)
            return
        if not here:
            self._start(min(self._count, len(tasks)))
        waiting = iter(range(len(tasks)))
        calls: dict[connection.Connection, int] = {}
        try:
            for pipe in self._processes:
                _send_next(pipe, function, tasks, waiting, calls)
            while calls:
                for ready in connection.wait(list(calls)):
                    pipe = cast(connection.Connection, ready)
                    index, result = calls.pop(pipe), self._receive(pipe)
                    _send_next(pipe, function, tasks, waiting, calls)
                    yield index, result
        finally:
            if calls:
                self.close()

    def _start(self, count: int) -> None:
        """Starts processes until there are `count`."""
        while len(self._processes) < count:
            own_end, other_end = _context.Pipe()
            process = _context.Process(target=_serve, args=(other_end,), daemon=True)
            process.start()
            other_end.close()
            self._processes[own_end] = process

    def _receive(self, pipe: connection.Connection) -> Any:
        """Returns the result of a call. Raises as `map` does."""
        try:
            is_result, answer = pipe.recv()
        except (EOFError, ConnectionResetError):
            process = self._processes[pipe]
            process.join()
            code = process.exitcode or 0
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise UserError(
                f"a worker process was ended from outside ({how}), perhaps for lack of memory. Give "
                "fewer --workers; the same command goes on."
            ) from None
        if not is_result:
            raise answer
        return answer


def _send_next(
    pipe: connection.Connection,
    function: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    waiting: Iterator[int],
    calls: dict[connection.Connection, int],
) -> None:
    """Gives the next task, if there is any, to the process at the other end of a pipe."""
    for index in waiting:
        pipe.send((function, tasks[index]))
        calls[pipe] = index
        return


def _serve(pipe: connection.Connection) -> None:
    """Answers calls until the other end of the pipe is closed. Runs in a worker process."""
    # Ctrl-C reaches all processes of a terminal. The main process decides and ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        try:
            function, task = pipe.recv()
        except EOFError:
            return
        try:
            answer = (True, function(*task))
        except Exception as error:  # noqa: BLE001, the main process raises it
            answer = (False, portable(error))
        try:
            pipe.send(answer)
        except (BrokenPipeError, ConnectionResetError):
            return


def portable(error: Exception) -> Exception:
    """Returns an error that can be sent to another process. The traceback is in its notes."""
    where = traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001, an exception may have any constructor
        return RuntimeError(f"{type(error).__name__}: {error}\n{where}")
    if not isinstance(error, UserError | OSError | MemoryError):
        error.add_note(f"In a worker process:\n{where}")
    return error
