"""Directions of translation that have no training pair, so prepared data is made without them.

Each has a reason. `gshard-data prepare` prints it, and the manifest keeps it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gshard_nmt.data.cleaning import report
from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation.cleaning import CleanText
from gshard_nmt.data.preparation.stages import Tokens
from gshard_nmt.data.preparation.texts import Direction, folder_of
from gshard_nmt.data.preparation.tokenizing import TOO_LONG
from gshard_nmt.errors import UserError

Reasons = dict[str, str]
"""Why directions are left out, by their folders."""


def from_manifest(old: Mapping[str, Any] | None, keys: Mapping[str, str]) -> Reasons:
    """Returns the reasons that earlier data knows and that still hold.

    Args:
      old: the manifest of the earlier data; None if there is none.
      keys: the keys of the directions by their folders. A direction with another key than in the
        manifest may have training pairs now.
    """
    if old is None:
        return {}
    reasons, old_keys = old.get("left_out", {}), old.get("keys", {})
    return {
        name: reason
        for name, reason in reasons.items()
        if name in keys and keys[name] == old_keys.get(name)
    }


def after_cleaning(
    directions: Iterable[Direction], clean: Mapping[tuple[str, str], CleanText]
) -> Reasons:
    """Returns the reasons of the directions whose clean training text is empty.

    Args:
      directions: the directions.
      clean: the clean text by `texts.folder_of` the pair and the split.
    """
    texts = {d.folder: clean[folder_of(d.pair), "train"] for d in directions}
    return {name: _reason(text) for name, text in texts.items() if not text.rows}


def after_tokenizing(
    directions: Iterable[Direction], tokens: Mapping[tuple[str, str], Tokens], config: Data
) -> Reasons:
    """Returns the reasons of the directions without a training pair that fits into the rows.

    Args:
      directions: the directions, which have clean training text.
      tokens: the shards by the folder of the direction and the split.
      config: the settings, which have the limits.
    """
    reason = (
        f"all training pairs have more than {config.source_length} source or {config.target_length} "
        "target tokens"
    )
    return {d.folder: reason for d in directions if not tokens[d.folder, "train"].data.examples}


def too_long(tokens: Mapping[tuple[str, str], Tokens], config: Data) -> Iterator[str]:
    """Yields a warning for each direction that loses many training pairs because of their length."""
    for (name, split), own in tokens.items():
        lost = own.data.removed.get(TOO_LONG, 0)
        clean = own.data.examples + lost
        if split == "train" and own.data.examples and lost > report.TOO_MUCH * clean:
            yield (
                f"{lost:,} of {clean:,} training pairs of {name} are left out: they have more than "
                f"Data.source_length = {config.source_length} or Data.target_length = "
                f"{config.target_length} tokens. Raise both; with twice as many tokens, "
                f"{own.fit_twice / clean:.0%} of the pairs stay."
            )


def check_rest(directions: Sequence[Direction], reasons: Reasons) -> None:
    """Checks that there is a direction that is not left out.

    Raises:
      UserError: there is none. The message has the first three reasons.
    """
    if any(direction.folder not in reasons for direction in directions):
        return
    listed = "; ".join(f"{name}: {reason}" for name, reason in list(reasons.items())[:3])
    raise UserError(
        f"no training pair is left ({listed}). Add text, turn filters off with Cleaning.without or "
        "Cleaning.duplicates, or raise Data.source_length and Data.target_length."
    )


def _reason(text: CleanText) -> str:
    if not text.pairs:
        held_out = any(item.split != "train" for item in text.text.pair.texts)
        return "there is no training text" + (" beside its dev and test text" if held_out else "")
    counts = ", ".join(f"{name} {count:,}" for name, count in text.removed.items())
    return f"cleaning left out all {text.pairs:,} training pairs ({counts})"
