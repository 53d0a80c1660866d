"""Augmentation: in training, some sentence pairs are changed to what people type.

The shards keep the text of the corpus. An example is changed when it is read. The result depends on the
seed, the number of the draw and the rates alone, so a run that resumes, or goes on with other hosts, sees
the same examples. An example that would not fit its row stays as it is.
"""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from gshard_nmt.data.batching.shuffle import key_of
from gshard_nmt.data.config import Data
from gshard_nmt.data.sets.examples import Example, Examples
from gshard_nmt.data.sets.manifest import VOCABULARIES
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.data.text.protection import encode, symbol, take_out
from gshard_nmt.data.text.variations import VARIATIONS, Pair
from gshard_nmt.data.text.vocabulary import EOS, PLACEHOLDER, SPECIALS, Vocabulary
from gshard_nmt.errors import UserError

_CHOICE = 5
"""A number that makes the keys of this module differ from other keys of the same seed."""
_MARKS = frozenset("%<{$@/\\#~_&")
"""Nearly each text with something to protect has a piece with one of these, or a byte."""

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
        # The languages of an example are known by its number of a language and its tags.
        self._languages = {
            (
                data.languages(config).index(p.language),
                *source.tags(p.source, p.target, p.subset),
            ): (
                p.source,
                p.target,
            )
            for p in data.pairs_of(config)
        }
        self._is_tag = [
            np.array([key[0] == "control" or i < SPECIALS for i, key in enumerate(v.keys())])
            for v in self._vocabularies
        ]
        self._has_mark = np.array(
            [not _MARKS.isdisjoint(piece) for piece in source.pieces(range(source.size))]
        )
        self._has_mark |= source.byte_values >= 0
        symbols = {name for name in ("placeholders", "copies") if config.augmentation.get(name)}
        if symbols and None in map(symbol, self._vocabularies):
            raise UserError(
                f"Data.augmentation has {sorted(symbols)}, but the vocabularies of {data.folder} have no "
                f"symbol {PLACEHOLDER}. Leave these out, or prepare the data with new vocabularies.",
                ["Data.augmentation"],
            )

    def change_all(self, examples: Examples, keys: np.ndarray) -> Examples:
        """Returns examples of which some are changed. `keys` is uint64[n], see `streams.Resample`."""
        chosen = self._choose(examples, keys)
        numbers = np.flatnonzero(chosen.any(axis=1))
        if not len(numbers):
            return examples
        before = list(examples.take(numbers).each())
        bodies = [[self._parts(e, side)[1] for e in before] for side in range(2)]
        texts = [v.decode(ids) for v, ids in zip(self._vocabularies, bodies, strict=True)]
        order = np.arange(len(examples))
        changed: list[Example] = []
        for number, example, *text in zip(numbers.tolist(), before, *texts, strict=True):
            names = [
                name
                for name, is_chosen in zip(VARIATIONS, chosen[number], strict=True)
                if is_chosen
            ]
            after = self._change(example, text, names, int(keys[number]))
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

    def _parts(self, example: Example, side: int) -> tuple[list[int], list[int]]:
        """Returns the tags that the ids of a side begin with, and the ids between them and EOS."""
        ids = (example.source, example.target)[side]
        is_text = np.flatnonzero(~self._is_tag[side][ids])
        first = int(is_text[0]) if len(is_text) else len(ids) - 1
        return ids[:first].tolist(), ids[first:-1].tolist()

    def _change(
        self, example: Example, texts: Sequence[str], names: Sequence[str], key: int
    ) -> Example | None:
        """Returns an example with other text; None if it has none or should keep its own."""
        tags, bodies = zip(*(self._parts(example, side) for side in range(2)), strict=True)
        languages = self._languages.get((example.language, *tags[0]))
        # A symbol inside the text, such as that of documents, has no place in the new text.
        if languages is None or any(self._is_tag[side][bodies[side]].any() for side in range(2)):
            return None
        pair = before = Pair(texts[0], texts[1], languages)
        numbers = random.Random(f"{self._seed} {key}")
        done = []
        for name in names:
            if (varied := VARIATIONS[name](pair, numbers)) != pair:
                pair = varied
                done.append(name)
        if pair == before:
            return None
        sides = [[*t, *ids, EOS] for t, ids in zip(tags, self._encode(pair), strict=True)]
        if any(len(ids) > length for ids, length in zip(sides, self._lengths, strict=True)):
            return None
        if self._record is not None:
            source, target = (
                v.decode([ids])[0] for v, ids in zip(self._vocabularies, sides, strict=True)
            )
            self._record[source, target] = {"augmentation": done, "before": list(texts)}
        arrays = [np.array(ids, example.source.dtype) for ids in sides]
        return Example(arrays[0], arrays[1], example.language)

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
