"""The settings of data: what is refused, and which settings make `prepare` run again."""

import dataclasses
import json

import pytest

from gshard_nmt.data.config import Data
from gshard_nmt.errors import UserError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"subset_tags": ("a,b",)},
         "Data.subset_tags is ['a,b']; every entry must be a name of letters, digits, - and _."),
        ({"rows": 0}, "Data.rows is 0; it must be from 1 to 16777216."),
    ],
)  # fmt: skip
def test_an_illegal_value_is_an_error_with_the_legal_ones(changes, message):
    with pytest.raises(UserError) as error:
        Data(**changes)
    assert str(error.value) == message


def test_settings_that_only_training_reads_do_not_shape_the_prepared_data():
    data = Data(languages=("fr", "de"))
    for change in (
        *({"rows": 8}, {"packing_window": 5}, {"temperature": 1.0}),
        *({"subword_sampling": 0.1}, {"subword_sampling_target": True}),
    ):
        assert dataclasses.replace(data, **change).shaping() == data.shaping()
    for change in ({"source_length": 8}, {"languages": ("fr",)}, {"spare_tags": 3}):
        assert dataclasses.replace(data, **change).shaping() != data.shaping()


def test_what_shapes_the_prepared_data_is_the_same_after_json():
    """The manifest keeps it as JSON, and `prepare` compares the two."""
    shaping = Data(languages=("fr", "de"), subset_tags=("back",)).shaping()
    assert json.loads(json.dumps(shaping)) == shaping


@pytest.mark.parametrize(
    ("languages", "pair", "is_used"),
    [
        (("ca",), ("ca", "es", "ca-es"), False),
        (("ca-es",), ("ca", "es", "ca-es"), True),
        (("ca-es",), ("ca", "en", "ca"), False),
        (("ca-ES",), ("ca", "en", "ca"), True),
        (("pt-BR",), ("pt", "br", "pt-br"), False),
        (("spa", "ca"), ("ca", "es", "ca-es"), True),
    ],
)
def test_the_name_of_a_pair_is_no_language_of_a_region(languages, pair, is_used):
    assert Data(languages=languages, direction="all").uses(*pair) is is_used
