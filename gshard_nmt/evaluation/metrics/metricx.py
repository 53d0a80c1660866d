"""MetricX-24: the mean error that a language model predicts, from 0 (none) to 25.

The texts and their lengths are those of the prediction script of google-research/metricx.
"""

import functools
import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PACKAGES = ("metricx24", "torch", "transformers")

_MOST_PIECES = 1536
"""Longer inputs are cut. The models were trained with this length."""


def missing_packages() -> list[str]:
    """Returns the names of the packages that MetricX needs and that are not installed."""
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    sources: Sequence[str],
    folder: Path,
) -> float:
    """Returns the mean over the sentences and, if there are several, over the references.

    Args:
      hypotheses: the translation of each sentence.
      references: one or several complete references.
      sources: the source of each sentence.
      folder: the folder of the model and of its tokenizer.
    """
    predict = _predictor(folder)
    errors = [
        predict(f"source: {source} candidate: {hypothesis} reference: {reference}")
        for lines in references
        for source, hypothesis, reference in zip(sources, hypotheses, lines, strict=True)
    ]
    return sum(errors) / len(errors)


@functools.lru_cache(maxsize=1)
def _predictor(folder: Path) -> Any:
    """Loads a model. Returns the function that predicts the error of a text."""
    models, transformers, torch = map(
        importlib.import_module, ("metricx24.models", "transformers", "torch")
    )
    # Nothing is downloaded.
    local = {"local_files_only": True}
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **local)
    model = models.MT5ForRegression.from_pretrained(str(folder), **local)
    model.eval()

    def predict(text: str) -> float:
        ids = tokenizer(text, max_length=_MOST_PIECES, truncation=True)["input_ids"]
        # The models were trained without the end of sentence.
        inputs = torch.tensor([ids[:-1]])
        with torch.no_grad():
            output = model(input_ids=inputs, attention_mask=torch.ones_like(inputs))
        return float(output.predictions[0])

    return predict
