"""Supervises one of several processes that train or decode together, and says why they end.

If a process of the run is lost, jax's runtime aborts all others and prints many messages. A process that
is killed prints nothing. So each gshard-train is a supervisor: it starts a worker as a child process and
watches it. gshard-decode and gshard-eval do the same. The supervisors tell each other how their workers
end. If one worker fails, all end with the same reason, and with an exit code that says whether a restart
can help.
"""

import collections
import contextlib
import dataclasses
import math
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.run.deaths import Cgroups, is_second
from gshard_nmt.run.hangup import leave_terminal, stop_signals
from gshard_nmt.run.peers import News, Peers, in_words, lost
from gshard_nmt.run.rendezvous import Identity, rendezvous
from gshard_nmt.spmd.processes import TRAINING, Job, Processes

WATCHED = "GSHARD_NMT_WATCHED"
"""Environment variable of a worker: a file descriptor of a pipe that closes when its supervisor ends."""

_GRACE_SECONDS = 2.0
"""Seconds for a worker to end by itself, after another worker has failed."""
_NEWS_SECONDS = 3.0
"""Seconds to wait for the reason, after the runtime has ended a worker because of a lost process."""
_KEPT_LINES = 400
"""Lines of the runtime's last messages that are kept, in case they have to be shown."""

_NOISE = re.compile(
    r"\[Gloo\] |.*connected peer ranks is : \d+$|[WI]\d{4} .*(preemption|coordination)"
)
"""Messages of the runtime that do not help a user. Two threads may write one of Gloo's at once, so that
the beginning of a line stands in another one."""

_FATAL = re.compile(r"[EF]\d{4} .*(coordination_service|client\.h|preemption_sync)")
"""The first message of the runtime when a process is lost."""

_UNHEALTHY = re.compile(r"unhealthy \(stopped sending heartbeats\):\n((?:\d+\n)+)")
_COORDINATOR_GONE = re.compile(
    r"Failed to send RPC to coordination service"
    r"|RPC: /xla.coordination.CoordinationService/(RegisterTask|Heartbeat)"
)
_INTERRUPTED = 130
_BROKEN_PIPE = 141
"""The exit code of a worker whose stdout nobody reads any more, as in `| head`."""


def is_watched(job: Job = TRAINING) -> bool:
    """Returns whether this process is the worker of a supervisor.

    If so, this process ends when the supervisor ends. The supervisor passes on the signals that it gets.
    So the worker ignores the signals that a terminal sends to both: SIGHUP and, unless it trains, SIGINT.
    """
    if WATCHED not in os.environ:
        return False
    pipe = int(os.environ.pop(WATCHED))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if not job.trains:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait_for_parent() -> None:
        os.read(pipe, 1)
        os._exit(75)

    threading.Thread(target=wait_for_parent, daemon=True, name="parent").start()
    return True


def supervise(
    processes: Processes,
    command: Sequence[str],
    workdir: Path,
    identity: Identity,
    cgroups: Cgroups | None = None,
) -> int:
    """Waits for all processes of the run, runs a command as the worker, and returns its exit code.

    Args:
      processes: the processes of the run.
      command: the command line of the worker.
      workdir: the run folder. Deaths of workers that train are counted in it.
      identity: what all processes must have in common.
      cgroups: the cgroups in which the kernel counts the processes that it kills if memory runs out;
        by default the cgroups of this process.

    Returns:
      0 or 130: the worker has finished, or was interrupted and has saved.
      Another code: the worker has printed the reason.

    Raises:
      TryAgain: a process did not connect, was lost or killed, or its machine was taken away.
      UserError: two processes have different settings, data or packages, or one of them ended for a
        reason that a restart does not cure.
      KeyboardInterrupt: another process was interrupted before all could save together.
    """
    cgroups = cgroups or Cgroups()
    with rendezvous(processes, identity) as peers:
        kills_before = cgroups.oom_kills()
        with _worker(command, processes.job) as worker:
            watch = _Watch(processes, peers, worker)
            end = watch.follow()
        ran_out = cgroups.oom_kills() > kills_before
        counts_deaths = processes.job.trains
        outcome = watch.judge(
            end, ran_out, lambda: counts_deaths and is_second(workdir, peers.attempt)
        )
        code = outcome.code if outcome.code in (0, 75, _INTERRUPTED) else 2
        if outcome.code == _BROKEN_PIPE:
            code = _INTERRUPTED
        peers.tell(
            News(processes.index, "ended", code, outcome.message_to_others or outcome.message)
        )
    if outcome.message:
        raise _EXCEPTIONS[outcome.code](outcome.message)
    return outcome.code


