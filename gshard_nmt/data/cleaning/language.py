"""The filter of wrong languages. It needs the package py3langid, which contains its model."""

import functools
from typing import Any

import numpy as np

from gshard_nmt.data.cleaning import registry
from gshard_nmt.data.cleaning.block import About, Block, Side
from gshard_nmt.data.cleaning.registry import Mask
from gshard_nmt.errors import UserError

_LEAST_LETTERS = 20
"""The language of shorter lines cannot be told well."""
_SAME_NAME = {"nb": "no", "fil": "tl", "iw": "he", "sh": "hr"}
_NO_LANGUAGE = "zxx"


@registry.filter
def language(rows: Block, about: About) -> Mask:
    """Drops a pair if a side of 20 letters or more is surely in another language than its own.

    The identifier must give another language at least the probability
    `Cleaning.language_confidence`, and the side's own language at most the rest. Languages that it does
    not know are not checked.
    """
    mask = np.ones(len(rows), bool)
    for side in rows.sides:
        mask &= _is_own_language(side, mask, about.settings.language_confidence)
    return mask


def _is_own_language(side: Side, rows: Mask, confidence: float) -> Mask:
    """Returns bool[line]; lines outside `rows` are true."""
    mask = np.ones(len(side.lines), bool)
    name = label_of(side.language)
    if name not in identifier().labels:
        return mask
    for row in np.flatnonzero(rows & (side.letters >= _LEAST_LETTERS)).tolist():
        ranked = identifier().rank(side.lines[row])
        best, probability = ranked[0]
        is_other = best not in (name, _NO_LANGUAGE) and probability >= confidence
        mask[row] = not is_other or dict(ranked)[name] > 1 - confidence
    return mask


def label_of(language: str) -> str:
    """Returns the name that the identifier has for a language, whether it knows it or not."""
    name = language.split("-")[0]
    return _SAME_NAME.get(name, name)


@functools.cache
def identifier() -> Any:
    """Returns the identifier of languages.

    Raises:
      UserError: the package is not installed.
    """
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise UserError(
            "Cleaning.filters has 'language', which needs the package py3langid. Install it: "
            "pip install 'gshard-nmt[langid]'.",
            ["Cleaning.filters"],
        ) from None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
