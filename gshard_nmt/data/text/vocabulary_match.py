"""Compares two vocabularies piece by piece, so that a new model can take over the rows of an embedding.

A piece that both vocabularies have keeps its row, whatever its ids are. A new piece of text begins as the
mean of the rows of the pieces into which the old vocabulary splits it (Gee et al. 2022, "Fast Vocabulary
Transfer for Language Model Compression", section 3). A new tag begins as the mean of the old tags of its
kind, for instance of all `<2fr>`, `<2de>` ...
"""

import dataclasses
from collections.abc import Sequence

from gshard_nmt.data.text.vocabulary import UNK, Vocabulary, reserved_symbols


@dataclasses.dataclass(frozen=True)
class RowMatch:
    """The rows of an embedding that the rows of a new one begin with.

    `sources` has for each new id the old ids whose mean is its row; () is a row drawn at random. A row
    that `is_known` is copied.
    """

    sources: Sequence[Sequence[int]]
    old_size: int
    is_known: Sequence[bool]

    @property
    def is_identity(self) -> bool:
        ids = [tuple(ids) for ids in self.sources]
        return all(self.is_known) and ids == [(i,) for i in range(self.old_size)]

    @property
    def means(self) -> int:
        """The number of rows that are means of old rows."""
        return sum(map(bool, self.sources)) - sum(self.is_known)

    @property
    def text(self) -> str:
        copied = sum(self.is_known)
        return (
            f"{copied} rows copied by their pieces, {self.means} means of old rows, "
            f"{len(self.sources) - copied - self.means} new; {self.old_size - copied} old rows left out"
        )


def match_rows(old: Vocabulary, new: Vocabulary) -> RowMatch:
    old_keys, new_keys = old.keys(), new.keys()
    old_ids = {key: i for i, key in enumerate(old_keys)}
    tags: dict[str, list[int]] = {}
    for i, key in enumerate(old_keys):
        if kind := _tag_kind(key):
            tags.setdefault(kind, []).append(i)
    equal = [old_ids.get(key) for key in new_keys]
    texts = {i: piece for i, (kind, piece) in enumerate(new_keys) if kind == "text"}
    unknown = [i for i in texts if equal[i] is None]
    splits = dict(zip(unknown, old.split_pieces([texts[i] for i in unknown]), strict=True))
    sources: list[tuple[int, ...]] = []
    for i, key in enumerate(new_keys):
        known = equal[i]
        if known is not None:
            sources.append((known,))
        elif i in splits:
            sources.append(tuple(part for part in splits[i] if part != UNK))
        else:
            sources.append(tuple(tags.get(_tag_kind(key), ())))
    return RowMatch(sources, len(old_keys), [known is not None for known in equal])


def _tag_kind(key: tuple[str, str]) -> str:
    """Returns "<2", "<subset:" or "<" for a tag; "" for any other piece. A spare tag is no tag yet."""
    kind, piece = key
    if kind != "control" or piece in reserved_symbols() or piece.startswith("<spare"):
        return ""
    return next(start for start in ("<2", "<subset:", "") if piece.startswith(start)) or "<"


def identity(size: int) -> RowMatch:
    return RowMatch([(i,) for i in range(size)], size, [True] * size)
