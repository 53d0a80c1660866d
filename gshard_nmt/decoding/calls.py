"""Calls that process 0 makes in all processes, so that they run a program together.

Process 0 reads the input and writes the output. Each of its calls goes to the other processes first, as
JSON. They make the same call with an object of their own, until process 0 tells them to end.
"""

import contextlib
import functools
import json
from collections.abc import Collection, Iterator
from typing import Any, TypeVar, cast

from gshard_nmt.spmd.processes import Processes

Target = TypeVar("Target")


def leading(target: Target, processes: Processes, methods: Collection[str]) -> Target:
    """Returns the object for process 0: calls of some methods are made in all processes.

    Args:
      target: the object of process 0. The other processes give theirs to `follow`.
      processes: the processes. If there is only one, the result is `target` itself.
      methods: the names of these methods. Their arguments must be values that JSON can write; paths
        become strings.
    """
    return target if processes.count == 1 else cast(Target, _Leader(target, processes, methods))


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
    """An object of which some methods are called in all processes. The rest is that of the target."""

    def __init__(self, target: object, processes: Processes, methods: Collection[str]) -> None:
        self._target, self._processes, self._methods = target, processes, methods

    def __getattr__(self, name: str) -> Any:
        if name in self._methods:
            return functools.partial(self._call, name)
        return getattr(self._target, name)

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        call = json.dumps([name, arguments, options], default=str)
        self._processes.broadcast(call.encode())
        return getattr(self._target, name)(*arguments, **options)