_EXCEPTIONS: dict[int, type[BaseException]] = {
    2: UserError,
    75: TryAgain,
    _INTERRUPTED: KeyboardInterrupt,
}


@dataclasses.dataclass(frozen=True)
class WorkerEnd:
    """How a worker ended."""

    code: int
    """Its exit code; the negative number of a signal if that ended it."""
    own: str = ""
    """The message with which it ended, without the name of the program; "" if it printed none."""
    runtime: str = ""
    """Messages of jax's runtime from the first that reports a lost process; "" if there is none."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a supervisor ends."""

    code: int
    message: str = ""
    """The text that it prints; "" if its worker has printed the reason."""
    message_to_others: str = ""
    """The text that the other supervisors print, if it is another text."""


class _Watch:
    """Watches a worker until it ends, and listens to the other supervisors in the meantime."""

    def __init__(self, processes: Processes, peers: Peers, worker: "subprocess.Popen[str]") -> None:
        self._processes = processes
        self._peers = peers
        self._worker = worker
        # Signal handlers put signals into it. A queue.Queue could deadlock; a SimpleQueue cannot.
        self._events: queue.SimpleQueue[WorkerEnd | News | signal.Signals] = queue.SimpleQueue()
        self._reason: News | None = None
        self._taken: int | None = None
        self._terminated = False
        self._is_killed = False

    def follow(self) -> WorkerEnd:
        """Returns how the worker ends. Kills it if it runs on after another worker has failed."""
        with _passing_to(self._events):
            relay = threading.Thread(target=self._relay, daemon=True, name="relay")
            relay.start()
            self._peers.listen(self._events.put)
            end, deadline = None, math.inf
            while end is None:
                event = self._next_event(deadline)
                if event is None:
                    self._is_killed, deadline = True, math.inf
                    self._worker.kill()
                elif isinstance(event, WorkerEnd):
                    end = event
                elif isinstance(event, News):
                    deadline = min(deadline, time.monotonic() + self._hear(event))
                else:
                    self._pass_on(event)
            relay.join()
            if is_consequence(end):
                self._wait_for_the_reason()
        return end

    def judge(self, end: WorkerEnd, ran_out: bool, is_second_death: Callable[[], bool]) -> Outcome:
        """Returns how the supervisor ends.

        Args:
          end: how the worker ended.
          ran_out: whether the kernel has killed a process because memory ran out.
          is_second_death: records a death of the worker, and returns whether it is the second one
            without a new checkpoint.
        """
        name = in_words([self._processes.index], self._processes)
        again = self._processes.job.start_again
        if end.code == 0:
            return Outcome(0)
        # A worker that gets SIGTERM before it handles signals is killed by it.
        if end.code == _INTERRUPTED or (self._terminated and end.code == -signal.SIGTERM):
            if self._taken is None:
                return Outcome(_INTERRUPTED, message_to_others=f"{name} was interrupted")
            return Outcome(75, _taken_away(self._taken, self._processes))
        if end.code == _BROKEN_PIPE:
            closed = f"{name} ended, because nobody reads its output any more"
            return Outcome(_BROKEN_PIPE, message_to_others=closed)
        if end.code > 0 and end.code != 75:
            words = f"{name} ended with exit code {end.code}"
            return Outcome(
                end.code, message_to_others=f"{words}: {end.own}" if end.own else f"{words}."
            )
        if self._reason:
            return Outcome(self._reason.code, self._reason.message)
        if indices := lost_peers(end.runtime, self._processes):
            return Outcome(75, lost(indices, self._processes))
        if end.runtime:
            _write(end.runtime)
            return Outcome(75, f"jax's runtime has ended {name}, see above. {again}")
        if end.code == 75:
            return Outcome(75, message_to_others=end.own or f"{name} ended. {again}")
        return self._judge_death(name, signal.Signals(-end.code), ran_out, is_second_death)

    def _judge_death(
        self, name: str, number: signal.Signals, ran_out: bool, is_second_death: Callable[[], bool]
    ) -> Outcome:
        death = f"{name} was ended by {number.name}"
        if ran_out and number == signal.SIGKILL:
            rows = "Data.rows" if self._processes.job.trains else "Decode.rows"
            return Outcome(
                2,
                f"{death}: the kernel killed it because the memory of its machine or container ran out. "
                f"Use a smaller batch ({rows}) or model, or more memory.",
            )
        if is_second_death():
            return Outcome(
                2,
                f"{death}. It is the second death without a new checkpoint, so another start would "
                "probably end in the same way. Look for the cause in the output and in the kernel's log "
                "(dmesg), then start all processes again.",
            )
        return Outcome(75, f"{death}. {self._processes.job.start_again}")

    def _relay(self) -> None:
        runtime, own = _relay(self._worker, self._processes.job)
        self._events.put(WorkerEnd(self._worker.wait(), own, runtime))

    def _next_event(self, deadline: float) -> "WorkerEnd | News | signal.Signals | None":
        """Returns the next event, or None if there is none until the deadline."""
        if deadline == math.inf:
            return self._events.get()
        with contextlib.suppress(queue.Empty):
            return self._events.get(timeout=max(deadline - time.monotonic(), 0))
        return None

    def _hear(self, news: News) -> float:
        """Records news, and returns the seconds for which the worker may still run."""
        if news.kind == "taken":
            self._taken = news.process
            return math.inf
        if news.code == 0:
            return math.inf
        self._reason = self._reason or news
        # Interrupted workers that train stop together, after they have saved.
        saves = news.code == _INTERRUPTED and self._processes.job.trains
        return self._processes.peer_timeout if saves else _GRACE_SECONDS

    def _pass_on(self, number: signal.Signals) -> None:
        """Passes a signal on to the worker, which ends, after saving if it trains.

        Then the supervisor ends too.
        """
        if number == signal.SIGTERM:
            self._taken = self._processes.index
            self._peers.tell(News(self._processes.index, "taken"))
        # A worker ignores the signals that a terminal may send to all processes at once.
        if not self._processes.job.trains:
            self._terminated = True
            self._worker.terminate()
        else:
            self._worker.send_signal(signal.SIGINT if number == signal.SIGHUP else number)

    def _wait_for_the_reason(self) -> None:
        deadline = time.monotonic() + _NEWS_SECONDS
        while not self._reason and (event := self._next_event(deadline)):
            if isinstance(event, News):
                self._hear(event)


