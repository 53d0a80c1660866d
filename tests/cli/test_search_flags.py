"""The flags of the search: the settings that they change, and flags that do not fit each other."""

import dataclasses

import pytest

from gshard_nmt.cli.decode_command import DECODE
from gshard_nmt.cli.flags import parse_flags
from gshard_nmt.cli.search_flags import check_search, search_changes
from gshard_nmt.errors import UserError
from gshard_nmt.settings.config import Decode

BEAM = Decode()


def search_of(*flags: str, before: Decode = BEAM) -> Decode:
    values = parse_flags(DECODE, ["--workdir=x", *flags])
    decode = dataclasses.replace(before, **search_changes(values))
    check_search(values, decode)
    return decode


def test_each_flag_changes_the_setting_of_its_name():
    assert search_of() == Decode()
    flags = ("--beam=2", "--expansion=lingvo", "--length_norm=lingvo", "--alpha=0.8", "--nbest=2")
    assert search_of(*flags) == Decode("beam", 2, "lingvo", "lingvo", 0.8)
    flags = ("--sample", "--temperature=0.5", "--top_k=10", "--top_p=0.9", "--seed=0", "--nbest=9")
    assert search_of(*flags) == Decode(
        method="sample", temperature=0.5, top_k=10, top_p=0.9, seed=0
    )


def test_a_run_that_samples_by_its_config_takes_the_flags_of_sampling():
    sampling = Decode(method="sample", top_k=4)
    assert search_of("--top_p=0.5", before=sampling).top_p == 0.5
    with pytest.raises(UserError, match=r"^--beam has no effect with sampling\. Leave it out\.$"):
        search_of("--beam=2", before=sampling)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--top_k=3"], "--top_k has no effect without --sample. Add --sample, or leave it out."),
        (["--gin=Decode.top_k = 3"], "Decode.top_k has no effect without --sample. Add --sample,"),
        (["--length_norm=none", "--alpha=1"], "--alpha has no effect without a length norm."),
        (["--seed=3"], "--seed has no effect without --sample. Add --sample, or leave it out."),
        (["--sample", "--expansion=lingvo"], "--expansion has no effect with sampling."),
        (["--nbest=5"], "--nbest is 5; it must be from 1 to the beam size, 4."),
        (["--sample", "--top_p=0"], "Decode.top_p is 0.0; it must be above 0 and at most 1."),
        (["--sample", "--top_p=1.5"], "Decode.top_p is 1.5; it must be above 0 and at most 1."),
        (
            ["--sample", "--temperature=0"],
            "Decode.temperature is 0.0; it must be from 0.01 to 100.",
        ),
        (["--sample", "--seed=-1"], "--seed is '-1'; it must be"),
    ],
)
def test_flags_that_do_not_fit_are_named(flags, message):
    with pytest.raises(UserError) as error:
        search_of(*flags)
    assert str(error.value).startswith(message)
