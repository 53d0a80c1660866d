import pytest

from gshard_nmt.inspection.tables import (
    BYTES,
    COUNT,
    MILLISECONDS,
    SHARE,
    Column,
    Table,
    common_unit,
    share,
    side_by_side,
    text,
)

TABLE = Table(
    "Memory",
    "About it.",
    [Column("category"), Column("size", BYTES), Column("share", SHARE)],
    [["weights", 2**20, 0.25], ["batch", 3 * 2**20, None]],
    [["peak", 2**22, ""]],
)


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        (1536, BYTES, "1.50 KiB"),
        (12345, COUNT, "12,345"),
        (0.25, SHARE, "25.0%"),
        (1.5, MILLISECONDS, "1,500.00 ms"),
        (None, BYTES, "-"),
        ("words", BYTES, "words"),
    ],
)
def test_a_cell_in_a_terminal_has_its_own_unit(value, kind, words):
    assert text(value, kind) == words


def test_the_texts_are_those_of_all_rows_and_totals():
    assert TABLE.texts() == [
        ("weights", "1.00 MiB", "25.0%"),
        ("batch", "3.00 MiB", "-"),
        ("peak", "4.00 MiB", ""),
    ]


def test_a_column_has_the_unit_of_its_largest_value():
    assert common_unit([10, 2**20, None, "words"], BYTES)[0] == "MiB"
    assert common_unit([2**20 - 1], BYTES)[0] == "KiB"
    assert common_unit([], BYTES)[0] == "B"


def test_columns_are_selected_by_name():
    selected = TABLE.select(["share", "category"])
    assert [column.name for column in selected.columns] == ["share", "category"]
    assert selected.rows == [[0.25, "weights"], [None, "batch"]]
    assert selected.totals == [["", "peak"]]


def test_tables_of_several_topologies_share_their_rows():
    other = Table(TABLE.title, "", TABLE.columns, [["new", 7, 0.5], ["batch", 5, 0.1]], [])
    joined = side_by_side({"v3:2x2": TABLE, "v3:8x8": other})
    assert [(column.name, column.group) for column in joined.columns] == [
        ("category", ""),
        *(("size", "v3:2x2"), ("share", "v3:2x2")),
        *(("size", "v3:8x8"), ("share", "v3:8x8")),
    ]
    assert joined.rows == [
        ["weights", 2**20, 0.25, "", ""],
        ["batch", 3 * 2**20, None, 5, 0.1],
        ["new", "", "", 7, 0.5],
    ]
    assert joined.totals == [["peak", 2**22, "", "", ""]]


def test_a_share_of_nothing_is_unknown():
    assert share(1, 4) == 0.25
    assert share(1, 0) is None
