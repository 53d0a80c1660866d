"""The files of bilingual baselines: what each model was, how it ended, and where its run folder is.

baselines.json            the multilingual run, and the tokens that it saw of each language
LANGUAGE/                 the run folder of the best model
LANGUAGE/baseline.json    its size, its budget, and why its training ended
LANGUAGE/search.json      all candidates of the search
candidates/LANGUAGE/NAME/ the run folders of the other candidates, with a baseline.json each

A candidate has a key: a hash of its data, its settings and the version of this package. If the key of a
finished candidate is the same as before, the candidate is not trained again.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gshard_nmt
from gshard_nmt import json_shape
from gshard_nmt.data.sets.manifest import VOCABULARIES
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.json_shape import anything, fields, list_of, mapping_of, number, text, whole
from gshard_nmt.run.baseline_search import Candidate
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints
from gshard_nmt.run.folder import CANDIDATES, RunFolder
from gshard_nmt.run.identity import hash_of_manifest
from gshard_nmt.settings.config import Config, Train, as_gin

RECORD = "baseline.json"
SEARCH = "search.json"

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

_SEARCH = fields({"candidates": list_of(_RECORD)})
"""The shape of search.json."""


def content_key(config: Config, prepared: PreparedData, kind: str) -> str:
    """Returns a hash of everything that decides what a bilingual model becomes, as hex digits.

    These are the text of its own language, the vocabularies, the settings, and the version of this
    package. The text of other languages in the same prepared data does not count.

    Args:
      config: the config of the model; Data.languages names its language.
      prepared: its prepared data.
      kind: "converged" or "budget". A model of one kind never goes on as the other.
    """
    train = {
        field.name: getattr(config.train, field.name)
        for field in dataclasses.fields(Train)
        if field.name not in _NOT_IN_KEY
    }
    content = {
        "version": gshard_nmt.__version__,
        "kind": kind,
        "settings": as_gin([config.model, config.data, config.optimizer, config.decode]),
        "train": train,
        "data": _data_of(config, prepared),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _data_of(config: Config, prepared: PreparedData) -> Any:
    """Returns what identifies the prepared data of the languages of a config, as a JSON value."""
    checksums = prepared.manifest.get("checksums")
    if not checksums:
        return hash_of_manifest(prepared.manifest)
    folders = {pair.folder for pair in prepared.pairs_of(config.data)}
    return {
        name: digest
        for name, digest in checksums.items()
        if name in VOCABULARIES or name.partition("/")[0] in folders
    }


def limits_of(config: Config, minutes: float) -> dict[str, float]:
    """Returns the limits of a model by name. A finished model whose limits have changed trains on."""
    return {name: getattr(config.train, name) for name in _LIMITS} | {"minutes": minutes}


def read_record(folder: Path) -> dict[str, Any] | None:
    """Returns the contents of baseline.json in a run folder; None if there is none."""
    return _read(folder / RECORD, _RECORD)


def read_search(folder: Path) -> list[dict[str, Any]]:
    """Returns the records of all candidates in search.json of a folder; [] if there is none."""
    search = _read(folder / SEARCH, _SEARCH)
    return [dict(record) for record in search["candidates"]] if search else []


def searched_score(record: Mapping[str, Any]) -> float | None:
    """Returns the dev BLEU of a candidate that the search compares: that before its cooldown."""
    score = record.get("cooldown", {}).get("dev_bleu_before", record["dev_bleu"])
    return None if score is None else float(score)


def write_search(folder: Path, records: list[dict[str, Any]]) -> None:
    """Writes search.json, the records of the candidates in the order of the search."""
    RunFolder(folder).write_json(SEARCH, {"candidates": records})


def _read(file: Path, shape: json_shape.Shape) -> dict[str, Any] | None:
    if not file.exists():
        return None
    return dict(json_shape.read(file, shape, "Remove it; gshard-train writes it again."))


def outcome(folder: Path, config: Config) -> dict[str, Any]:
    """Returns how far the training of a run folder has come, and why it ended.

    Returns:
      The entries "weights", "steps", "tokens", "seconds", "dev_bleu" and "ended" of baseline.json.
      "ended" is "patience", "tokens" or "steps" if this limit of the config holds, otherwise "minutes".
    """
    run, train = RunFolder(folder), config.train
    budget = run.budget()
    patience = patience_of(run)
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


def candidate_folder(
    workdir: Path, language: str, name: str, key: str, prepared: PreparedData
) -> Path:
    """Returns the run folder of a candidate, which may not exist yet.

    It is LANGUAGE/ if this candidate is the best model of an earlier search. An unfinished run on other
    prepared data cannot be resumed. It is left as it is, and the candidate gets another folder.

    Args:
      workdir: the folder of all baselines.
      language: BCP 47 tag.
      name: see `folder_name`.
      key: see `content_key`.
      prepared: the prepared data of the candidate.
    """
    best = workdir / language
    record = read_record(best)
    if record and record["key"] == key:
        return best
    first = workdir / CANDIDATES / language / name
    folder, attempt = first, 1
    while not _can_be_resumed(folder, prepared):
        attempt += 1
        folder = first.with_name(f"{first.name}-{attempt}")
    return folder


def folder_name(candidate: Candidate, key: str) -> str:
    """Returns the name of the run folder of a candidate. Another key gives another folder."""
    return f"{candidate.name}-{key[:8]}"


def _can_be_resumed(folder: Path, prepared: PreparedData) -> bool:
    """Returns whether there is no run in a folder, a finished one, or one of this prepared data."""
    if not (folder / "data.json").exists() or read_record(folder) is not None:
        return True
    return RunFolder(folder).identity()["data"] == hash_of_manifest(prepared.manifest)


def put_aside(workdir: Path, language: str) -> None:
    """Moves the run folder LANGUAGE/ to the candidates. Does nothing if there is none."""
    folder = workdir / language
    if not folder.exists():
        return
    name, record = "earlier", read_record(folder)
    if record:
        candidate = Candidate(record["size"], record.get("dropout"), record["vocabulary"])
        name = folder_name(candidate, record["key"])
    aside = workdir / CANDIDATES / language
    aside.mkdir(parents=True, exist_ok=True)
    target, count = aside / name, 1
    while target.exists():
        count += 1
        target = aside / f"{name}-{count}"
    folder.rename(target)


def put_in_place(workdir: Path, language: str, folder: Path) -> Path:
    """Moves the run folder of a candidate to LANGUAGE/, and returns that folder.

    The folder that was there becomes a candidate again. If this is killed in between, LANGUAGE/ is
    missing, and the next start moves the folder.
    """
    place = workdir / language
    if folder != place:
        put_aside(workdir, language)
        folder.rename(place)
    return place
