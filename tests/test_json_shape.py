"""The shape of JSON values: every key is checked, and a problem says where it is."""

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.json_shape import (
    entries,
    fields,
    list_of,
    mapping_of,
    number,
    problem,
    read,
    text,
    truth,
    whole,
)

SHAPE = fields(
    {
        "name": text("[a-z]+", "small letters"),
        "sizes": list_of(whole(1, 9), least=1),
        "files": list_of(entries(text(), whole())),
        "rate": number(),
        "part": number(0, 100),
        "tags": truth(),
        "sums": mapping_of(whole()),
        "inner": fields({"a": whole()}, closed=True),
    },
    {"more": text()},
)
GOOD = {
    "name": "a",
    "sizes": [1, 9],
    "files": [["x", 0]],
    "rate": 0.5,
    "part": 100,
    "tags": False,
    "sums": {"fr": 7},
    "inner": {"a": 1},
}


def test_a_value_of_the_shape_has_no_problem():
    assert problem(SHAPE, GOOD) is None
    assert problem(SHAPE, GOOD | {"more": "", "other keys": None, "rate": 1}) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "A"}, 'name is "A"; it must be small letters'),
        ({"name": None}, "name is null; it must be small letters"),
        ({"sizes": []}, "sizes is []; it must be a list of 1 or more entries"),
        ({"sizes": [1, True]}, "sizes[1] is true; it must be a whole number from 1 to 9"),
        ({"sizes": [10]}, "sizes[0] is 10; it must be a whole number from 1 to 9"),
        ({"files": [["x"]]}, 'files[0] is ["x"]; it must be a list of 2 entries'),
        ({"files": [["x", 1.5]]},
         f"files[0][1] is 1.5; it must be a whole number from 0 to {2**63 - 1}"),
        ({"files": 7}, "files is 7; it must be a list"),
        ({"rate": float("nan")}, "rate is NaN; it must be a number of 0 or more"),
        ({"rate": True}, "rate is true; it must be a number of 0 or more"),
        ({"rate": 10**400}, f"rate is 1{'0' * 79}...; it must be a number of 0 or more"),
        ({"part": -0.5}, "part is -0.5; it must be a number of 0 or more, at most 100"),
        ({"part": 101}, "part is 101; it must be a number of 0 or more, at most 100"),
        ({"part": "1"}, 'part is "1"; it must be a number of 0 or more, at most 100'),
        ({"tags": 0}, "tags is 0; it must be true or false"),
        ({"sums": []}, "sums is []; it must be an object {...}"),
        ({"sums": {"fr": -1}}, f"sums.fr is -1; it must be a whole number from 0 to {2**63 - 1}"),
        ({"inner": {}}, "inner.a is missing"),
        ({"inner": {"a": 1, "b": 2}}, "inner.b is not a known key"),
        ({"more": 7}, "more is 7; it must be a text"),
        ({"name": "A" * 100}, f'name is "{"A" * 79}...; it must be small letters'),
    ],
)  # fmt: skip
def test_the_problem_says_where_it_is(changes, words):
    assert problem(SHAPE, GOOD | changes) == words


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is not JSON (Expecting value"),
        (b"nonsense", "it is not JSON (Expecting value"),
        (b'{"name": "\xff\xfe"}', "it is not JSON ('utf-8' codec can't decode"),
        (b"[" * 100_000, "it is not JSON (maximum recursion depth"),
        (b"9" * 5000, "it is not JSON (Exceeds the limit"),
        (b"5", "the content is 5; it must be an object {...}"),
        (b"{}", "name is missing"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, words):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UserError) as raised:
        read(tmp_path / "a.json", SHAPE, "Make it again.")
    message = str(raised.value)
    assert message.startswith(f"{tmp_path / 'a.json'} is damaged: {words}")
    assert message.endswith(". Make it again.")
    assert len(message) < 400
