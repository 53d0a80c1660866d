"""Waits for long work in a library, and hears signals meanwhile.

Python runs the handler of a signal in the main thread, between two of its own instructions. A program
that compiles is in XLA for minutes, and would hear Ctrl-C only afterwards. So another thread works, and
the main thread waits: while it waits, it hears signals.
"""

import contextvars
import threading
from collections.abc import Callable
from concurrent import futures
from typing import TypeVar

Result = TypeVar("Result")

_working: list[threading.Thread] = []


def wait_for(work: Callable[[], Result], meanwhile: Callable[[], object] | None = None) -> Result:
    """Calls a function in another thread, and waits for it. Off the main thread it only calls it.

    Args:
      meanwhile: another function, which this thread calls first; off the main thread, after the work.

    If `meanwhile` fails, this raises its error after the work. The interpreter may shut down then, and it
    crashes if a thread of a library still works. If the user ends the wait with a signal, this raises
    the error of the handler at once. The work then goes on until the process ends, and nobody gets its
    result.

    Raises:
      what a function or the handler of a signal raises.
    """
    meanwhile = meanwhile or (lambda: None)
    if threading.current_thread() is not threading.main_thread():
        result = work()
        meanwhile()
        return result
    future: futures.Future[Result] = futures.Future()
    context = contextvars.copy_context()

    def do_it() -> None:
        try:
            future.set_result(context.run(work))
        except BaseException as error:  # noqa: BLE001, the main thread raises it
            future.set_exception(error)

    # A thread that is no daemon would keep the process alive.
    thread = threading.Thread(target=do_it, daemon=True)
    _working.append(thread)
    thread.start()
    try:
        meanwhile()
    except Exception:
        futures.wait([future])
        thread.join()
        raise
    futures.wait([future])
    thread.join()
    return future.result()


def work_goes_on() -> bool:
    """Returns whether a thread still works for a wait that a signal has ended.

    The interpreter must not be shut down then, because the library may crash.
    """
    return any(thread.is_alive() for thread in _working)
