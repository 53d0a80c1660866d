"""Hashes of everything that must stay the same in a run: vocabularies, prepared data, settings.

The run folder records a hash of each when the run begins. Every checkpoint has the same hashes, so a
checkpoint of another run is recognized.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gshard_nmt.data.sets.manifest import VOCABULARIES, checksum
from gshard_nmt.settings.config import Config, as_gin

if TYPE_CHECKING:
    from gshard_nmt.data.sets.shards import PreparedData


def identity_of(config: Config, data: "PreparedData") -> dict[str, str]:
    """Computes the SHA-256 of everything that must stay the same in a run, as hex digits.

    The names are "source.model", "target.model" (the files), "data" (the manifest of the prepared data)
    and "config" (the text of Model, Data and Optimizer).
    """
    return {
        **{name: checksum(data.folder / name) for name in VOCABULARIES},
        "data": hash_of_manifest(data.manifest),
        "config": hash_of_settings(config),
    }


def hash_of_settings(config: Config) -> str:
    text = as_gin([config.model, config.data, config.optimizer])
    return hashlib.sha256(text.encode()).hexdigest()


def hash_of_manifest(manifest: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of the contents of a manifest, in any order, as hex digits.

    `temperature` is left out: `prepare` only prints it, and training takes its own from the config.
    """
    contents = {name: value for name, value in manifest.items() if name != "temperature"}
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


def data_differences(recorded: Mapping[str, Any], data: "PreparedData") -> list[str]:
    """Returns a line for each difference between the data of a run, its `data.json`, and other data."""
    lines = []
    files = recorded["files"]
    if files["data"] != hash_of_manifest(data.manifest):
        before, now = recorded["prepared"], data.manifest["data"]
        settings = [
            f"the prepared data: Data.{name} was {before.get(name)!r}, now {now.get(name)!r}"
            for name in sorted(before.keys() | now.keys())
            if before.get(name) != now.get(name)
        ]
        lines += settings or [
            "the prepared data: other contents, though it was prepared with the same settings"
        ]
    for name in VOCABULARIES:
        now = checksum(data.folder / name)
        if files[name] != now:
            side = name.removesuffix(".model")
            lines.append(f"the {side} vocabulary: SHA-256 {files[name][:12]}, now {now[:12]}")
    return lines
