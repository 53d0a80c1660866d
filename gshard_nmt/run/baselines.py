"""Bilingual baselines: their sizes, and the files that say what each was and how it ended.

baselines.json            the multilingual run, and the tokens that it saw of each language
LANGUAGE/                 the run folder of the model
LANGUAGE/baseline.json    its size, its budget, and why its training ended
earlier/LANGUAGE-1/ ...   models of this language with other data or settings

A model has a key: a hash of its data, its settings and the version of this package. If the key of a
finished model is the same as before, the model is not trained again.

GShard section 4.2 (footnote 9) tunes its baselines "in a Transformer-Big or Transformer-Base layout, for
high or low-resourced languages respectively". The paper names no limit between the two. Ours are
`SIZE_RULE`, and below Base we have a third size for the least text.
"""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gshard_nmt
from gshard_nmt import json_shape
from gshard_nmt.data.sets.manifest import VOCABULARIES
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.errors import UserError, did_you_mean
from gshard_nmt.json_shape import anything, fields, mapping_of, number, text, whole
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints
from gshard_nmt.run.folder import RunFolder, hash_of_manifest
from gshard_nmt.settings.config import Config, Train, as_gin

RECORD = "baseline.json"

AS_CONFIG = "config"
"""The name of the size that the config has."""

SIZE_RULE = "small:0,base:100000,big:2000000"
"""The sizes, each with the number of training pairs from which a language gets it."""

_DIMENSIONS = (
    "encoder_layers",
    "decoder_layers",
    "model_dim",
    "hidden_dim",
    "heads",
    "head_dim",
    "experts",
)
# fmt: off
SIZES: Mapping[str, Mapping[str, int]] = {
    "small": dict(zip(_DIMENSIONS, (2, 2, 128, 512, 4, 32, 0), strict=True)),
    "base": dict(zip(_DIMENSIONS, (6, 6, 512, 2048, 8, 64, 0), strict=True)),
    "big": dict(zip(_DIMENSIONS, (6, 6, 1024, 8192, 16, 64, 0), strict=True)),
}
# fmt: on
"""The settings of `Model` of each size. "base" is Transformer-Base (Vaswani et al. 2017). "big" has the
H of GShard's own models, as in configs/experiments/bilingual_big.gin."""

_LIMITS = ("steps", "tokens", "patience")
_NOT_IN_KEY = (*_LIMITS, "log_every", "checkpoint_every", "keep_last", "keep_every")
"""The settings of `Train` that do not make a model another model. With a larger limit it trains on."""

_RECORD = fields(
    {
        **dict.fromkeys(("kind", "language", "size", "vocabulary", "ended", "key"), text()),
        **dict.fromkeys(("weights", "steps", "tokens", "train_pairs"), whole()),
        "seconds": number(),
        "limits": mapping_of(anything()),
    },
    {
        **dict.fromkeys(("dropout", "dev_bleu"), anything()),
        **dict.fromkeys(("search", "cooldown"), mapping_of(anything())),
    },
)
"""The shape of baseline.json."""


def parse_sizes(rule: str) -> list[tuple[str, int]]:
    """Reads --sizes, such as `SIZE_RULE`. The numbers of training pairs rise, and the first is 0."""
    remedy = f"Give the sizes as in {SIZE_RULE}, or one size for all languages."
    names = (*SIZES, AS_CONFIG)
    sizes = []
    for entry in rule.split(","):
        name, _, least = entry.strip().partition(":")
        if name not in names:
            raise UserError(
                f"--sizes {rule}: there is no size {name!r}{did_you_mean(name, names)} The sizes are "
                f"{', '.join(names)}; choose some of these."
            )
        if least and not least.isdecimal():
            raise UserError(
                f"--sizes {rule}: {least!r} is not a number of training pairs. {remedy}"
            )
        sizes.append((name, int(least or 0)))
    limits = [limit for _, limit in sizes]
    if limits[0] or limits != sorted(set(limits)) or len(dict(sizes)) < len(sizes):
        raise UserError(
            f"--sizes {rule}: the numbers of training pairs must begin with 0 and rise, and each size "
            f"has one number. {remedy}"
        )
    return sizes


def size_of(train_pairs: int, sizes: Sequence[tuple[str, int]]) -> str:
    return next(name for name, least in reversed(sizes) if train_pairs >= least)


def content_key(config: Config, prepared: PreparedData, kind: str) -> str:
    """Returns a hash of everything that decides what a bilingual model becomes, as hex digits.

    These are the text of its own language, the vocabularies, the settings, and the version of this
    package, not the text of other languages. A model of one `kind`, "converged" or "budget", never goes
    on as the other.
    """
    train = {
        field.name: getattr(config.train, field.name)
        for field in dataclasses.fields(Train)
        if field.name not in _NOT_IN_KEY
    }
    data: Any = hash_of_manifest(prepared.manifest)
    if checksums := prepared.manifest.get("checksums"):
        folders = {pair.folder for pair in prepared.pairs_of(config.data)}
        data = {
            name: digest
            for name, digest in checksums.items()
            if name in VOCABULARIES or name.partition("/")[0] in folders
        }
    settings = as_gin([config.model, config.data, config.optimizer, config.decode])
    content = {
        "version": gshard_nmt.__version__,
        "kind": kind,
        # Keys from before this setting existed stay valid.
        "settings": settings.replace("Model.matmul_precision = 'auto'\n", ""),
        "train": train,
        "data": data,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def limits_of(config: Config, minutes: float) -> dict[str, float]:
    return {name: getattr(config.train, name) for name in _LIMITS} | {"minutes": minutes}


def read_record(folder: Path) -> dict[str, Any] | None:
    file = folder / RECORD
    if not file.exists():
        return None
    return dict(json_shape.read(file, _RECORD, "Remove it; gshard-train writes it again."))


def outcome(folder: Path, config: Config) -> dict[str, Any]:
    """Returns the entries of baseline.json about how far a run has come.

    "ended" is "patience", "tokens" or "steps" if this limit of the config holds, otherwise "minutes".
    """
    run, train = RunFolder(folder), config.train
    budget, patience = run.budget(), patience_of(run)
    tokens = sum(budget.get("tokens_by_language", {}).values())
    steps = budget.get("steps", 0)
    reasons = {
        "patience": train.patience and patience.get("validations", 0) >= train.patience,
        "tokens": train.tokens and tokens >= train.tokens,
        "steps": steps >= train.steps,
    }
    is_bleu = str(patience.get("metric", "")).startswith("dev_bleu")
    return {
        "weights": budget.get("parameters", 0),
        "steps": steps,
        "tokens": tokens,
        "seconds": budget.get("seconds", 0.0),
        "dev_bleu": patience.get("best") if is_bleu else None,
        "ended": next((reason for reason, holds in reasons.items() if holds), "minutes"),
    }


def patience_of(run: RunFolder) -> dict[str, Any]:
    """Returns the state of `Patience` in the newest checkpoint of a run; {} if there is none."""
    newest = Checkpoints(run.checkpoints).newest()
    return dict((newest.facts.get("patience") if newest else None) or {})


def put_aside(workdir: Path, language: str) -> None:
    """Moves the run folder LANGUAGE/ to earlier/, in one step."""
    folder = workdir / "earlier"
    folder.mkdir(exist_ok=True)
    names = (folder / f"{language}-{count}" for count in itertools.count(1))
    (workdir / language).rename(next(name for name in names if not name.exists()))
