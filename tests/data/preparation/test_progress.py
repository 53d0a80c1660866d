"""Progress on stderr: numbers, speed and time left."""

import io

import pytest
from rich.console import Console

from gshard_nmt.data.preparation.progress import stage


@pytest.mark.parametrize(
    ("about", "total", "done", "steps", "lines"),
    [
        (
            "cleaning, pairs",
            4000,
            1000,
            [(0, 100), (40, 900), (60, 2000)],
            [
                "cleaning: 2,000 of 4,000 pairs, 25 pairs/s, 80 s left",
                "cleaning: 4,000 of 4,000 pairs, 30 pairs/s, 0 s left",
                "cleaning: done in 2 min, 30 pairs/s",
            ],
        ),
        (
            "reading, bytes",
            400_000_000_000,
            0,
            [(100, 1_000_000_000)],
            [
                "reading: 1,000.0 MB of 400,000.0 MB, 10.0 MB/s, 11 h 5 min left",
                "reading: done in 2 min, 10.0 MB/s",
            ],
        ),
        ("cleaning, pairs", 10, 0, [(1, 10)], []),
    ],
)
def test_a_line_now_and_then_has_the_speed_and_the_time_left(about, total, done, steps, lines):
    stream, now = io.StringIO(), [100.0]
    console = Console(file=stream, width=100, highlight=False)
    with stage(console, about, total, done, lambda: now[0]) as advance:
        for seconds, rows in steps:
            now[0] += seconds
            advance(rows)
    assert stream.getvalue().splitlines() == lines
