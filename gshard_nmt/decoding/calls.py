"""Calls that process 0 makes in all processes, so that they run a program together.

Process 0 reads the input and writes the output. Each of its calls goes to the other processes first, as
JSON. They make the same call with an object of their own, until process 0 tells them to end.
"""

import contextlib
import functools
import json
from collections.abc import Iterator
from typing import Any, TypeVar, cast

from gshard_nmt.spmd.processes import Processes

Target = TypeVar("Target")


def leading(target: Target, processes: Processes) -> Target:
    """Returns the object for process 0: a call of a method is made in all processes.

    The arguments of its methods must be values that JSON can write. Paths become strings.

    Args:
      target: the object of process 0. The other processes give theirs to `follow`.
      processes: the processes. If there is only one, the result is `target` itself.
    """
    return target if processes.count == 1 else cast(Target, _Leader(target, processes))


def follow(target: object, processes: Processes) -> None:
    """Makes the calls of process 0 with an object of this process, until process 0 ends the calls."""
    while True:
        call = json.loads(processes.broadcast())
        if call is None:
            return
        name, arguments, options = call
        getattr(target, name)(*arguments, **options)


@contextlib.contextmanager
def ending(processes: Processes) -> Iterator[None]:
    """Ends the calls after the block in process 0, so that the other processes leave `follow`.

    If an error leaves the block, it tells them nothing: their supervisors end them.
    """
    yield
    if processes.count > 1:
        processes.broadcast(json.dumps(None).encode())


class _Leader:
    """An object whose methods are called in all processes. Other attributes are those of the target."""

    def __init__(self, target: object, processes: Processes) -> None:
        self._target, self._processes = target, processes

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._target, name)
        return functools.partial(self._call, name) if callable(attribute) else attribute

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        call = json.dumps([name, arguments, options], default=str)
        self._processes.broadcast(call.encode())
        return getattr(self._target, name)(*arguments, **options)
