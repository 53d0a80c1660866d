"""Subword sampling: in training, the same words are split in other ways each time.

A model that sees several splits of a word is more robust to rare words and misspellings (Kudo 2018,
"Subword Regularization"; Provilkov et al. 2020, "BPE-Dropout").

The shards keep the best split. The text of its pieces is split anew when an example is read. The result
depends on the seed, the number of the draw and the side alone. So a run that resumes, or goes on with
other hosts, sees the same splits. SentencePiece has samplers too, but they share one random generator for
each thread, so the order of the calls would matter. These samplers have the same distributions.
"""

import bisect
import functools
import heapq
import itertools
import math
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from gshard_nmt.data.config import Data
from gshard_nmt.data.sets.examples import Example, Examples
from gshard_nmt.data.sets.manifest import VOCABULARIES
from gshard_nmt.data.text.vocabulary import SPACE, Vocabulary
from gshard_nmt.errors import UserError

_CACHED = 1 << 14
_LONGEST_CACHED = 20
"""The length of the longest word that is cached. The splits of a long one take much memory."""
_WORD = re.compile(f"{SPACE}?[^{SPACE}]*")

Random = Callable[[], float]
"""Returns the next random number, at least 0 and below 1."""


class SubwordSampling:
    """Splits the words of examples anew, of the source alone if there is one vocabulary."""

    def __init__(self, vocabularies: Sequence[Vocabulary], config: Data) -> None:
        self._splitters = [_splitter(v, config.subword_sampling) for v in vocabularies]
        self._lengths = (config.source_length, config.target_length)
        self._seed = config.seed

    @classmethod
    def of(cls, folder: Path, config: Data) -> "SubwordSampling | None":
        if not config.subword_sampling:
            return None
        names = VOCABULARIES if config.subword_sampling_target else VOCABULARIES[:1]
        return cls([Vocabulary.load(folder / name) for name in names], config)

    def resample_all(self, examples: Examples, keys: np.ndarray) -> Examples:
        return Examples.of(map(self.resample, examples.each(), keys.tolist()))

    def resample(self, example: Example, key: int) -> Example:
        """Returns an example of the same text with other pieces. Equal keys give equal results.

        Special ids, tags, bytes and symbols of a user stay. A side that would not fit into its row
        stays as it is.
        """
        sides = [example.source, example.target]
        for side, splitter in enumerate(self._splitters):
            # The seed of Python's generator may have any number of bits, and its numbers never change.
            numbers = random.Random((self._seed << 64 | key) << 1 | side)
            ids = splitter.resample(sides[side].tolist(), numbers.random)
            if len(ids) <= self._lengths[side]:
                sides[side] = np.array(ids, sides[side].dtype)
        return Example(sides[0], sides[1], example.language)


