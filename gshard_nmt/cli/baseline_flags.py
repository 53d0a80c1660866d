"""The flags of `gshard-train --baselines_of`, which trains the bilingual baselines of a run."""

import re
from typing import TYPE_CHECKING

from absl.flags import FlagValues

from gshard_nmt.cli.flags import Flags
from gshard_nmt.errors import UserError

if TYPE_CHECKING:
    from gshard_nmt.baselines import Request

UNTIL = ("converged", "budget")
_DEFAULT_SIZES = "small:0,base:100000,big:2000000"
BASELINE_FLAGS = ("until", "languages", "shard", "max_tokens_each", "max_minutes_each", "sizes")
"""The flags that need --baselines_of."""


def define_baselines(flags: Flags) -> None:
    """Defines --baselines_of and the flags that belong to it."""
    flags.text(
        "baselines_of",
        "RUN",
        "the run folder of a multilingual model. If given, bilingual baselines are trained for each of "
        "its languages, in --workdir/LANGUAGE. Finished work is used again",
    )
    flags.choice(
        "until",
        "WORD",
        "when a baseline ends. converged (the default): when dev BLEU does not improve "
        "(Train.patience), with the size of --sizes; try --config bilingual. budget: after the number of "
        "tokens of its language that the multilingual model saw, with the config's size",
        UNTIL,
    )
    flags.text(
        "languages", "XX,YY", "the languages to train baselines for; if not given, all of the run"
    )
    flags.text(
        "shard",
        "I/N",
        "trains the I-th part of the languages out of N, such as 1/3, so that N machines with one "
        "shared folder can divide the work",
    )
    flags.integer(
        "max_tokens_each",
        "N",
        "the tokens after which each model ends, if it has not ended before; 0 means no limit",
        0,
        minimum=0,
    )
    flags.number(
        "max_minutes_each",
        "X",
        "the minutes of training after which each model ends, if it has not ended before; 0 means no "
        "limit",
        0.0,
        minimum=0.0,
    )
    flags.text(
        "sizes",
        "SIZE:PAIRS,...",
        "for --until converged: each size, and the number of training pairs from which a language gets "
        "it. The sizes are small (2 + 2 layers, M = 128), base and big (Transformer-Base and -Big), and "
        f"config, the size of --config. If not given: {_DEFAULT_SIZES}",
    )


def check_baselines(values: FlagValues) -> None:
    """Raises UserError if the flags of baselines do not fit each other."""
    if values.sizes and values.until == "budget":
        raise UserError(
            "--sizes is given with --until budget, whose models have the size of the config. Leave it "
            "out, or give --until converged."
        )


def read_request(values: FlagValues) -> "Request":
    """Returns what the flags ask of the baselines.

    Raises:
      UserError: a value is not allowed.
    """
    languages = [tag.strip() for tag in (values.languages or "").split(",") if tag.strip()]
    repeated = sorted({tag for tag in languages if languages.count(tag) > 1})
    if repeated:
        raise UserError(
            f"--languages names {', '.join(repeated)} more than once; name each language once."
        )
    shard = _read_shard(values.shard)
    from gshard_nmt.baselines import Request
    from gshard_nmt.run.baselines import parse_sizes

    return Request(
        values.until or UNTIL[0],
        parse_sizes(values.sizes or _DEFAULT_SIZES),
        languages,
        shard,
        values.max_tokens_each,
        values.max_minutes_each,
    )


def _read_shard(text: str | None) -> tuple[int, int]:
    """Reads --shard, such as "2/3"."""
    if not text:
        return 1, 1
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    part, parts = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= part <= parts:
        raise UserError(
            f"--shard {text}: it must be I/N with I from 1 to N. For the first of three machines, give "
            "1/3."
        )
    return part, parts
