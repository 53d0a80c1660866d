"""The detection of the language of a text, with the package of the extra `langid`."""

import math
from collections.abc import Collection

from gshard_nmt.data.cleaning.text_filters import identifier, label_of
from gshard_nmt.errors import UserError

_CHARACTERS = 5000
"""The characters of a text that are looked at."""


def can_detect() -> bool:
    """Returns whether the package is there. If it is, its model is loaded."""
    try:
        identifier()
    except UserError:
        return False
    return True


def detect(text: str, languages: Collection[str]) -> list[tuple[str, float]]:
    """Returns the languages that the detector knows with their confidence in percent, best first."""
    names: dict[str, str] = {}
    for language in languages:
        names.setdefault(label_of(language), language)
    ranked = [entry for entry in identifier().rank(text[:_CHARACTERS]) if entry[0] in names]
    total = math.fsum(share for _, share in ranked) or 1.0
    return [(names[label], round(100 * share / total, 1)) for label, share in ranked]
