"""Which direction of a model is meant by the languages that a user names."""

from collections.abc import Mapping, Sequence

from gshard_nmt.data.language_codes import known_as
from gshard_nmt.errors import UserError, did_you_mean


def choose_direction(
    pairs: Sequence[Mapping[str, str]], source: str, target: str
) -> tuple[str, str]:
    """Returns the source and target language of a request to translate; "" is a flag that was not given.

    Raises:
      UserError: the model does not know the direction, or a language is missing.
    """
    sources = sorted({pair["source"] for pair in pairs})
    if not source and len(sources) > 1:
        raise UserError(
            f"--lang is missing: this model translates from {', '.join(sources)}; "
            "say which of them the input is in."
        )
    # Reports call a pair without English by both of its languages.
    for first, second in ((pair["source"], pair["target"]) for pair in pairs):
        if source == f"{first}-{second}":
            raise UserError(
                f"--lang {source} names two languages. Give one to each flag: --lang {first} "
                f"--target {second}."
            )
    known_source = known_as(source or sources[0], sources)
    if known_source is None:
        raise UserError(_unknown("--lang", source, sources, "translates from"))
    source = known_source
    targets = sorted({pair["target"] for pair in pairs if pair["source"] == source})
    if not target and len(targets) > 1:
        raise UserError(
            f"--target is missing: from {source} this model translates to "
            f"{', '.join(targets)}; choose one of them."
        )
    known_target = known_as(target or targets[0], targets)
    if known_target is None:
        raise UserError(_unknown("--target", target, targets, f"translates from {source} to"))
    return source, known_target


def _unknown(flag: str, language: str, known: Sequence[str], verb: str) -> str:
    return (
        f"{flag} {language}: this model {verb} {', '.join(known)}{did_you_mean(language, known)} "
        "Choose one of these."
    )
