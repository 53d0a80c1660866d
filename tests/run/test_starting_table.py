"""The table of what each array begins as, as text."""

from gshard_nmt.run.starting_table import Row, as_text, summary

ROWS = [
    Row("encoder/wi", (2, 16), "copied", "kept"),
    Row("encoder/wo", (16, 2), "copied: moe_0[0], moe_0[0] times 0", "frozen"),
    Row("gate", (16, 4), "new", "new"),
    Row("step", (), "new"),
    Row("bias", (4,), "left out: all of it"),
]


def test_the_rows_are_aligned():
    assert as_text(ROWS).splitlines() == [
        "array       shape   moments  begins as",
        "encoder/wi  2x16    kept     copied",
        "encoder/wo  16x2    frozen   copied: moe_0[0], moe_0[0] times 0",
        "gate        16x4    new      new",
        "step        scalar           new",
        "bias        4                left out: all of it",
    ]


def test_only_weights_are_counted_as_copied_changed_or_new():
    assert summary(ROWS) == (
        "of 3 weights, 1 copied, 1 changed, 1 new; old weights left out, as a whole or in part: 1"
    )
