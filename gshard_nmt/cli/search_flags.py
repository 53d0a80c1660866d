"""The flags that choose how sentences are translated: beam search or sampling, and their settings."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from absl.flags import FlagValues

from gshard_nmt.cli.flags import Flags
from gshard_nmt.errors import UserError

if TYPE_CHECKING:
    from gshard_nmt.settings.config import Decode

BEAM_FLAGS = ("beam", "expansion")
"""The settings that only beam search reads."""
SAMPLING_FLAGS = ("temperature", "top_k", "top_p", "seed")
"""The settings that only sampling reads."""
OTHER_FLAGS = ("length_norm", "alpha")


def define_search(flags: Flags) -> None:
    """Defines --beam, --sample and the other flags of the search. Each has the name of a setting."""
    flags.integer(
        "beam",
        "K",
        "beam size; if not given, Decode.beam of the run's config (4 by default)",
        None,
        minimum=1,
    )
    flags.integer(
        "nbest",
        "N",
        "number of translations of each line, best first; at most --beam. With --sample, the number of "
        "samples",
        1,
        minimum=1,
    )
    flags.choice(
        "expansion",
        "NAME",
        "how the beam goes on: eos_aside, fairseq or lingvo; if not given, as in the run's config",
        ["eos_aside", "fairseq", "lingvo"],
    )
    define_length_norm(flags)
    flags.switch("sample", "draw random translations and do not search for the best ones")
    flags.number(
        "temperature",
        "X",
        "with --sample: below 1, likely words become likelier; above 1, less likely (1 if not set)",
    )
    flags.integer(
        "top_k",
        "N",
        "with --sample: draw each token from the N likeliest ones; 0 means all",
        None,
        minimum=0,
    )
    flags.number(
        "top_p",
        "X",
        "with --sample: draw each token from the fewest likeliest ones whose probabilities add up to X",
    )
    flags.integer(
        "seed",
        "N",
        "with --sample: seed of the random numbers. The same seed gives a line the same samples",
        None,
        minimum=0,
    )


def define_length_norm(flags: Flags) -> None:
    """Defines --length_norm and --alpha."""
    flags.choice(
        "length_norm",
        "NAME",
        "how to normalize a score by length: gnmt, lingvo or none; if not given, as in the run's config",
        ["gnmt", "lingvo", "none"],
    )
    flags.number(
        "alpha", "X", "exponent of the length normalization; if not given, as in the run's config"
    )


def search_changes(values: FlagValues) -> Mapping[str, Any]:
    """Returns the settings of `Decode` that the flags change."""
    names = (*BEAM_FLAGS, *SAMPLING_FLAGS, *OTHER_FLAGS)
    changes = {name: values[name].value for name in names if values[name].value is not None}
    return {**changes, "method": "sample"} if values.sample else changes


def check_search(values: FlagValues, decode: "Decode") -> None:
    """Checks that the flags of the search fit each other.

    Args:
      values: the flags.
      decode: the settings of the run, changed by the flags.

    Raises:
      UserError: a flag has no effect, or --nbest is above the beam size.
    """
    samples = decode.method == "sample"
    from gshard_nmt.settings.changes import read_changes

    settings = read_changes(values.gin).settings
    for name in BEAM_FLAGS if samples else SAMPLING_FLAGS:
        if values[name].value is not None or ("Decode", name) in settings:
            given = f"Decode.{name}" if values[name].value is None else f"--{name}"
            reason = "with sampling" if samples else "without --sample"
            advice = "Leave it out." if samples else "Add --sample, or leave it out."
            raise UserError(f"{given} has no effect {reason}. {advice}")
    if decode.length_norm == "none" and values.alpha is not None:
        raise UserError(
            "--alpha has no effect without a length norm. Add --length_norm gnmt, or leave it out."
        )
    if not samples and values.nbest > decode.beam:
        raise UserError(
            f"--nbest is {values.nbest}; it must be from 1 to the beam size, {decode.beam}. Lower "
            "--nbest, or set a larger --beam."
        )
