"""Files with a JSON object in each line, as Hugging Face's `datasets` writes translations.

{"translation": {"fr": "un chat", "en": "a cat"}}
{"fr": "un chat", "en": "a cat", "score": 1.07}
{"source": "un chat", "target": "a cat"}
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gshard_nmt.data.language_codes import nearest
from gshard_nmt.data.reading.rows import Input, SentencePair, one_line, score_of
from gshard_nmt.data.reading.text_lines import line_blocks
from gshard_nmt.errors import UserError


def read_jsonl(source: Input) -> Iterator[list[SentencePair]]:
    """Yields the rows of a .jsonl file in blocks. Blank lines are skipped."""
    (path,) = source.files
    number, keys = 0, ("", "")
    for block in line_blocks(path):
        rows = []
        for line in block:
            number += 1
            if not line or line.isspace():
                continue
            where = f"{path}, line {number}"
            fields = _object(line, where)
            texts = fields.get("translation", fields)
            if not isinstance(texts, Mapping):
                raise _without_text(source, where)
            if keys[0] not in texts or keys[1] not in texts:
                keys = _keys(source, texts, where)
            sides = [texts[key] for key in keys]
            if not all(isinstance(side, str) for side in sides):
                raise _without_text(source, where)
            score = score_of(fields.get("score"), where)
            rows.append(SentencePair(one_line(sides[0]), one_line(sides[1]), score))
        yield rows


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{where} is not JSON ({error}); each line must be a JSON object. Write the file again with "
            "one object in each line."
        ) from None
    if not isinstance(value, dict):
        raise UserError(
            f"{where} is not a JSON object; each line must be an object with a text in each language. "
            "Write the file again with one object in each line."
        )
    return value


def _keys(source: Input, texts: Mapping[str, Any], where: str) -> tuple[str, str]:
    """Returns the keys of the source and of the target. Raises UserError if there are none."""
    names = [nearest(tag, list(texts)) for tag in (source.source, source.target)]
    if None in names or names[0] == names[1]:
        names = ["target", "source"] if source.swapped else ["source", "target"]
    if names[0] not in texts or names[1] not in texts:
        raise _without_text(source, where)
    return str(names[0]), str(names[1])


def _without_text(source: Input, where: str) -> UserError:
    first, second = source.source, source.target
    return UserError(
        f"{where} has no text in {first} and {second}; each line must be an object such as "
        f'{{"translation": {{"{first}": "...", "{second}": "..."}}}}. Write the file again with these '
        "keys."
    )
