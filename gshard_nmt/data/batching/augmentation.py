"""Augmentation: in training, some sentence pairs are changed to what people type.

The shards keep the text of the corpus. An example is changed when it is read. The result depends on the
seed, the number of the draw and the rates alone. So a run that resumes, or goes on with other hosts, sees
the same examples. An example that would not fit its row stays as it is.
"""

import itertools
import random
from collections.abc import Container, Iterable, Sequence
from typing import Any

import numpy as np

from gshard_nmt.data.batching.shuffle import key_of
from gshard_nmt.data.config import Data
from gshard_nmt.data.sets.examples import Example, Examples
from gshard_nmt.data.sets.manifest import VOCABULARIES
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.data.text.protection import encode, symbol, take_out
from gshard_nmt.data.text.variations import VARIATIONS, Pair
from gshard_nmt.data.text.vocabulary import EOS, PLACEHOLDER, Vocabulary
from gshard_nmt.errors import UserError

_CHOICE = 5
"""A number that makes the keys of this module differ from other keys of the same seed."""
_MARKS = frozenset("`%<{$@/\\#~_&€£°→")
"""Nearly each text with something to protect has a piece with one of these, or an emoji."""
_EMOJI_BYTE = 0xF0
"""The first byte of most emoji, which have no pieces."""

_RECORDED = 1 << 18
"""The most changed examples whose texts are recorded: the last ones are shown."""

Record = dict[tuple[str, str], dict[str, Any]]
"""The two texts of each changed example -> its variations, and its texts before."""


class Augmentation:
    """Changes the text of examples at random, see `variations`."""

    def __init__(self, data: PreparedData, config: Data, record: Record | None = None) -> None:
        self._vocabularies = [Vocabulary.load(data.folder / name) for name in VOCABULARIES]
        self._rates = np.array([config.augmentation.get(name, 0) for name in VARIATIONS])
        self._lengths = (config.source_length, config.target_length)
        self._seed = config.seed
        self._record = record
        source = self._vocabularies[0]
        languages = data.languages(config)
        # The languages of an example are known by its number of a language and its tags.
        self._languages: dict[tuple[int, ...], tuple[str, str]] = {}
        for p in data.pairs_of(config):
            tags = source.tags(p.source, p.target, p.subset)
            self._languages[languages.index(p.language), *tags] = (p.source, p.target)
        self._tags = [
            frozenset(i for i, (kind, _) in enumerate(v.keys()) if kind in ("special", "control"))
            for v in self._vocabularies
        ]
        self._has_mark = source.byte_values == _EMOJI_BYTE
        marked = [i for piece, (i, _) in source.subwords.items() if not _MARKS.isdisjoint(piece)]
        self._has_mark[marked] = True
        symbols = {name for name in ("placeholders", "copies") if config.augmentation.get(name)}
        if symbols and None in map(symbol, self._vocabularies):
            raise UserError(
                f"Data.augmentation has {sorted(symbols)}, but the vocabularies of {data.folder} have no "
                f"symbol {PLACEHOLDER}. Leave these out, or prepare the data with new vocabularies.",
                ["Data.augmentation"],
            )

    def change_all(self, examples: Examples, keys: np.ndarray) -> Examples:
        """Returns examples of which some are changed, see `streams.Resample`."""
        chosen = self._choose(examples, keys)
        numbers = np.flatnonzero(chosen.any(axis=1))
        if not len(numbers):
            return examples
        order = np.arange(len(examples))
        changed: list[Example] = []
        for number, example in zip(numbers.tolist(), examples.take(numbers).each(), strict=True):
            names = itertools.compress(VARIATIONS, chosen[number])
            after = self._change(example, names, int(keys[number]))
            if after is not None:
                order[number] = len(examples) + len(changed)
                changed.append(after)
        return Examples.joined([examples, Examples.of(changed)]).take(order)

    def _choose(self, examples: Examples, keys: np.ndarray) -> np.ndarray:
        """Returns bool[n, variations], which variations each example gets."""
        drawn = key_of(self._seed, _CHOICE, keys[:, None], np.arange(len(self._rates)))
        chosen = drawn * 2.0**-64 < self._rates
        # Most texts have nothing to protect. That is seen in their ids, unless they are changed first.
        starts = np.cumsum(examples.source_lengths) - examples.source_lengths
        may_have = np.logical_or.reduceat(self._has_mark[examples.source], starts)
        column = list(VARIATIONS).index("placeholders")
        alone = chosen.sum(axis=1) == chosen[:, column]
        chosen[:, column] &= may_have | ~alone
        return chosen

    def _change(self, example: Example, names: Iterable[str], key: int) -> Example | None:
        """Returns an example with other text; None if it has none or should keep its own."""
        halves = (example.source.tolist(), example.target.tolist())
        split = [_split(ids, tags) for ids, tags in zip(halves, self._tags, strict=True)]
        (source_tags, source), (target_tags, target) = split
        languages = self._languages.get((example.language, *source_tags))
        # A symbol inside the text, such as that of documents, has no place in a new text.
        is_plain = self._tags[0].isdisjoint(source) and self._tags[1].isdisjoint(target)
        if languages is None or not is_plain:
            return None
        pair = before = Pair(*self._texts(source, target), languages)
        numbers = random.Random(f"{self._seed} {key}")
        done = []
        for name in names:
            if (varied := VARIATIONS[name](pair, numbers)) != pair:
                pair = varied
                done.append(name)
        if pair == before:
            return None
        ids = self._encode(pair)
        sides = ([*source_tags, *ids[0], EOS], [*target_tags, *ids[1], EOS])
        if any(len(ids) > length for ids, length in zip(sides, self._lengths, strict=True)):
            return None
        if self._record is not None:
            if len(self._record) >= _RECORDED:
                del self._record[next(iter(self._record))]
            self._record[self._texts(*sides)] = {"augmentation": done, "before": list(before.texts)}
        arrays = [np.array(ids, example.source.dtype) for ids in sides]
        return Example(arrays[0], arrays[1], example.language)

    def _texts(self, source: Sequence[int], target: Sequence[int]) -> tuple[str, str]:
        return self._vocabularies[0].decode([source])[0], self._vocabularies[1].decode([target])[0]

    def _encode(self, pair: Pair) -> list[list[int]]:
        """Returns the ids of both sides. Equal values have the numbers of the source."""
        cut = [take_out(t, s) for t, s in zip(pair.texts, pair.spans, strict=True)]
        values: list[str | None] = [*cut[0][1]]
        numbers = []
        for value in cut[1][1]:
            numbers.append(values.index(value) + 1)
            values[numbers[-1] - 1] = None
        orders = (range(1, len(values) + 1), numbers)
        return [
            encode(vocabulary, around, order, len(values))
            for vocabulary, (around, _), order in zip(self._vocabularies, cut, orders, strict=True)
        ]


def _split(ids: list[int], tags: Container[int]) -> tuple[list[int], list[int]]:
    """Returns the tags that a side begins with, and the ids between them and EOS."""
    first = next(place for place, token in enumerate(ids) if token not in tags or token == EOS)
    return ids[:first], ids[first:-1]
