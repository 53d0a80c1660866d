"""`gshard-data show`: prints training batches as text.

Everything is read from the arrays themselves, so the text is what training sees: tags, truncation, byte
fallback and padding included.
"""

import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt.data.batching.augmentation import Record
from gshard_nmt.data.batching.batches import TrainBatches
from gshard_nmt.data.config import Data
from gshard_nmt.data.sets.manifest import VOCABULARIES, PreparedPair
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.data.text.vocabulary import EOS, SPACE, UNK, Vocabulary
from gshard_nmt.errors import UserError
from gshard_nmt.terminal import Terminal, shown

_LAST_STEP = 10_000_000
_MARKED = "⟦{}⟧"


def show_batches(
    config: Data, folder: Path, batches: int, rows: int, step: int, pieces: bool, as_json: bool
) -> None:
    """Prints the first `rows` rows of training batches from step `step` on; 0 shows all rows.

    A row depends on no other row. So only the rows that are shown are made, also to reach a late step.
    """
    if step + batches > _LAST_STEP:
        raise UserError(
            f"--step {step} and --batches {batches} end after step {_LAST_STEP:,}, and all batches "
            "before are drawn. Give smaller numbers."
        )
    data = PreparedData.open(folder)
    vocabularies = [Vocabulary.load(folder / name) for name in VOCABULARIES]
    count = min(rows, config.rows) if rows else config.rows
    record: Record = {}
    others = data.pairs_of(config), data.languages(config), vocabularies, pieces, record
    stream = TrainBatches(data, config, range(count), record=record)
    console = Terminal()
    try:
        for n, arrays in enumerate(itertools.islice(stream, step - 1, step - 1 + batches), step):
            for r in range(count):
                values = {name: array[r] for name, array in arrays.items()}
                row = {"step": n, "row": r + 1} | describe_row(values, *others)
                if as_json:
                    sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
                else:
                    for line in _lines(row):
                        console.print(line)
    finally:
        stream.close()


def describe_row(
    row: Mapping[str, np.ndarray],
    pairs: Sequence[PreparedPair],
    languages: Sequence[str],
    vocabularies: Sequence[Vocabulary],
    pieces: bool = False,
    record: Record | None = None,
) -> dict[str, Any]:
    """Returns what a row of the arrays of `TrainBatches`, int32[L], holds.

    `languages` are those of the run, in the order of the ids in the arrays. With `pieces`, the text has
    spaces between all pieces. A segment may come from several `pairs`, if no tag tells them apart. If it
    is in the `record` of what augmentation did, it also has its variations, and its texts before.
    """
    origins = [
        (pair.language, vocabularies[0].tags(pair.source, pair.target, pair.subset), pair.folder)
        for pair in pairs
    ]
    result: dict[str, Any] = {}
    for side in ("source", "target"):
        result[f"{side}_positions"] = len(row[f"{side}_segments"])
        result[f"{side}_filled"] = int((row[f"{side}_segments"] > 0).sum())
    segments = []
    for n in range(1, int(row["source_segments"].max(initial=0)) + 1):
        source, target = row["source_segments"] == n, row["target_segments"] == n
        language = languages[int(row["source_languages"][source][0]) - 1]
        ids = row["source_ids"][source].tolist(), row["target_labels"][target].tolist()
        begun = [
            (len(tags), folder)
            for of, tags, folder in origins
            if of == language and ids[0][: len(tags)] == tags
        ]
        longest = max((length for length, _ in begun), default=0)
        segment: dict[str, Any] = {
            "language": language,
            "pairs": [folder for length, folder in begun if length == longest],
        }
        for side, own, vocabulary in zip(("source", "target"), ids, vocabularies, strict=True):
            segment[side] = _text(own, vocabulary, pieces)
            segment[f"{side}_tokens"] = len(own)
            segment[f"{side}_fallback"] = int(vocabulary.is_byte_fallback[own].sum())
        first, second = (v.decode([i])[0] for v, i in zip(vocabularies, ids, strict=True))
        segments.append(segment | (record or {}).get((first, second), {}))
    return result | {"segments": segments}


def _text(ids: Sequence[int], vocabulary: Vocabulary, pieces: bool) -> str:
    """Returns the text of ids. Characters that are spelled as bytes, and unknown ones, are marked."""
    texts = vocabulary.pieces(ids)
    if pieces:
        return " ".join(texts)
    values = vocabulary.byte_values[list(ids)].tolist()
    tags, parts = "", []
    tokens = zip(ids, texts, values, strict=True)
    for is_byte, run in itertools.groupby(tokens, lambda token: token[2] >= 0):
        if is_byte:
            spelled = bytes(value for _, _, value in run)
            parts.append(_MARKED.format(spelled.decode("utf-8", "replace")))
            continue
        for token, piece, _ in run:
            if vocabulary.tag(piece) == token and not parts:
                tags += f"{piece} "
            elif token != EOS:
                parts.append(_MARKED.format(piece) if token == UNK else piece)
    return tags + "".join(parts).replace(SPACE, " ").lstrip(" ")


def _lines(row: Mapping[str, Any]) -> Iterator[str]:
    padding = " and ".join(
        f"{row[f'{side}_positions'] - row[f'{side}_filled']} of {row[f'{side}_positions']} {side}"
        for side in ("source", "target")
    )
    yield (
        f"step {row['step']}, row {row['row']}: {len(row['segments'])} sentence pairs, padding {padding} "
        "positions"
    )
    for number, segment in enumerate(row["segments"], 1):
        origin = " or ".join(segment["pairs"]) or segment["language"]
        yield f"  {number} {origin}, {segment['source_tokens']} + {segment['target_tokens']} tokens"
        for side in ("source", "target"):
            yield f"    {shown(segment[side], 0)}"
        if "augmentation" in segment:
            before = " | ".join(shown(text, 0) for text in segment["before"])
            yield f"    changed by {', '.join(segment['augmentation'])}; before: {before}"