def is_consequence(end: WorkerEnd) -> bool:
    """Returns whether a worker has ended because another process is lost."""
    return bool(end.runtime) or end.code == 75


def lost_peers(messages: str, processes: Processes) -> list[int]:
    """Returns the numbers of the lost processes that the runtime's last messages name, if any."""
    if match := _UNHEALTHY.search(messages):
        return sorted({int(line) for line in match[1].split()} - {processes.index})
    if _COORDINATOR_GONE.search(messages):
        return processes.others() if processes.is_first else [0]
    return []


def _taken_away(index: int, processes: Processes) -> str:
    got = f"{in_words([index], processes)} got SIGTERM, as if its machine were taken away."
    if not processes.job.trains:
        return f"{got} {processes.job.start_again}"
    return f"{got} The run is saved; start all processes again with the same commands to go on."


@contextlib.contextmanager
def _worker(command: Sequence[str], job: Job) -> Iterator["subprocess.Popen[str]"]:
    """Starts the worker. It ends when this process ends, or if an exception leaves the block.

    A worker that trains has one pipe for all its output. Others have the stdin and stdout of this
    process, and a pipe for stderr.
    """
    worker_end, own_end = os.pipe()
    try:
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE if job.trains else None,
            stderr=subprocess.STDOUT if job.trains else subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, WATCHED: str(worker_end)},
            pass_fds=(worker_end,),
        ) as worker:
            try:
                yield worker
            except BaseException:
                worker.kill()
                raise
    finally:
        os.close(worker_end)
        os.close(own_end)


def _relay(worker: "subprocess.Popen[str]", job: Job) -> tuple[str, str]:
    """Copies the messages of the worker to stderr, until the runtime reports a lost process.

    Returns:
      The messages of the runtime from that report on, and the worker's last message of its own.
    """
    last_lines: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
    own: list[str] = []
    is_fatal = False
    messages = worker.stdout or worker.stderr
    assert messages is not None
    start_of_own = f"{job.program}: "
    for line in messages:
        is_fatal = is_fatal or bool(_FATAL.match(line))
        if is_fatal:
            last_lines.append(line)
        elif not _NOISE.match(line):
            if line.startswith(start_of_own):
                own = [line.removeprefix(start_of_own)]
            elif own and len(own) < _KEPT_LINES:
                own.append(line)
            _write(line)
    return "".join(last_lines), "".join(own).strip()


def _write(text: str) -> None:
    """Writes to stderr. Ignores errors, so that training goes on if stderr is closed."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


@contextlib.contextmanager
def _passing_to(events: "queue.SimpleQueue[WorkerEnd | News | signal.Signals]") -> Iterator[None]:
    """Puts the signals that end a program into a queue, so that the worker can save first."""

    def put(number: int, frame: object) -> None:
        del frame
        if number == signal.SIGHUP:
            leave_terminal()
        events.put(signal.Signals(number))

    previous_handlers = {number: signal.signal(number, put) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
