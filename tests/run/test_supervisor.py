"""However a worker ends, all supervisors of the run end with its reason and a fitting exit code."""

import signal
import subprocess
import sys
import threading

import pytest

from gshard_nmt.run.peers import News, Peers
from gshard_nmt.run.supervisor import (
    _GRACE_SECONDS,
    Outcome,
    WorkerEnd,
    _Watch,
    lost_peers,
    supervise,
)
from gshard_nmt.spmd.processes import Job, Processes
from tests.run.supervised import coordinator, ends, meet, supervised

__all__ = ["coordinator", "supervised"]

ENDLESS = "time.sleep(60)"
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
SECOND_DEATH = (
    "It is the second death without a new checkpoint, so another start would probably end in the "
    "same way. Look for the cause in the output and in the kernel's log (dmesg), then start all "
    "processes again."
)
AGAIN = (
    "Start all processes again with the same commands; the run resumes from its last checkpoint.\n"
)

UNHEALTHY = (
    "F1121 client.h:80] Terminating process ... UNAVAILABLE: The following tasks are unhealthy "
    "(stopped sending heartbeats):\n1\n3\nThe tasks have crashed. Check the task logs\n"
)


@pytest.mark.parametrize(
    ("messages", "index", "lost"),
    [
        (UNHEALTHY, 0, [1, 3]),
        ("Status: UNAVAILABLE: Failed to send RPC to coordination service. Either", 2, [0]),
        ("RPC: /xla.coordination.CoordinationService/RegisterTask", 1, [0]),
        ("RPC: /xla.coordination.CoordinationService/RegisterTask", 0, [1, 2, 3]),
        ("DEADLINE_EXCEEDED\n\nRPC: /xla.coordination.CoordinationService/Heartbeat", 3, [0]),
        ("Segmentation fault", 1, []),
    ],
)
def test_the_runtimes_last_messages_name_the_lost_processes(messages, index, lost):
    assert lost_peers(messages, Processes("h:1", 4, index)) == lost


def test_workers_that_finish_end_their_supervisors_with_0(supervised):
    torn = "1 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1"
    noise = f"print('[Gloo] Rank 0 is connected'); print({torn!r})"
    printing = f"print('step 1', file=sys.stderr); {noise}"
    assert supervised.run(printing, "") == [(0, "step 1\n"), (0, "")]


def test_a_killed_worker_ends_all_with_75_and_a_second_death_with_2(supervised):
    message = f"gshard-train: process 1 of 2 was ended by SIGKILL. {AGAIN}"
    assert supervised.run(ENDLESS, KILLED) == [(75, message)] * 2
    message = f"gshard-train: process 0 of 2 was ended by SIGSEGV. {SECOND_DEATH}\n"
    crashing = "os.kill(os.getpid(), signal.SIGSEGV)"
    assert supervised.run(crashing, ENDLESS) == [(2, message)] * 2


def test_a_worker_that_ran_out_of_memory_ends_all_with_2(supervised):
    """The kernel counts in the memory.events of the cgroup, then kills."""
    killed_by_the_kernel = f"(folder / 'memory.events').write_text('oom_kill 4\\n'); {KILLED}"
    message = (
        "gshard-train: process 1 of 2 was ended by SIGKILL: the kernel killed it because the memory of "
        "its machine or container ran out. Use a smaller batch (Data.rows) or model, or more memory.\n"
    )
    assert supervised.run(ENDLESS, killed_by_the_kernel) == [(2, message)] * 2


NAME = "process 1 of 4"
REASON = News(2, "ended", 2, "process 2 of 4 ended with exit code 2: the disk is full.")


