"""The languages of a server: which a request may name, and what /languages lists."""

from collections.abc import Collection

from gshard_nmt.data.language_codes import language_name, nearest
from gshard_nmt.errors import did_you_mean
from gshard_nmt.serving.refusal import Refusal

AUTO = "auto"
"""The source language of a request that asks the server to detect the language."""

_SHOWN = 40
"""The most characters of a language in an error message. A client may send any text there."""


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
            return self._only_source(known_target), known_target
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

    def _only_source(self, target: str) -> str:
        sources = self.sources(target)
        if len(sources) > 1:
            raise Refusal(
                400,
                "source is auto, and this server does not detect languages. Give one of: "
                f"{', '.join(sources)}.",
            )
        return sources[0]


def _known(tag: str, known: Collection[str], verb: str) -> str:
    """Returns the known language that a tag names.

    Raises:
      Refusal: no known language has this tag.
    """
    if found := nearest(tag[:_SHOWN], known):
        return found
    hint = did_you_mean(tag[:_SHOWN], known)
    raise Refusal(
        400,
        f"{tag[:_SHOWN]} is not supported: this server translates {verb} {', '.join(known)}{hint} "
        "GET /languages lists the directions.",
    )
