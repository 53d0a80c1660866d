"""The confidence of a translation: the probability that its chrF against a reference is 50 or more.

`gshard-eval --calibrate` fits it for one checkpoint and one search; see `evaluation/calibration.py`.
"""

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from gshard_nmt import json_shape
from gshard_nmt.json_shape import anything, entries, fields, mapping_of, number, text

FILE = "confidence.json"
GOOD = 50
"""A translation is good if the chrF of its sentence, from 0 to 100, is at least this."""

_ANY = number(-sys.float_info.max)


class Evidence(NamedTuple):
    """What the search knows about a translation, all pieces of its line together.

    `log_prob` is the sum of the log-probabilities of its `tokens`, end included, in nats. The encoder has
    read `source_tokens`. A line that was copied has no tokens. `has_lost` says that text which must not
    change is not in the translation.
    """

    log_prob: float
    tokens: int
    source_tokens: int
    has_lost: bool = False

    @property
    def features(self) -> list[float]:
        """The mean log-probability, the root of minus the sum, the log of the length ratio, the loss."""
        ratio = math.log(self.tokens / self.source_tokens)
        root = math.sqrt(max(0.0, -self.log_prob))
        return [self.log_prob / self.tokens, root, ratio, float(self.has_lost)]


@dataclasses.dataclass(frozen=True)
class Confidence:
    """A logistic regression on the features of `Evidence`."""

    checkpoint: str  # the label of the weights
    made_by: str  # the words for them and for the search
    bias: float  # as the weights, that of all directions
    weights: Sequence[float]
    directions: Mapping[str, float]  # what is added to the bias for each direction, such as "fr-en"
    # how good it is on test text; see `calibration.measure`
    measured: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def of(self, evidence: Evidence, direction: str) -> float:
        """Returns the confidence, from 0 to 1. A line that was copied has 1."""
        if not evidence.tokens:
            return 1.0
        products = (w * f for w, f in zip(self.weights, evidence.features, strict=True))
        logit = self.bias + self.directions.get(direction, 0.0) + sum(products)
        return 1 / (1 + math.exp(min(-logit, 700.0)))

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Returns that of a run folder, if it has one. Raises UserError if the file is damaged."""
        shapes = {"checkpoint": text(), "made_by": text(), "bias": _ANY, "measured": anything()}
        shapes |= {"weights": entries(*[_ANY] * 4), "directions": mapping_of(_ANY)}
        shape = fields(shapes, closed=True)
        remedy = "Make it again with gshard-eval --calibrate, or remove it."
        file = folder / FILE
        return cls(**json_shape.read(file, shape, remedy)) if file.is_file() else None

    @classmethod
    def fitting(cls, folder: Path, checkpoint: str, made_by: str) -> Self | None:
        """Returns that of a run folder for a checkpoint and search. stderr says if it is of others."""
        confidence = cls.read(folder)
        if confidence and (confidence.checkpoint, confidence.made_by) != (checkpoint, made_by):
            sys.stderr.write(
                f"{folder / FILE} is of another checkpoint or search ({confidence.made_by}), so there is "
                "no confidence; gshard-eval --calibrate makes it again\n"
            )
            return None
        return confidence
