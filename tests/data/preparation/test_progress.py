"""Progress on stderr: numbers, speed, time left, and which machine is missing."""

import io

from rich.console import Console

from gshard_nmt.data.preparation.progress import StageProgress


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def make(is_terminal=False):
    stream, clock = io.StringIO(), Clock()
    console = Console(file=stream, force_terminal=is_terminal, width=100, highlight=False)
    return StageProgress(console, clock), stream, clock


def test_a_line_now_and_then_has_the_speed_and_the_time_left():
    progress, stream, clock = make()
    progress.begin("cleaning, pairs", 4000, 1000)
    progress.advance(100)
    assert stream.getvalue() == ""
    clock.now += 40
    progress.advance(900)
    assert stream.getvalue() == "cleaning: 2,000 of 4,000 pairs, 25 pairs/s, 80 s left\n"
    clock.now += 60
    progress.advance(2000)
    progress.end()
    assert stream.getvalue().endswith("cleaning: done in 2 min, 30 pairs/s\n")


def test_bytes_and_long_times_are_readable():
    progress, stream, clock = make()
    progress.begin("reading, bytes", 400_000_000_000, 0)
    clock.now += 100
    progress.advance(1_000_000_000)
    assert stream.getvalue() == (
        "reading: 1,000.0 MB of 400,000.0 MB, 10.0 MB/s, 11 h 5 min left\n"
    )
