"""Processes agree on the checkpoints of a run: which there are, and which of them can be used."""

import hashlib
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from gshard_nmt.reading import UnreadableError, UnsoundError
from gshard_nmt.run.checkpoint.manifest import ForeignError
from gshard_nmt.spmd.processes import Processes

Result = TypeVar("Result")

_REASON_BYTES = 240
"""What processes tell each other about a checkpoint that they cannot read has this length."""

_PROBLEMS: tuple[type[UnsoundError], ...] = (UnreadableError, UnsoundError, ForeignError)


def numbers_of_first(processes: Processes, decide: Callable[[], list[int]]) -> list[int]:
    """Calls a function in process 0, and returns its numbers in every process."""
    numbers = decide() if processes.is_first else []
    if processes.count == 1:
        return numbers
    counts = processes.gather(np.array([len(numbers)]))[:, 0]
    padded = np.zeros(counts.max(), np.int64)
    padded[: len(numbers)] = numbers
    return processes.gather(padded)[0, : counts[0]].tolist()


def is_same(processes: Processes, text: str) -> bool:
    """Returns in every process whether all of them have the same text."""
    if processes.count == 1:
        return True
    digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.int64)
    answers = processes.gather(digest)
    return bool((answers == answers[0]).all())


def together(processes: Processes, read: Callable[[int], Result], step: int) -> Result:
    """Calls a function in every process; raises UnsoundError in all of them if it does in one.

    If the processes have different problems, all raise an error of the same class, the last of
    `_PROBLEMS`: so no process calls a checkpoint damaged if another one says that it is foreign.
    """
    problem: UnsoundError | None = None
    try:
        result = read(step)
    except UnsoundError as error:
        problem = error
    code = 0 if problem is None else 1 + _PROBLEMS.index(type(problem))
    advice = problem.advice if isinstance(problem, UnreadableError) else ""
    text = f"{advice}\n{problem}" if problem else ""
    reason = text.encode()[:_REASON_BYTES].ljust(_REASON_BYTES, b"\0")
    words = np.concatenate([[code], np.frombuffer(reason, np.int64)])
    answers = processes.gather(words)
    codes = answers[:, 0]
    if problem is not None and code == codes.max():
        raise problem
    if codes.any():
        process = int(codes.argmax())
        said = answers[process, 1:].tobytes().rstrip(b"\0").decode(errors="replace")
        advice, _, text = said.partition("\n")
        kind, message = _PROBLEMS[codes.max() - 1], f"process {process} cannot read it: {text}"
        raise UnreadableError(message, advice) if kind is UnreadableError else kind(message)
    return result