@pytest.mark.parametrize(
    ("end", "news", "is_second", "outcome"),
    [
        (WorkerEnd(0), [], False, Outcome(0)),
        (
            WorkerEnd(2, "Data.rows is 3;\n  it must be even."),
            [],
            False,
            Outcome(2, "", f"{NAME} ended with exit code 2: Data.rows is 3;\n  it must be even."),
        ),
        (WorkerEnd(1), [], False, Outcome(1, "", f"{NAME} ended with exit code 1.")),
        (
            WorkerEnd(2, "mine"),
            [REASON],
            False,
            Outcome(2, "", f"{NAME} ended with exit code 2: mine"),
        ),
        (WorkerEnd(-signal.SIGKILL), [REASON], False, Outcome(2, REASON.message)),
        (WorkerEnd(75, "a collective failed."), [REASON], False, Outcome(2, REASON.message)),
        (WorkerEnd(75, "a collective failed."), [], False, Outcome(75, "", "a collective failed.")),
        (WorkerEnd(-6, "", UNHEALTHY), [REASON], False, Outcome(2, REASON.message)),
        (
            WorkerEnd(-6, "", UNHEALTHY),
            [],
            False,
            Outcome(
                75,
                "process 3 of 4 died or stopped answering; its own output gives the reason. "
                + AGAIN.strip(),
            ),
        ),
        (WorkerEnd(-11), [], False, Outcome(75, f"{NAME} was ended by SIGSEGV. {AGAIN.strip()}")),
        (WorkerEnd(-11), [], True, Outcome(2, f"{NAME} was ended by SIGSEGV. {SECOND_DEATH}")),
        (WorkerEnd(130), [], False, Outcome(130, "", f"{NAME} was interrupted")),
        (
            WorkerEnd(-9),
            [News(2, "ended", 130, "process 2 of 4 was interrupted")],
            False,
            Outcome(130, "process 2 of 4 was interrupted"),
        ),
        (
            WorkerEnd(130),
            [News(3, "taken")],
            False,
            Outcome(
                75,
                "process 3 of 4 got SIGTERM, as if its machine were taken away. The run is saved; start "
                "all processes again with the same commands to go on.",
            ),
        ),
    ],
)
def test_the_outcome_follows_from_the_end_of_the_worker_and_the_news(end, news, is_second, outcome):
    processes = Processes("h:1", 4, 1)
    watch = _Watch(processes, Peers(processes, {}, "attempt"), None)
    for item in news:
        watch._hear(item)
    # Process 1 itself has stopped its heartbeats too, but it is not the one that is lost.
    assert watch.judge(end, False, lambda: is_second) == outcome


DECODING = Processes("h:1", 4, 1, job=Job("gshard-decode", trains=False))


@pytest.mark.parametrize(
    ("end", "sent", "outcome"),
    [
        (
            WorkerEnd(-signal.SIGKILL),
            None,
            Outcome(
                75,
                f"{NAME} was ended by SIGKILL. Start all processes again with the same commands.",
            ),
        ),
        (WorkerEnd(130), signal.SIGINT, Outcome(130, "", f"{NAME} was interrupted")),
        (
            WorkerEnd(141),
            None,
            Outcome(141, "", f"{NAME} ended, because nobody reads its output any more"),
        ),
        # Before the worker handles signals, SIGTERM kills it.
        (WorkerEnd(-signal.SIGTERM), signal.SIGHUP, Outcome(130, "", f"{NAME} was interrupted")),
        (
            WorkerEnd(-signal.SIGTERM),
            signal.SIGTERM,
            Outcome(
                75,
                f"{NAME} got SIGTERM, as if its machine were taken away. Start all processes again with "
                "the same commands.",
            ),
        ),
    ],
)
def test_a_worker_that_decodes_has_nothing_to_save(end, sent, outcome):
    class Worker:
        terminated = False

        def terminate(self):
            self.terminated = True

    worker = Worker()
    watch = _Watch(DECODING, Peers(DECODING, {}, "attempt"), worker)
    if sent is not None:
        watch._pass_on(sent)
    assert worker.terminated == (sent is not None)
    assert watch.judge(end, False, lambda: False) == outcome
    # The others end at once too: nothing is saved that they would have to save together.
    assert watch._hear(News(2, "ended", 130)) == _GRACE_SECONDS < DECODING.peer_timeout


def test_a_worker_that_hangs_is_named_by_the_runtime_and_killed(supervised):
    """The runtime of process 0 misses heartbeats of process 1 and aborts."""
    report = UNHEALTHY.replace("\n3\n", "\n")
    aborted = f"sys.stderr.write({report!r}); sys.stderr.flush(); os.abort()"
    message = (
        "gshard-train: process 1 of 2 died or stopped answering; its own output gives the reason. "
    )
    stopped = "os.kill(os.getpid(), signal.SIGSTOP)"
    assert supervised.run(aborted, stopped) == [(75, message + AGAIN)] * 2


def test_the_reason_is_told_rather_than_its_consequence(supervised):
    """The coordinator's death makes the runtime abort the others before they hear of the reason."""
    report = (
        "F1121 client.h:80] Terminating process ... Failed to send RPC to coordination service.\n"
    )
    aborted = f"sys.stderr.write({report!r}); (folder / 'aborted').touch(); os.abort()"
    failing = (
        "while not (folder / 'aborted').exists(): time.sleep(0.02)\n"
        "print('gshard-train: the disk is full.', flush=True); os._exit(2)"
    )
    zero, one = supervised.run(failing, aborted)
    assert zero == (2, "gshard-train: the disk is full.\n")
    assert one == (
        2,
        "gshard-train: process 0 of 2 ended with exit code 2: the disk is full.\n",
    )


STOPPING = """
def stop(number, frame):
    print(signal.Signals(number).name, "came", flush=True)
    (folder / "stop").touch()
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
print("ready", flush=True)
while not (folder / "stop").exists():
    time.sleep(0.02)
os._exit(130)
"""
"""A worker that stops together with all others once one of them gets a signal."""


