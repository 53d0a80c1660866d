"""The languages of a server: which a request may name, what /languages lists, and their detection."""

import math
from collections.abc import Collection

from gshard_nmt.data.cleaning.text_filters import identifier, label_of
from gshard_nmt.data.language_codes import language_name, nearest
from gshard_nmt.errors import UserError, did_you_mean
from gshard_nmt.serving.batching import Refusal

AUTO = "auto"
"""The source language of a request that asks the server to detect the language."""

_SHOWN = 40
"""The most characters of a language in an error message. A client may send any text there."""

_CHARACTERS = 5000
"""The characters of a text that the detector looks at."""


class Languages:
    """The directions that a model translates, as BCP 47 tags."""

    def __init__(self, directions: Collection[tuple[str, str]]) -> None:
        """Takes the (source, target) pairs that the model was trained on."""
        self._targets: dict[str, list[str]] = {}
        for source, target in sorted(set(directions)):
            self._targets.setdefault(source, []).append(target)
        self._all_targets = sorted({target for _, target in directions})

    def direction(self, source: str, target: str) -> tuple[str, str]:
        """Returns the source and the target language of a request, spelled as the model knows them.

        pt_BR finds pt-BR, or pt if the model has no pt-BR. The source may be "auto" if the model
        translates to this target from one language only.

        Raises:
          Refusal: the model does not know the direction, or it would have to detect the language.
        """
        known_target = _known(target, self._all_targets, "to")
        if source.lower() == AUTO:
            sources = self.sources(known_target)
            if len(sources) > 1:
                raise Refusal(
                    400,
                    "source is auto, and this server does not detect languages. Give one of: "
                    f"{', '.join(sources)}.",
                )
            return sources[0], known_target
        known_source = _known(source, self._targets, "from")
        targets = self._targets[known_source]
        return known_source, _known(target, targets, f"from {known_source} to")

    def listed(self) -> list[dict[str, object]]:
        """Returns the answer to /languages: the code, name and targets of each language."""
        return [
            {"code": tag, "name": language_name(tag), "targets": self._targets.get(tag, [])}
            for tag in sorted({*self._targets, *self._all_targets})
        ]

    def sources(self, target: str) -> list[str]:
        """Returns the languages that the model translates to a target; raises Refusal if none."""
        known = _known(target, self._all_targets, "to")
        return [source for source, targets in self._targets.items() if known in targets]


def _known(tag: str, known: Collection[str], verb: str) -> str:
    if found := nearest(tag[:_SHOWN], known):
        return found
    hint = did_you_mean(tag[:_SHOWN], known)
    raise Refusal(
        400,
        f"{tag[:_SHOWN]} is not supported: this server translates {verb} {', '.join(known)}{hint} "
        "GET /languages lists the directions.",
    )


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
