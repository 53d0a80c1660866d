"""The manifest of prepared data: its contents, their checksums, and their origin.

Every key is checked when it is read. If a manifest is damaged, the error names the key.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gshard_nmt import json_shape
from gshard_nmt.data.config import DIRECTIONS
from gshard_nmt.errors import UserError
from gshard_nmt.files import write_json
from gshard_nmt.json_shape import entries, fields, list_of, mapping_of, number, text, truth, whole
from gshard_nmt.ranges import LARGEST_SIZE
from gshard_nmt.reading import patiently_or_fail

MANIFEST = "manifest.json"
FORMAT = "gshard-nmt data 2"
VOCABULARIES = ("source.model", "target.model")
"""The names of the vocabularies, in the prepared data and in a run folder."""

REPORTS = ("cleaning.json",)
"""The names of files about the prepared data. Nothing depends on them, so they may be removed."""


@dataclasses.dataclass(frozen=True)
class SplitData:
    """The sizes and files of one split of a language pair.

    There are no `examples` of test, because evaluation reads its text from the corpus. `spelled_tokens`
    are single bytes of rare characters, or UNK. `files` has the name, the bytes and the examples of each
    shard. `removed` counts pairs by the filter that removed them.
    """

    pairs: int
    examples: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    spelled_tokens: int = 0
    files: tuple[tuple[str, int, int], ...] = ()
    removed: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return self.source_tokens + self.target_tokens


@dataclasses.dataclass(frozen=True)
class PreparedPair:
    """One direction of translation; the subset "" is the main corpus. See `CorpusPair.language`."""

    source: str
    target: str
    language: str
    splits: dict[str, SplitData]
    subset: str = ""

    @property
    def folder(self) -> str:
        return pair_folder(self.source, self.target, self.subset)

    @classmethod
    def from_manifest(cls, entry: Mapping[str, Any]) -> "PreparedPair":
        splits = {
            name: SplitData(**{**split, "files": tuple(map(tuple, split["files"]))})
            for name, split in entry["splits"].items()
        }
        languages = (entry["source"], entry["target"], entry["language"])
        return cls(*languages, splits, entry["subset"])


def pair_folder(source: str, target: str, subset: str = "") -> str:
    """Returns the name of the folder of a language pair, such as "fr-en" or "fr-en.back"."""
    return f"{source}-{target}.{subset}" if subset else f"{source}-{target}"


_NAME = text(r"[^/\0-\x1f\x7f-\x9f]+", "a name without slashes and control characters")
_SPLIT = fields(
    {
        **dict.fromkeys(("pairs", "examples", "source_tokens", "target_tokens"), whole()),
        "spelled_tokens": whole(),
        "files": list_of(entries(_NAME, whole(), whole(1))),
        "removed": mapping_of(whole()),
    },
    closed=True,
)
_PAIR = fields(
    {
        **dict.fromkeys(("source", "target", "language"), _NAME),
        "subset": text(r"[^/\0]*", "a name without slashes"),
        "splits": fields(dict.fromkeys(("train", "dev", "test"), _SPLIT), closed=True),
    }
)
_DIRECTION = text("|".join(DIRECTIONS), f"one of {', '.join(DIRECTIONS)}")
_SIZES = dict.fromkeys(("source_vocabulary", "target_vocabulary"), whole(1, LARGEST_SIZE))
_SHAPE = fields(
    {
        "format": text(),
        "corpus_fingerprint": text(),
        "direction": _DIRECTION,
        "temperature": number(),
        **_SIZES,
        "data": fields(
            {
                **dict.fromkeys(("source_length", "target_length"), whole(1, LARGEST_SIZE)),
                "direction": _DIRECTION,
                "vocabulary_model": text(),
                "language_tags": truth(),
                **_SIZES,
            }
        ),
        "pairs": list_of(_PAIR, least=1),
    },
    {
        "checksums": mapping_of(text("[0-9a-f]{64}", "64 hexadecimal digits")),
        "subset_fingerprints": mapping_of(text()),
        "left_out": mapping_of(text()),
    },
)
"""The shape of a manifest of this format. Other keys are allowed, for later versions."""


def read_manifest(folder: Path, flag: str = "--data") -> dict[str, Any] | None:
    """Returns the manifest of a folder; None if there is no manifest that this project wrote.

    Raises:
      UserError: it is damaged. The message names the key, and `flag` names the folder.
      TryAgain: it cannot be read now.
    """
    file = folder / MANIFEST
    try:
        content = patiently_or_fail(file.read_bytes, file, f"{flag} {folder}")
    except FileNotFoundError:
        return None
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError) as error:
        if b'"gshard-nmt ' in content[:200]:
            raise damaged(folder, f"{MANIFEST} is not JSON ({error})", flag) from error
        return None
    if not isinstance(manifest, dict):
        return None
    version = manifest.get("format")
    is_ours = isinstance(version, str) and version.startswith("gshard-nmt ")
    # Another version may have other keys. `PreparedData.open` tells the user.
    if is_ours and version == FORMAT and (wrong := json_shape.problem(_SHAPE, manifest)):
        raise damaged(folder, f"in {MANIFEST}, {wrong}", flag)
    return manifest if is_ours else None


def hash_of(manifest: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of a manifest as hex digits, of its contents in any order.

    It does not cover `temperature`, because training takes its own from the config.
    """
    contents = {name: value for name, value in manifest.items() if name != "temperature"}
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


def write_manifest(
    folder: Path, pairs: Iterable[PreparedPair], facts: dict[str, Any], known: Mapping[str, str]
) -> None:
    """Writes the manifest: the format, `facts`, the pairs, and the checksum of every other file.

    `known` has checksums of files that need not be read again, by path in the folder.
    """
    unlisted = (MANIFEST, *REPORTS)
    files = sorted(f for f in folder.rglob("*") if f.is_file() and f.name not in unlisted)
    names = {file.relative_to(folder).as_posix(): file for file in files}
    checksums = {name: known.get(name) or checksum(file) for name, file in names.items()}
    entries_of_pairs = [dataclasses.asdict(pair) for pair in pairs]
    manifest = {"format": FORMAT, **facts, "pairs": entries_of_pairs, "checksums": checksums}
    write_json(folder / MANIFEST, manifest)


def files_of(manifest: Mapping[str, Any]) -> dict[str, int | None]:
    """Returns the bytes of each file by its path; None for a vocabulary, which is not recorded."""
    files: dict[str, int | None] = dict.fromkeys(VOCABULARIES)
    for pair in map(PreparedPair.from_manifest, manifest["pairs"]):
        for split in pair.splits.values():
            files.update((f"{pair.folder}/{name}", size) for name, size, _ in split.files)
    return files


def link(place: Path, new: Path) -> None:
    """Gives a file a second name, or copies it if the file system has no hard links."""
    new.parent.mkdir(exist_ok=True)
    with contextlib.suppress(OSError):
        os.link(place, new)
        return
    shutil.copyfile(place, new)


def checksum(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def damaged(folder: Path, what: str, flag: str = "--data") -> UserError:
    return UserError(
        f"{flag} {folder} is damaged: {what}; remove the folder and make it again with "
        "gshard-data prepare."
    )
