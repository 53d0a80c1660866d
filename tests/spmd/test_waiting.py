"""Long work in a library: signals are heard meanwhile."""

import contextvars
import signal
import threading
import time

import pytest

from gshard_nmt.spmd import waiting
from gshard_nmt.spmd.waiting import wait_for, work_goes_on

NAME = contextvars.ContextVar("NAME", default="")


class Stop(Exception):
    """What the handler of a signal raises."""


@pytest.fixture
def heard(monkeypatch):
    """Handles SIGUSR1 with a function of the test; the list has the signals that it has heard."""
    monkeypatch.setattr(waiting, "_working", [])
    numbers: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGUSR1, before)


def signal_soon() -> None:
    """Sends SIGUSR1 to the main thread when it waits."""
    main = threading.main_thread().ident
    threading.Timer(0.05, lambda: signal.pthread_kill(main, signal.SIGUSR1)).start()


def test_the_result_comes_from_another_thread_with_the_context_of_the_caller():
    NAME.set("the caller")
    name, thread = wait_for(lambda: (NAME.get(), threading.current_thread()))
    assert name == "the caller"
    assert thread not in (threading.main_thread(), *threading.enumerate())
    assert not work_goes_on()


def test_an_error_meanwhile_is_raised_after_the_work():
    """A library that still works crashes when the interpreter shuts down."""
    failed, ended = threading.Event(), threading.Event()

    def work():
        assert failed.wait(10)
        ended.set()

    def fail():
        failed.set()
        raise ValueError("too large")

    with pytest.raises(ValueError, match="too large"):
        wait_for(work, fail)
    assert ended.is_set()
    assert not work_goes_on()


def test_a_handler_that_raises_ends_the_wait_and_not_the_work(heard):
    def stop(*_):
        raise Stop

    signal.signal(signal.SIGUSR1, stop)
    may_end, ended = threading.Event(), threading.Event()

    def work():
        signal_soon()
        may_end.wait()
        ended.set()

    with pytest.raises(Stop):
        wait_for(work)
    assert work_goes_on()
    may_end.set()
    assert ended.wait(30)
    waiting._working[0].join(30)
    assert not work_goes_on()


def test_a_handler_that_only_takes_note_ends_no_wait(heard):
    def work():
        signal_soon()
        while not heard:
            time.sleep(0.01)
        return "done"

    assert wait_for(work) == "done"
    assert heard == [signal.SIGUSR1]


def test_off_the_main_thread_the_work_is_only_called():
    threads = []

    def outer():
        wait_for(lambda: threads.append(threading.current_thread()))

    thread = threading.Thread(target=outer)
    thread.start()
    thread.join()
    assert threads == [thread]
