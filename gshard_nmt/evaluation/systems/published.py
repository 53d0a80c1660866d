"""Published scores: a JSON file with the BLEU of a system whose model is not at hand.

    {"name": "MoE(2048E, 36L)", "bleu": {"fr": 44.3, "de-en": 43.1}, "weights": 600000000000}

"bleu" has the score of each language, or of each direction. All other keys may be left out: "sentences"
(of each language, to refuse a test set of another length), and the columns of the table of costs. The
`bleu.json` of a report can be given too; its first system is read.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gshard_nmt import json_shape
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.systems.systems import Budget
from gshard_nmt.json_shape import anything, fields, list_of, mapping_of, number, text, whole

_COSTS = {
    **dict.fromkeys(("weights", "experts", "layers", "steps", "tokens", "devices"), whole()),
    **dict.fromkeys(("steps_per_second", "batch_tokens", "device_years", "days"), number()),
}
_SCORES = fields(
    {"name": text(), "bleu": mapping_of(number(0, 100))},
    {"sentences": mapping_of(whole(1)), **_COSTS},
    closed=True,
)
_REPORT = fields(
    {
        "signature": fields({"bleu": text()}),
        "systems": list_of(
            fields(
                {
                    "name": text(),
                    "languages": list_of(
                        fields(
                            {
                                **dict.fromkeys(("source", "target", "text_digest"), text()),
                                "bleu": number(0, 100),
                                "sentences": anything(),
                            }
                        ),
                        least=1,
                    ),
                }
            ),
            least=1,
        ),
    }
)
"""The shape of bleu.json, as far as it is read."""


@dataclasses.dataclass(frozen=True)
class Published:
    """The scores of a file.

    Attributes:
      file: the file.
      name: the name of the system.
      bleu: score of each language, or of each direction such as "fr-en".
      sentences: number of sentences by the same keys; a key may be missing.
      text_digests: what identifies the test text, by the same keys; a key may be missing.
      signature: the signature of BLEU; "" if the file has none.
      budget: size and cost.
    """

    file: Path
    name: str
    bleu: Mapping[str, float]
    sentences: Mapping[str, int]
    text_digests: Mapping[str, str]
    signature: str
    budget: Budget


def read(file: Path) -> Published:
    """Reads a file of scores.

    Raises:
      UserError: the file is missing, or is not a file of scores.
    """
    if not file.is_file():
        raise UserError(
            f"--scores {file}: there is no such file; give a JSON file with the BLEU of each language."
        )
    try:
        content: dict[str, Any] = json_shape.parse(file.read_bytes(), mapping_of(anything()))
        if wrong := json_shape.problem(_REPORT if "systems" in content else _SCORES, content):
            raise ValueError(wrong)
    except ValueError as error:
        raise UserError(
            f'--scores {file} is not JSON like {{"name": "a model", "bleu": {{"fr": 30.1}}}}: {error}.'
        ) from None
    if "systems" in content:
        return _of_report(file, content)
    costs = {name: content[name] for name in _COSTS if name in content}
    sentences = content.get("sentences", {})
    return Published(file, content["name"], content["bleu"], sentences, {}, "", Budget(**costs))


def _of_report(file: Path, content: dict[str, Any]) -> Published:
    """Returns the scores of the first system of a report."""
    system = content["systems"][0]
    rows = {f"{row['source']}-{row['target']}": row for row in system["languages"]}
    costs = {
        name: system[name]
        for name, shape in _COSTS.items()
        if name in system and json_shape.problem(shape, system[name]) is None
    }
    return Published(
        file,
        system["name"],
        {key: row["bleu"] for key, row in rows.items()},
        {key: row["sentences"] for key, row in rows.items() if type(row["sentences"]) is int},
        {key: row["text_digest"] for key, row in rows.items() if row["text_digest"]},
        content["signature"]["bleu"],
        Budget(**costs),
    )
