"""Bilingual baselines: their sizes, and the file that says what each was and how it ended.

baselines.json            the multilingual run, and the tokens that it saw of each language
LANGUAGE/                 the run folder of the model
LANGUAGE/baseline.json    its size, its budget, and why its training ended

GShard section 4.2 (footnote 9) tunes its baselines "in a Transformer-Big or Transformer-Base layout, for
high or low-resourced languages respectively". The paper names no limit between the two. Ours are
`LEAST_PAIRS`, and below Base we have a third size for the least text.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gshard_nmt import json_shape
from gshard_nmt.json_shape import anything, fields, mapping_of, number, text, whole
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.config import Train

RECORD = "baseline.json"

BY_PAIRS, AS_CONFIG = "by_pairs", "config"
"""The values of --sizes besides the names of `SIZES`: by `LEAST_PAIRS`, or as the config says."""

LEAST_PAIRS = {"big": 2_000_000, "base": 100_000, "small": 0}
"""The number of training pairs from which a language gets a size."""

_DIMENSIONS = (
    "encoder_layers", "decoder_layers", "model_dim", "hidden_dim", "heads", "head_dim", "experts",
)  # fmt: skip
SIZES: Mapping[str, Mapping[str, int]] = {
    "small": dict(zip(_DIMENSIONS, (2, 2, 128, 512, 4, 32, 0), strict=True)),
    "base": dict(zip(_DIMENSIONS, (6, 6, 512, 2048, 8, 64, 0), strict=True)),
    "big": dict(zip(_DIMENSIONS, (6, 6, 1024, 8192, 16, 64, 0), strict=True)),
}
"""The settings of `Model` of each size. "base" is Transformer-Base (Vaswani et al. 2017). "big" has the
H of GShard's own models, as in configs/experiments/bilingual_big.gin."""

LIMITS = ("steps", "tokens", "patience")
"""The settings of `Train` that end a model. With a larger limit it trains on."""

_RECORD = fields(
    {
        **dict.fromkeys(("kind", "language", "size", "vocabulary", "ended"), text()),
        **dict.fromkeys(("weights", "steps", "tokens", "train_pairs"), whole()),
        "seconds": number(),
        "limits": mapping_of(anything()),
    }
)
"""The shape of baseline.json."""


def read_record(folder: Path) -> dict[str, Any] | None:
    remedy = "Remove it; gshard-train writes it again."
    return json_shape.read_if_there(folder / RECORD, _RECORD, remedy)


def outcome(run: RunFolder, train: Train) -> dict[str, Any]:
    """Returns the entries of baseline.json about how far a run has come.

    "ended" is "patience" or "tokens" if this limit holds, otherwise "steps".
    """
    budget, patience = run.budget(), patience_of(run)
    tokens = sum(budget.get("tokens_by_language", {}).values())
    ended = "tokens" if train.tokens and tokens >= train.tokens else "steps"
    if train.patience and patience.get("validations", 0) >= train.patience:
        ended = "patience"
    is_bleu = str(patience.get("metric", "")).startswith("dev_bleu")
    return {
        "weights": budget.get("parameters", 0),
        "steps": budget.get("steps", 0),
        "tokens": tokens,
        "seconds": budget.get("seconds", 0.0),
        "dev_bleu": patience.get("best") if is_bleu else None,
        "ended": ended,
    }


def patience_of(run: RunFolder) -> dict[str, Any]:
    """Returns the state of `Patience` in the newest checkpoint of a run; {} if there is none."""
    newest = Checkpoints(run.checkpoints).newest()
    return dict((newest.facts.get("patience") if newest else None) or {})
