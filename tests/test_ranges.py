"""Any value of a setting either works or gives a message that names the setting; never a traceback."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator

import pytest

from gshard_nmt import inspect_config as inspect
from gshard_nmt.errors import UserError
from gshard_nmt.ranges import above, at_least, between, check, one_of, rate, size
from gshard_nmt.settings.config import CLASSES
from gshard_nmt.settings.gin_reader import load_config


@dataclasses.dataclass(frozen=True)
class Try:
    number: float = 1
    several: tuple[int, ...] = (1, 2)
    word: str = "a"


@pytest.mark.parametrize(
    ("rule", "legal", "illegal", "words"),
    [
        (between(1, 4, "number"), (1, 2.5, 4), (0, 5), "from 1 to 4"),
        (at_least(0, "number"), (0, 2**31 - 1), (-1, 2**31), "from 0 to 2147483647"),
        (above(0, "number", most=1), (1e-30, 1), (0, 1.5), "above 0 and at most 1"),
        (size("number"), (1, 2**24), (0, 2**24 + 1), "from 1 to 16777216"),
        (size("number", least=0), (0,), (-1,), "from 0 to 16777216"),
        (rate("number"), (0, 0.99), (-0.1, 1), "from 0 to below 1"),
    ],
)
def test_a_number_outside_its_range_is_an_error(rule, legal, illegal, words):
    for value in legal:
        check(Try(number=value), [rule])
    for value in (*illegal, math.nan, math.inf, -math.inf):
        with pytest.raises(UserError) as error:
            check(Try(number=value), [rule])
        assert str(error.value) == f"Try.number is {value!r}; it must be {words}."


def test_every_entry_of_a_list_and_every_word_is_checked():
    check(Try(), [at_least(1, "number", "several"), one_of(("a", "b"), "word")])
    with pytest.raises(
        UserError, match=r"^Try.several is \[1, 0\]; every entry must be from 1 to "
    ):
        check(Try(several=(1, 0)), [at_least(1, "number", "several")])
    with pytest.raises(UserError, match=r"^Try.word is 'c'; it must be one of \['a', 'b'\]\.$"):
        check(Try(word="c"), [one_of(("a", "b"), "word")])


FIELDS = {
    f"{class_name}.{field.name}": field
    for class_name, cls in CLASSES.items()
    for field in dataclasses.fields(cls)
}
NUMBERS = ("0", "-1", "3", "0.5", f"{10**30}", f"-{10**30}", f"{2**31 - 1}", f"1{'0' * 400}")
ODD = ("1e999", "1e308", "1e999 - 1e999", "-1e999", "'zzz'", "''", "None", "()", "{}")
ENTRIES = ("(0,)", "(-1,)", f"({10**9},)", "('a', 'b')", "{'x': 'x'}", "{'*': ['x']}")


@pytest.mark.parametrize("name", FIELDS)
def test_any_value_gives_a_parameter_table_or_an_error_that_names_it(capsys, name):
    is_scalar = FIELDS[name].type in (int, float, str, bool, "int", "float", "str", "bool")
    for value in (*NUMBERS, *ODD, *(() if is_scalar else ENTRIES)):
        messages = []
        with collecting_errors(messages):
            config = load_config("demo", [f"{name} = {value}"])
            with collecting_errors(messages):
                inspect.show_parameters(config)
        assert all(name in message for message in messages)
    capsys.readouterr()


@contextlib.contextmanager
def collecting_errors(messages: list[str]) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        messages.append(str(error))


NUMERIC = [name for name, field in FIELDS.items() if field.type in (int, float, "int", "float")]


@pytest.mark.parametrize("name", NUMERIC)
def test_every_number_has_a_range(name):
    """A number that is too large is refused everywhere, so every number has a rule."""
    for value in (f"{10**30}", f"-{10**30}"):
        with pytest.raises(UserError, match=rf"{name} is .*; it must be (from|above) "):
            load_config("demo", [f"{name} = {value}"])