@pytest.mark.parametrize(
    ("sent", "passed_on", "code"),
    [
        (signal.SIGTERM, "SIGTERM", 75),
        (signal.SIGHUP, "SIGINT", 130),
    ],
)
def test_a_signal_to_one_process_stops_all(supervised, sent, passed_on, code):
    """SIGTERM comes if a machine is taken away; then another start goes on."""
    processes = supervised.start(STOPPING, STOPPING)
    for process in processes:
        assert process.stderr.readline() == "ready\n"
    processes[1].send_signal(sent)
    (zero, printed), (one, _) = ends(processes)
    assert (zero, one) == (code, code)
    assert printed == (
        "gshard-train: process 1 of 2 got SIGTERM, as if its machine were taken away. The run is saved; "
        "start all processes again with the same commands to go on.\n"
        if code == 75
        else ""
    )


def test_a_run_that_was_started_with_nohup_ignores_a_lost_connection(supervised):
    processes = supervised.start(STOPPING, STOPPING, ignoring=["SIGHUP"])
    for process in processes:
        assert process.stderr.readline() == "ready\n"
    processes[1].send_signal(signal.SIGHUP)
    processes[1].send_signal(signal.SIGINT)
    (_, _), (code, printed) = ends(processes)
    assert (code, printed) == (130, "SIGINT came\n")


def test_a_supervisor_that_vanishes_is_named(supervised):
    watched = "print('ready', flush=True); os.read(int(os.environ['GSHARD_NMT_WATCHED']), 1)"
    processes = supervised.start(ENDLESS, watched)
    assert processes[1].stderr.readline() == "ready\n"
    processes[1].kill()
    (code, printed), _ = ends(processes)
    assert code == 75
    assert printed.startswith("gshard-train: process 1 of 2 died or stopped answering; its own ")


def test_a_worker_ends_when_its_supervisor_is_killed(coordinator, tmp_path):
    """The worker prints its process ID, then sleeps."""
    watched = (
        "import os, sys, time; from gshard_nmt.run import supervisor; assert supervisor.is_watched(); "
        "print(os.getpid(), file=sys.stderr, flush=True); time.sleep(60)"
    )
    supervising = (
        "import pathlib, sys; from gshard_nmt.run.supervisor import supervise; "
        "from gshard_nmt.spmd.processes import Processes; "
        f"supervise(Processes({coordinator!r}, 2, 0, 10), [sys.executable, '-c', {watched!r}], "
        f"pathlib.Path({str(tmp_path)!r}), {{}})"
    )
    other = threading.Thread(target=meet, args=[[Processes(coordinator, 2, 1, 10)]])
    other.start()
    with subprocess.Popen(
        [sys.executable, "-c", supervising], stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stderr is not None
        line = parent.stderr.readline()
        assert int(line) != parent.pid
        parent.kill()
        # The pipe ends only when the last process that can write to it has ended.
        assert "Traceback" not in parent.stderr.read()
    other.join()


def test_an_exception_in_the_supervisor_ends_the_worker(coordinator, tmp_path, monkeypatch):
    def fail(watch: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("gshard_nmt.run.supervisor._Watch.follow", fail)
    other = threading.Thread(target=meet, args=[[Processes(coordinator, 2, 1, 10)]])
    other.start()
    sleeping = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    with pytest.raises(RuntimeError, match="a bug"):
        supervise(Processes(coordinator, 2, 0, 10), sleeping, tmp_path, {})
    other.join()


TWO_STREAMS = (
    "import os, signal, sys; from gshard_nmt.run import supervisor; "
    "from gshard_nmt.spmd.processes import Job; "
    "assert supervisor.is_watched(Job('gshard-decode', trains=False)); "
    "assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN; "
    "sys.stderr.write('gshard-decode: a note\\n[Gloo] noise\\n'); print(sys.stdin.read().upper())"
)


def test_a_worker_that_decodes_has_stdin_and_stdout_of_its_supervisor(coordinator, tmp_path):
    supervising = (
        "import pathlib, sys; from gshard_nmt.run.supervisor import supervise; "
        "from gshard_nmt.spmd.processes import Job, Processes; "
        f"processes = Processes({coordinator!r}, 2, 0, 10, Job('gshard-decode', trains=False)); "
        f"sys.exit(supervise(processes, [sys.executable, '-c', {TWO_STREAMS!r}], "
        f"pathlib.Path({str(tmp_path)!r}), {{}}))"
    )
    other = threading.Thread(target=meet, args=[[Processes(coordinator, 2, 1, 10)]])
    other.start()
    ended = subprocess.run(
        [sys.executable, "-c", supervising],
        input="un\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    other.join()
    assert (ended.returncode, ended.stdout) == (0, "UN\n\n")
    assert ended.stderr == "gshard-decode: a note\n"
