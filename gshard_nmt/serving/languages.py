"""The languages of a server: which a request may name, what /languages lists, and their detection.

`directions` are the (source, target) pairs that the model was trained on, as BCP 47 tags, in order.
"""

import itertools
import math
from collections.abc import Collection, Sequence

from starlette.exceptions import HTTPException

from gshard_nmt.data.cleaning.text_filters import identifier, label_of
from gshard_nmt.data.language_codes import language_name, nearest
from gshard_nmt.errors import UserError, did_you_mean

Directions = Sequence[tuple[str, str]]

_SHOWN = 40
"""The most characters of a language in an error message. A client may send any text there."""
_CHARACTERS = 5000
"""The characters of a text that the detector looks at."""


def direction_of(
    directions: Directions, source: str, target: str, text: str, detects: bool
) -> tuple[str, str, float | None]:
    """Returns source and target as the model knows them, and how sure a detected source is, in percent.

    pt_BR finds pt-BR, or pt if the model has no pt-BR. The source may be "auto". Then it is the target
    itself if the text seems to be in the target language.

    Raises:
      HTTPException: the model does not know the direction, or the source cannot be detected.
    """
    if source.lower() != "auto":
        source = _known(source, sorted({a for a, _ in directions}), "from")
        targets = [b for a, b in directions if a == source]
        return source, _known(target, targets, f"from {source} to"), None
    target = _known(target, sorted({b for _, b in directions}), "to")
    sources = [a for a, b in directions if b == target]
    if len(sources) == 1:
        return sources[0], target, 100.0
    if detects and (ranked := detect(text, [*sources, target])):
        source, confidence = ranked[0]
        return source, target, confidence
    raise HTTPException(
        400,
        "source is auto, and this server does not detect languages. Give one of: "
        f"{', '.join(sources)}.",
    )


def _known(tag: str, known: Collection[str], verb: str) -> str:
    if found := nearest(tag[:_SHOWN], known):
        return found
    hint = did_you_mean(tag[:_SHOWN], known)
    raise HTTPException(
        400,
        f"{tag[:_SHOWN]} is not supported: this server translates {verb} {', '.join(known)}{hint} "
        "GET /languages lists the directions.",
    )


def listed(directions: Directions) -> list[dict[str, object]]:
    """Returns the answer to /languages: the code, name and targets of each language."""
    targets: dict[str, list[str]] = {tag: [] for tag in sorted(itertools.chain(*directions))}
    for source, target in directions:
        targets[source].append(target)
    return [
        {"code": tag, "name": language_name(tag), "targets": own} for tag, own in targets.items()
    ]


def can_detect() -> bool:
    """Returns whether the package of the extra `langid` is there. If it is, its model is loaded."""
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
