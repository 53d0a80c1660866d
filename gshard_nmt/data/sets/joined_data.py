"""Puts new shards beside those of earlier prepared data, whose text is not tokenized again.

Both must have been tokenized with vocabularies that give old text the same ids, see `vocabulary_growth`.
"""

from pathlib import Path
from typing import Any

from gshard_nmt import outputs
from gshard_nmt.data.sets.manifest import VOCABULARIES, checksum, files_of, link, write_manifest
from gshard_nmt.data.sets.shards import PreparedData, word_type
from gshard_nmt.errors import UserError

ADDED = "added"
"""The key of the manifest that names the language that was added."""


def join(old: PreparedData, new: PreparedData, language: str, out: Path) -> PreparedData:
    """Makes prepared data of the shards of two folders, with the vocabularies of the new one.

    The corpus fingerprint stays that of the old data. The new data has only named subsets, and their
    fingerprints are added. A folder that this function made is replaced.
    """
    words = [word_type(d.source_vocabulary, d.target_vocabulary) for d in (old, new)]
    if words[0] != words[1]:
        raise UserError(
            f"the new vocabularies have {new.source_vocabulary:,} and {new.target_vocabulary:,} pieces, "
            "but the prepared data of the run has ids of 16 bits, at most 65,536 pieces. Give a smaller "
            "--new_pieces."
        )
    facts: dict[str, Any] = {
        name: value
        for name, value in old.manifest.items()
        # `keys` and `texts` tell gshard-data prepare what it can take over, and it did not make this.
        if name not in ("format", "pairs", "checksums", "keys", "texts")
    }
    prints = [d.manifest.get("subset_fingerprints", {}) for d in (old, new)]
    facts |= {
        "source_vocabulary": new.source_vocabulary,
        "target_vocabulary": new.target_vocabulary,
        "subset_fingerprints": prints[0] | prints[1],
        ADDED: language,
    }
    known: dict[str, str] = {}
    with outputs.new_folder(out) as folder:
        for data in (old, new):
            sums = data.manifest.get("checksums", {})
            for name in files_of(data.manifest):
                if name not in VOCABULARIES or data is new:
                    link(data.folder / name, folder / name)
                    known[name] = sums.get(name) or checksum(data.folder / name)
        pairs = sorted(
            [*old.pairs, *new.pairs], key=lambda p: (-p.splits["train"].examples, p.folder)
        )
        write_manifest(folder, pairs, facts, known)
    return PreparedData.open(out)
