"""`gshard-data translate`: a corpus of text and its translations by a model.

The translations of `news.en.gz` into French by a model are in these files:

    OUT/translations/en-fr/news-en.jsonl   all translations, in the format jsonl of gshard-decode
    OUT/translations/en-fr/news-en.json    what they were made of
    OUT/en-fr/train-news-en.tsv            the pairs that passed, with their scores
    OUT/fr-en/train-news-en--back.tsv      the same with --back_translation: the input is the target

So OUT is a corpus, and `gshard-data prepare --corpus CORPUS --corpus back=OUT` makes it a subset with a
name. `Data.subset_tags` gives its sources a tag (Caswell et al. 2019, arXiv 1906.06442).
"""

import collections
import contextlib
import dataclasses
import itertools
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from gshard_nmt import files, outputs
from gshard_nmt.data.cleaning.block import About
from gshard_nmt.data.cleaning.config import FILTERS, Cleaning
from gshard_nmt.data.cleaning.filters import clean
from gshard_nmt.data.reading.text_lines import without_compression
from gshard_nmt.data.sets.corpus import SentencePair
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.report.faults import loops

_BLOCK = 4096
_QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5)


class Files(NamedTuple):
    """The files of one input, and the languages of the source side and the target side of its pairs.

    With `back`, the input is the target side.
    """

    languages: tuple[str, str]
    back: bool
    decoded: Path
    facts: Path
    pairs: Path

    @classmethod
    def of_input(cls, out: Path, direction: tuple[str, str], file: Path, back: bool) -> Self:
        """Returns the files in the corpus folder `out`, for an input and the direction of the model.

        Their name is that of the input, with - for other signs.
        """
        name = re.sub(r"\W+", "-", without_compression(file.name)).strip("-") or "text"
        languages = (direction[1], direction[0]) if back else direction
        decoded = out / "translations" / "-".join(direction) / f"{name}.jsonl"
        # No other name has two dashes, and text from the other side may have this one.
        pairs = out / "-".join(languages) / f"train-{name}{'--back' * back}.tsv"
        return cls(languages, back, decoded, decoded.with_suffix(".json"), pairs)

    def holds(self, made_of: Mapping[str, str]) -> bool:
        """Returns whether the translations are there and were made of this.

        Raises:
          UserError: the files hold the translations of another input with the same name.
        """
        recorded: Any = None
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            recorded = json.loads(self.facts.read_text(encoding="utf-8"))["made_of"]
        if isinstance(recorded, dict) and recorded.get("file", made_of["file"]) != made_of["file"]:
            raise UserError(
                f"{self.decoded} has the translations of {recorded['file']}, which has the same name as "
                f"{made_of['file']}. Rename one of the inputs, or give another --out."
            )
        return self.decoded.is_file() and recorded == made_of

    def record(self, made_of: Mapping[str, str]) -> None:
        files.write_json(self.facts, {"made_of": dict(made_of)})


@dataclasses.dataclass
class Report:
    """How many translations passed and with which scores, and what each filter dropped."""

    lines: int = 0
    translations: int = 0
    passed: int = 0
    dropped: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    scores: collections.Counter[float] = dataclasses.field(default_factory=collections.Counter)


def translate_corpus(out: Files, min_score: float | None = None, max_ratio: float = 3.0) -> Report:
    """Writes the pairs of complete translations that pass the filters, and prints how many they are.

    Memory does not grow with the text. Raises UserError if no translation passes.
    """
    report = Report()
    out.pairs.parent.mkdir(parents=True, exist_ok=True)
    # Overlap with dev and test text is found by `prepare`.
    used = tuple(name for name in FILTERS if name != "overlap")
    filters = Cleaning(filters=used, ratio=max_ratio, minimum_score=min_score)
    about = About(*out.languages, settings=filters)
    with outputs.text_file(out.pairs) as file:
        # The names of the columns tell the reader which column is the score, whatever the text is.
        header = "\t".join((*out.languages, "score")) + "\n"
        candidates = _candidates(out, report)
        while rows := list(itertools.islice(candidates, _BLOCK)):
            cleaned = clean(rows, about)
            report.dropped += cleaned.removed
            report.passed += len(cleaned.rows)
            for row in cleaned.rows:
                file.write(f"{header}{row.source}\t{row.target}\t{row.score:.4f}\n")
                header = ""
        drops = ", ".join(f"{name} {number:,}" for name, number in report.dropped.most_common())
        if not report.passed:
            raise UserError(
                f"none of the {report.translations:,} translations in {out.decoded} passes the filters "
                f"({drops or 'the input is empty'}). Lower --min_score, raise --max_ratio, or train "
                "the model longer."
            )
    counts = [*report.scores.values()]
    below = np.quantile([*report.scores], _QUANTILES, weights=counts, method="inverted_cdf")
    scores = ", ".join(f"{q:.0%} below {s:.2f}" for q, s in zip(_QUANTILES, below, strict=True))
    sys.stdout.write(
        f"{report.lines:,} lines, {report.translations:,} translations; {report.passed:,} passed "
        f"({report.passed / report.translations:.1%}) and are in {out.pairs}\n"
        f"dropped by filter: {drops or 'none'}\n"
        f"scores: {scores}\n"
    )
    return report


def _candidates(out: Files, report: Report) -> Iterator[SentencePair]:
    """Yields the pairs of all translations, and counts them."""
    with out.decoded.open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            text = _in_one_cell(record["source"])
            report.lines += 1
            for translation in record["translations"]:
                report.translations += 1
                report.scores[round(translation["score"], 2)] += 1
                if loops(translation["text"]) > loops(text):
                    report.dropped["loop"] += 1
                    continue
                sides = (text, _in_one_cell(translation["text"]))
                yield SentencePair(*(sides[::-1] if out.back else sides), translation["score"])


def _in_one_cell(text: str) -> str:
    """A source can have a tab."""
    return text.replace("\t", " ").strip()
