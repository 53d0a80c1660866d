"""Sizes, counts and times are given in the unit that reads best."""

import pytest

from gshard_nmt.quantities import (
    count_text,
    duration_text,
    flops_text,
    seconds_text,
    short_count,
    size_text,
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (size_text(1536), "1.50 KiB"),
        (size_text(2**30), "1.00 GiB"),
        (size_text(1000), "1,000 B"),
        (flops_text(1.5e12), "1.50 TFLOP"),
        (flops_text(805.3e6), "805.30 MFLOP"),
        (flops_text(0), "0 FLOP"),
        (count_text(619.4e9), "619.4 billion"),
        (count_text(4_292_608), "4.3 million"),
        (short_count(1_250_000), "1.25M"),
        (short_count(2e12), "2.00T"),
        (short_count(999_999), "999,999"),
        (seconds_text(0.0025), "2.50 ms"),
        (seconds_text(1.5), "1.50 s"),
        (duration_text(45), "45 s"),
        (duration_text(700), "12 min"),
        (duration_text(12_000), "3 h 20 min"),
        (duration_text(7170), "2 h 0 min"),
        (duration_text(183_600), "2 days 3 h"),
    ],
)
def test_a_quantity_has_the_unit_that_reads_best(text, words):
    assert text == words
