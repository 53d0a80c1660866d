"""Overlap of the training text with dev and test text.

Sentences are compared by `normal_form.sentence_form`: case, spaces, punctuation, digits and
placeholders do not matter. The held-out text is a sorted array of hashes, 8 bytes each, so it is small
even for many languages. The hash of a side contains its language, so the arrays of several language
pairs can be merged. Then a pair of one language is also compared with the English test text of others.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from gshard_nmt.data.cleaning import registry
from gshard_nmt.data.cleaning.block import About, Block
from gshard_nmt.data.cleaning.hashes import Hashes, hashes
from gshard_nmt.data.cleaning.registry import Mask
from gshard_nmt.data.text import normal_form


@registry.filter
def overlap(rows: Block, about: About) -> Mask:
    """Drops a pair if its sides, or one long side, are in the dev or test text."""
    if not len(about.held_out):
        return np.ones(len(rows), bool)
    sides = [hashes(side.forms, side.language) for side in rows.sides]
    is_held_out = _contains(about.held_out, _pairs(*sides))
    for side in sides:
        is_held_out |= _contains(about.held_out, side)
    return ~is_held_out


def held_out(
    rows: Sequence[Sequence[str | float | None]], source: str, target: str, words: int
) -> Hashes:
    """Returns the hashes of dev or test text, for `About.held_out`.

    Args:
      rows: the sentence pairs.
      source, target: the languages of their sides.
      words: `Cleaning.overlap_words`; a side with at least this number of words counts alone.

    Returns:
      uint64[hashes], sorted, each once.
    """
    # A side without letters, such as a number, is no leak.
    sides, long = [], []
    letters = np.ones(len(rows), bool)
    for column, language in enumerate((source, target)):
        lines = [str(row[column]) for row in rows]
        forms = [normal_form.sentence_form(line) for line in lines]
        letters &= np.fromiter(map(bool, forms), bool, len(rows))
        sides.append(hashes(forms, language))
        long.append(
            np.fromiter((len(normal_form.words(x)) >= words for x in lines), bool, len(rows))
        )
    alone = [side[mask] for side, mask in zip(sides, long, strict=True)]
    return merge([_pairs(*sides)[letters], *alone])


def merge(parts: Iterable[Hashes]) -> Hashes:
    """Returns the union of several arrays of hashes, sorted."""
    return np.unique(np.concatenate([np.zeros(0, np.uint64), *parts]))


def _pairs(first: Hashes, second: Hashes) -> Hashes:
    """Returns the hash of each pair. The order of the two sides does not matter."""
    return (first + second) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(0xD1B54A32D192ED03)


def _contains(ordered: Hashes, values: Hashes) -> NDArray[np.bool_]:
    places = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return ordered[places] == values
