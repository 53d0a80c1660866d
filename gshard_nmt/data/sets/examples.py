"""Sentence pairs as ids: one at a time, and many in a few flat arrays.

Training reads and packs hundreds of examples with each call of numpy, because a Python object for each
example would cost more than the work on its ids.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

SIDES = ("source", "target")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Example:
    """A sentence pair as ids <int>[n] with tags first and EOS last. The target has no BOS.

    `language` is, in training batches, the index in `PreparedData.languages(config)`; elsewhere 0.
    """

    source: np.ndarray
    target: np.ndarray
    language: int


@dataclasses.dataclass(frozen=True, eq=False)
class Examples:
    """Sentence pairs as ids, one after the other.

    The examples [7, 8, EOS] -> [9, EOS] and [5, EOS] -> [6, 4, EOS] are the source 7 8 1 5 1 with the
    lengths 3 2, and the target 9 1 6 4 1 with the lengths 2 3.

    Attributes:
      source, target: <int>[tokens], the ids of all examples.
      source_lengths, target_lengths: int64[n], the number of tokens of each example.
      languages: int64[n], see `Example.language`.
    """

    source: np.ndarray
    target: np.ndarray
    source_lengths: np.ndarray
    target_lengths: np.ndarray
    languages: np.ndarray

    def __len__(self) -> int:
        return len(self.languages)

    @classmethod
    def of(cls, examples: Iterable[Example]) -> "Examples":
        examples = list(examples)
        sides = [[getattr(example, side) for example in examples] for side in SIDES]
        source, target = (np.concatenate([np.empty(0, np.int64), *ids]) for ids in sides)
        lengths = [np.array([len(entry) for entry in ids], np.int64) for ids in sides]
        languages = np.array([example.language for example in examples], np.int64)
        return cls(source, target, lengths[0], lengths[1], languages)

    @classmethod
    def joined(cls, parts: Sequence["Examples"]) -> "Examples":
        fields = dataclasses.fields(cls)
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields))

    def each(self) -> Iterator[Example]:
        sides = [np.split(ids, np.cumsum(n))[:-1] for ids, n in map(self.side, SIDES)]
        for source, target, language in zip(*sides, self.languages.tolist(), strict=True):
            yield Example(source, target, language)

    def side(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        return getattr(self, name), getattr(self, f"{name}_lengths")

    def take(self, order: np.ndarray) -> "Examples":
        """Returns the examples with these numbers, int64[m], in this order."""
        sides = map(self.side, SIDES)
        ids = [gather(tokens, (np.cumsum(n) - n)[order], n[order]) for tokens, n in sides]
        return self._with(ids, order)

    def part(self, begin: int, end: int) -> "Examples":
        """Returns the examples from number `begin` to before number `end`, without copying the ids."""
        ids = []
        for tokens, lengths in map(self.side, SIDES):
            first = int(lengths[:begin].sum())
            ids.append(tokens[first : first + int(lengths[begin:end].sum())])
        return self._with(ids, slice(begin, end))

    def _with(self, ids: Sequence[np.ndarray], place: np.ndarray | slice) -> "Examples":
        lengths = (self.source_lengths[place], self.target_lengths[place])
        return Examples(ids[0], ids[1], *lengths, self.languages[place])


def gather(flat: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns the pieces flat[start : start + length], joined. `starts` and `lengths` are int64[n]."""
    offsets = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    return flat[offsets + np.arange(len(offsets))]
