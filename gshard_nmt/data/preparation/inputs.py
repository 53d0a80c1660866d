"""The first stage: the rows of each input of a corpus, in chunks; and what is known of unchanged text.

A second run must not read a large text again to see that nothing has changed. So the digest of an
input's rows is kept in the user's cache, under the names, sizes and times of its files.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import time as now
from typing import Any

from gshard_nmt import files, paths
from gshard_nmt.data.preparation import chunks
from gshard_nmt.data.preparation.chunks import Part
from gshard_nmt.data.preparation.work import Unit, WorkFolder, key_of
from gshard_nmt.data.sets.corpus import SPLITS, CorpusPair, Input, read_blocks
from gshard_nmt.data.sets.manifest import pair_folder
from gshard_nmt.errors import UserError

_VERSION = 4
"""Changes whenever the same files would give another digest."""

_COARSE_SECONDS = 3.0

Stamps = list[list[Any]]
"""The path, the size in bytes and the times of change of each file of an input."""


@dataclasses.dataclass(frozen=True)
class Text:
    """What is known of the rows of an input.

    The digest identifies the rows, whatever their format. `rows` has the number in each chunk. The folder
    of the chunks is None if the text was read in an earlier run.
    """

    digest: str
    rows: tuple[int, ...]
    folder: Path | None = None

    @property
    def parts(self) -> list[Part]:
        assert self.folder is not None, "the text was not read"
        return [Part(self.folder / _chunk_name(n), rows) for n, rows in enumerate(self.rows)]


Texts = Mapping[str, Text]
"""The text of each input by `name_of` it."""


@dataclasses.dataclass(frozen=True)
class SplitText:
    """The text of a split of a language pair in one corpus: the rows of each input."""

    pair: CorpusPair
    split: str
    texts: tuple[Text, ...]

    @classmethod
    def of(cls, pair: CorpusPair, split: str, texts: Texts) -> "SplitText":
        return cls(pair, split, tuple(texts[name_of(item)] for item in pair.inputs(split)))

    @property
    def name(self) -> str:
        """The name of the split in the names of units, such as "fr-en/train"."""
        return f"{folder_of(self.pair)}/{self.split}"

    @property
    def total(self) -> int:
        return sum(sum(text.rows) for text in self.texts)

    @property
    def parts(self) -> list[Part]:
        return [part for text in self.texts for part in text.parts]


def folder_of(pair: CorpusPair) -> str:
    """Returns a name for a language pair of a corpus, such as "fr-en" or "fr-en.back"."""
    return pair_folder(pair.source, pair.target, pair.subset)


def name_of(item: Input) -> str:
    """Returns a name that no other input of any corpus has."""
    return f"{item.subset}:{item.name}" if item.subset else item.name


def _chunk_name(number: int) -> str:
    return f"{number:05}.zst"


def _inputs_of(pairs: Sequence[CorpusPair]) -> list[Input]:
    return [item for pair in pairs for split in SPLITS for item in pair.inputs(split)]


def read_all(work: WorkFolder, pairs: Sequence[CorpusPair]) -> dict[str, Text]:
    """Returns the text of each input by its name. It is read again if a file has another size or time."""
    items = _inputs_of(pairs)
    units = []
    for item in items:
        before = stamps(item)
        call = functools.partial(read, item=item, before=before)
        units.append(Unit(name_of(item), call, sum(size for _, size, *_ in before)))
    texts = {}
    outcomes = work.run("read", "reading, bytes", units)
    for item, unit, done in zip(items, units, outcomes, strict=True):
        text = Text(done.result["digest"], tuple(done.result["rows"]), done.folder)
        _remember(item, text, unit.call.keywords["before"])
        texts[name_of(item)] = text
    return texts


def read(folder: Path, item: Input, before: Stamps) -> Mapping[str, Any]:
    """Writes the rows of an input in chunks; returns `digest` and `rows`, see `Text`.

    Raises:
      UserError: a file is damaged, or it is not as `before`, because another program writes it.
    """
    text = _read(item, folder)
    for old, new in zip(before, stamps(item), strict=True):
        if old != new:
            raise UserError(
                f"{new[0]} has changed while it was read. Wait until the program that writes it has "
                "finished, and give the same command again."
            )
    return {"digest": text.digest, "rows": text.rows}


def _read(item: Input, folder: Path | None = None) -> Text:
    """Returns the text of an input; writes its chunks if there is a folder."""
    rows: list[int] = []
    digest = hashlib.blake2b(digest_size=16)
    for chunk in chunks.split(read_blocks(item)):
        content = chunks.content_of(chunk)
        digest.update(hashlib.blake2b(content).digest())
        if folder is not None:
            chunks.write(folder / _chunk_name(len(rows)), content)
        rows.append(len(chunk))
    return Text(digest.hexdigest(), tuple(rows), folder)


def fingerprint(pairs: Sequence[CorpusPair]) -> str:
    """Returns 16 hexadecimal digits that identify the text of these pairs, in any order and format."""
    texts = {}
    for item in _inputs_of(pairs):
        text = _known(item)
        if text is None:
            before = stamps(item)
            text = _read(item)
            _remember(item, text, before)
        texts[name_of(item)] = text
    return fingerprint_of(pairs, texts)


def fingerprint_of(pairs: Sequence[CorpusPair], texts: Texts) -> str:
    facts = [
        (item.subset, item.source, item.target, item.split, texts[name_of(item)].digest)
        for item in _inputs_of(pairs)
    ]
    return key_of(sorted(facts))[:16]


def known_texts(pairs: Sequence[CorpusPair]) -> dict[str, Text] | None:
    """Returns the text of each input by its name; None if a file has changed since it was read."""
    texts = {name_of(item): _known(item) for item in _inputs_of(pairs)}
    known = {name: text for name, text in texts.items() if text is not None}
    return known if len(known) == len(texts) else None


def _known(item: Input) -> Text | None:
    try:
        digest, rows = json.loads(_cache_file(item, stamps(item)).read_bytes())
        return Text(str(digest), tuple(map(int, rows)))
    except (OSError, ValueError, TypeError, UserError):
        return None


def _remember(item: Input, text: Text, before: Stamps) -> None:
    """Keeps what is known of an input whose files had the stamps `before` it was read."""
    # Some file systems know whole seconds alone, and a file may change twice within one.
    if any(time % 10**9 == 0 and now() - time / 1e9 < _COARSE_SECONDS for *_, time in before):
        return
    try:
        place = _cache_file(item, before)
        # Others must not write here, because compiled programs are beside the texts.
        place.parents[1].mkdir(mode=0o700, parents=True, exist_ok=True)
        place.parent.mkdir(mode=0o700, exist_ok=True)
        files.write(place, json.dumps([text.digest, text.rows]))
    except (OSError, UserError):
        return


def _cache_file(item: Input, own: Stamps) -> Path:
    facts = (item.format, item.source, item.target, item.swapped)
    return paths.user_cache() / "texts" / key_of(_VERSION, facts, own)[:32]


def stamps(item: Input) -> Stamps:
    """Returns the stamps of the files. Times are nanoseconds.

    `cp -p` and `rsync -t` can set the last one back, but not the one before.
    """
    result: Stamps = []
    for path in item.files:
        stat: Any = path.stat()
        if hasattr(stat, "st_size"):
            facts = [stat.st_size, stat.st_ctime_ns, stat.st_mtime_ns]
        else:  # a path in a bucket
            facts = [int(stat.length), int(stat.mtime * 1e9)]
        result.append([str(paths.absolute(path)), *facts])
    return result