class Splitter:
    """Splits words into the pieces of a vocabulary, at random. A subclass has the distribution."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.pieces = vocabulary.subwords
        self._texts = {i: text for text, (i, _) in self.pieces.items()}

    def resample(self, ids: Sequence[int], random: Random) -> list[int]:
        """Returns ids of the same text. Ids that are no piece of text stay where they are."""
        result: list[int] = []
        for is_text, run in itertools.groupby(ids, self._texts.__contains__):
            if not is_text:
                result += run
                continue
            text = "".join([self._texts[i] for i in run])
            for word in _WORD.findall(text)[:-1]:
                result += self.split(word, random)
        return result

    def split(self, word: str, random: Random) -> list[int]:
        """Returns the ids of one split of a word."""
        raise NotImplementedError


_Ends = tuple[tuple[float, ...], tuple[int, ...], tuple[int, ...]]


class UnigramSampling(Splitter):
    """Draws a split with the pieces x_1 ... x_n in proportion to (p(x_1) ... p(x_n)) ** alpha.

    It is forward filtering and backward sampling over the lattice of all splits (Kudo 2018, section 3.2,
    with l = infinity).
    """

    def __init__(self, vocabulary: Vocabulary, alpha: float) -> None:
        super().__init__(vocabulary)
        # The beginnings of pieces are keys too, so the search for pieces ends early.
        self._weights: dict[str, tuple[int, float] | None] = {
            text[:end]: None for text in self.pieces for end in range(1, len(text))
        }
        self._weights |= {text: (i, alpha * score) for text, (i, score) in self.pieces.items()}
        self._cached = functools.lru_cache(_CACHED)(self._lattice)

    def split(self, word: str, random: Random) -> list[int]:
        lattice = self._cached(word) if len(word) <= _LONGEST_CACHED else self._lattice(word)
        end, ids = len(word), []
        while end:
            sums, starts, pieces = lattice[end]
            choice = min(bisect.bisect_right(sums, random() * sums[-1]), len(sums) - 1)
            ids.append(pieces[choice])
            end = starts[choice]
        return ids[::-1]

    def _lattice(self, word: str) -> list[_Ends]:
        """Returns for each end the pieces that end there: sums of weights, starts, and ids.

        The weight of a piece is the sum of the weights of all splits up to the end that it ends.
        """
        arcs: list[list[tuple[float, int, int]]] = [[] for _ in range(len(word) + 1)]
        lattice: list[_Ends] = []
        for start in range(len(word) + 1):
            logs = [log for log, _, _ in arcs[start]]
            largest = max(logs, default=0.0)
            sums = tuple(itertools.accumulate([math.exp(log - largest) for log in logs]))
            starts = tuple([arc[1] for arc in arcs[start]])
            lattice.append((sums, starts, tuple([arc[2] for arc in arcs[start]])))
            if start and not sums:
                continue  # no split has an end here
            total = largest + math.log(sums[-1]) if sums else 0.0
            for end in range(start + 1, len(word) + 1):
                text = word[start:end]
                if text not in self._weights:
                    break
                if piece := self._weights[text]:
                    arcs[end].append((total + piece[1], start, piece[0]))
        return lattice


class BpeDropout(Splitter):
    """Merges the pieces of a word as BPE does, but leaves out each merge with a probability.

    As in SentencePiece, a merge that is left out does not come back, unless a neighbor changes.
    """

    def __init__(self, vocabulary: Vocabulary, dropout: float) -> None:
        super().__init__(vocabulary)
        self._log_keep = math.log1p(-dropout) if dropout < 1 else -math.inf
        self._cached = functools.lru_cache(_CACHED)(self._merge_all)

    def split(self, word: str, random: Random) -> list[int]:
        # The number of merges until the next one that is left out has a geometric distribution. So a
        # word with all its merges needs one random number.
        until = self._merges_to_keep(random)
        ids, merges = (self._cached if len(word) <= _LONGEST_CACHED else self._merge_all)(word)
        return list(ids) if until >= merges else self._merge(word, until, random)[0]

    def _merges_to_keep(self, random: Random) -> int:
        return int(math.log(1 - random()) / self._log_keep)

    def _merge_all(self, word: str) -> tuple[list[int], int]:
        return self._merge(word, len(word), lambda: 0.0)

    def _merge(self, word: str, until: int, random: Random) -> tuple[list[int], int]:
        """Returns a split, and the number of possible merges. The first `until` are done."""
        symbols = list(word)
        before, after = list(range(-1, len(word) - 1)), list(range(1, len(word) + 1))
        size, piece_of = len(word), self.pieces.get
        agenda = [
            (-piece[1], left, left + 1, text)
            for left in range(size - 1)
            if (piece := piece_of(text := word[left : left + 2]))
        ]
        heapq.heapify(agenda)
        merges = 0
        while agenda:
            _, left, right, text = heapq.heappop(agenda)
            # One of the two may have been merged with another symbol since.
            if after[left] != right or symbols[left] + symbols[right] != text:
                continue
            merges += 1
            if until == 0:
                until = self._merges_to_keep(random)
                continue
            until -= 1
            symbols[left], symbols[right] = text, ""
            after[left], after[right] = after[right], -1
            # Python calls functions slowly, so the two new neighbours have equal code.
            if (other := before[left]) >= 0:
                pair = symbols[other] + text
                if piece := piece_of(pair):
                    heapq.heappush(agenda, (-piece[1], other, left, pair))
            if (other := after[left]) < size:
                before[other] = left
                pair = text + symbols[other]
                if piece := piece_of(pair):
                    heapq.heappush(agenda, (-piece[1], left, other, pair))
        return [self.pieces[symbol][0] for symbol in symbols if symbol], merges


def _splitter(vocabulary: Vocabulary, strength: float) -> Splitter:
    kinds = {"bpe": BpeDropout, "unigram": UnigramSampling}
    if vocabulary.algorithm not in kinds:
        raise UserError(
            f"the vocabulary is a SentencePiece model of type {vocabulary.algorithm!r}, but "
            'Data.subword_sampling needs "bpe" or "unigram". Set Data.subword_sampling = 0.',
            ["Data.subword_sampling"],
        )
    return kinds[vocabulary.algorithm](vocabulary, strength)
