"""`gshard-data show`: prints training batches as text."""

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.text import Text

from gshard_nmt.data.batching.batch_text import RowText, Sentence, read_rows
from gshard_nmt.data.batching.batches import TrainBatches
from gshard_nmt.data.config import Data
from gshard_nmt.data.sets.manifest import VOCABULARIES
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.data.text.vocabulary import Vocabulary
from gshard_nmt.terminal import Terminal, escaped, isolates

_STYLES = {"tag": "cyan", "bytes": "bold yellow", "unknown": "bold red"}


def show_batches(
    config: Data,
    folder: Path,
    batches: int = 1,
    rows: int = 4,
    step: int = 1,
    pieces: bool = False,
    as_json: bool = False,
) -> None:
    """Prints the first `rows` rows of training batches from step `step` on; 0 shows all rows.

    A row depends on no other row. So only the rows that are shown are made, also to reach a late step.
    """
    data = PreparedData.open(folder)
    vocabularies = [Vocabulary.load(folder / name) for name in VOCABULARIES]
    about = (data.pairs_of(config), data.languages(config), vocabularies, pieces)
    count = min(rows, config.rows) if rows else config.rows
    numbers = range(1, count + 1)
    stream = TrainBatches(data, config, range(count))
    console = Terminal()
    try:
        for number, arrays in enumerate(
            itertools.islice(stream, step - 1, step - 1 + batches), step
        ):
            texts = list(read_rows(arrays, numbers, *about))
            if as_json:
                for row in texts:
                    sys.stdout.write(json.dumps(row.to_json(number), ensure_ascii=False) + "\n")
            else:
                for line in _lines(texts, number, config.rows):
                    console.print(line)
    finally:
        stream.close()


def _lines(rows: list[RowText], step: int, batch_size: int) -> Iterator[Text]:
    pairs = sum(len(row.segments) for row in rows)
    share = sum(sum(row.filled) for row in rows) / sum(sum(row.lengths) for row in rows)
    yield Text(
        f"step {step}, rows 1 to {len(rows)} of {batch_size}: {pairs} sentence pairs; {share:.1%} of the "
        "positions are filled",
        "bold",
    )
    for row in rows:
        padding = [length - used for length, used in zip(row.lengths, row.filled, strict=True)]
        yield Text(
            f"row {row.number}: {len(row.segments)} sentence pairs, padding {padding[0]} of "
            f"{row.lengths[0]} source and {padding[1]} of {row.lengths[1]} target positions",
            "bold",
        )
        for number, segment in enumerate(row.segments, 1):
            origin = " or ".join(segment.pairs) or segment.language
            yield Text(
                f"  {number} {origin}, {segment.source.tokens} + {segment.target.tokens} tokens",
                "dim",
            )
            for sentence in (segment.source, segment.target):
                yield Text("    ").append_text(_text(sentence))


def _text(sentence: Sentence) -> Text:
    start, end = isolates(sentence.plain)
    text = Text(start)
    for span in sentence.spans:
        mark = "⟦{}⟧" if span.kind in ("bytes", "unknown") else "{}"
        text.append(mark.format(escaped(span.text)), _STYLES.get(span.kind))
    return text.append(end)
