"""gshard-data prepare: makes vocabularies and tokenized shards from a corpus."""

import collections
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt import outputs, paths
from gshard_nmt.data.batching.mixture import sampling_rates
from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation.job import Job, Options
from gshard_nmt.data.preparation.tokenizing import TOO_LONG
from gshard_nmt.data.sets.corpus import CorpusPair, list_corpus
from gshard_nmt.data.sets.directions import candidates
from gshard_nmt.data.sets.manifest import (
    FORMAT,
    MANIFEST,
    REPORTS,
    PreparedPair,
    files_of,
    read_manifest,
)
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.errors import UserError
from gshard_nmt.quantities import short_count
from gshard_nmt.terminal import Terminal, table

__all__ = ["Options", "prepare"]


def prepare(
    config: Data, corpus: Path | Mapping[str, Path], out: Path, options: Options | None = None
) -> None:
    """Trains the vocabularies and writes the shards. Does nothing if `out` is up to date.

    Finished work is kept in the folder `<out>.partial` until all is done, so the same command goes on
    after an interruption. The new folder is then renamed, so `out` is always complete. Several corpora
    have the names of their subsets; that of the main corpus is "".
    """
    options = options or Options()
    console = Terminal(stderr=True)
    old = _old_manifest(out)
    # A folder that cannot be made or must not be replaced is refused before the corpus is read. A folder
    # that has data already may be up to date, so it need not be writable.
    if old is None:
        outputs.check_folder("--out", out, replaced=True)
    corpora = corpus if isinstance(corpus, Mapping) else {"": corpus}
    for folder in corpora.values():
        if paths.absolute(folder) in paths.absolute(out).parents:
            raise UserError(
                f"--out {out} is inside of --corpus {folder}, and nothing is written into a corpus. "
                "Give a folder beside it."
            )
    pairs: list[CorpusPair] = []
    notes: list[str] = []
    for subset, folder in corpora.items():
        console.print(f"reading {folder}")
        listing = list_corpus(folder, subset)
        pairs += listing.pairs
        notes += listing.notes
    if unknown := [name for name in config.subset_tags if name not in corpora]:
        notes.append(f"Data.subset_tags names {', '.join(unknown)}, but no --corpus has this name")
    usable = candidates(config, pairs)
    for note in (*notes, *usable.notes):
        console.print(f"note: {note}.")
    job = Job(config, usable.pairs, out, old, options, console)
    if job.is_up_to_date():
        console.print(f"{out} is up to date")
    else:
        outputs.check_folder("--out", out, replaced=True)
        with outputs.named(out):
            job.run()
    data = PreparedData.open(out)
    sizes = [pair.splits["train"].examples for pair in data.pairs]
    shares = sampling_rates(sizes, data.manifest["temperature"]).tolist()
    for pair, size, share in zip(data.pairs, sizes, shares, strict=True):
        if share > _FREQUENT * size:
            warning = (
                f"each training example of {pair.folder} ({size:,} in all) is {share / size:.1%} of all "
                "draws. Add text, lower Data.temperature, or raise Data.minimum_pairs."
            )
            console.print(f"warning: {warning}")
        if (
            spelled := pair.splits["train"].spelled_tokens / pair.splits["train"].tokens
        ) > _SPELLED:
            console.print(
                f"warning: {spelled:.1%} of the tokens of {pair.folder} are single bytes, because rare "
                "characters have no piece. A new vocabulary fits better with larger "
                "Data.source_vocabulary and Data.target_vocabulary, Data.character_coverage or "
                "Data.vocabulary_temperature."
            )
    _show(data, shares)


def _old_manifest(out: Path) -> dict[str, Any] | None:
    if not out.is_dir() or not any(out.iterdir()):
        return None
    manifest = read_manifest(out, "--out")
    if manifest is None:
        raise UserError(f"--out {out} is not empty and not prepared data; choose another folder.")
    if manifest["format"] != FORMAT:
        raise UserError(
            f"--out {out} has data of another version, {manifest['format']!r}; remove the folder, or "
            "choose another one."
        )
    known = {MANIFEST, *REPORTS, *files_of(manifest)}
    outputs.check_only_has("--out", out, known, "gshard-data prepare")
    return manifest


_HEADER = (
    "pair",
    "train",
    "dev",
    "test",
    "tokens per pair",
    "bytes",
    "too long",
    "cleaned",
    "sampled",
)


_FREQUENT = 0.01
"""If training draws one example more often than this, it learns the example by heart."""
_SPELLED = 0.05
"""If more of the tokens than this are single bytes, the vocabulary does not fit the language."""


def _show(data: PreparedData, shares: Sequence[float]) -> None:
    console = Terminal()
    rows = []
    for pair, share in zip(data.pairs, shares, strict=True):
        train = pair.splits["train"]
        too_long = train.removed.get(TOO_LONG, 0)
        rows.append(
            (
                pair.folder,
                short_count(train.examples),
                short_count(pair.splits["dev"].examples),
                short_count(pair.splits["test"].pairs),
                f"{train.tokens / train.examples:.1f}",
                f"{train.spelled_tokens / train.tokens:.1%}",
                short_count(too_long),
                short_count(train.pairs - train.examples - too_long),
                f"{share:.1%}",
            )
        )
    console.print(table(f"prepared {data.manifest['direction']}", _HEADER, rows))
    examples = sum(pair.splits["train"].examples for pair in data.pairs)
    console.print(
        f"\nTraining examples: {examples:,}. Source vocabulary: {data.source_vocabulary:,} pieces. "
        f"Target vocabulary: {data.target_vocabulary:,} pieces. Corpus fingerprint: "
        f"{data.manifest['corpus_fingerprint']}.\n"
        "Bytes: the part of the tokens that spell rare characters. "
        "Too long: training pairs that do not fit into a row, so they were left out. Cleaned: training "
        "pairs that cleaning left out. Sampled: the part of the training examples that comes from this "
        "pair."
    )
    for name, reason in data.manifest.get("left_out", {}).items():
        console.print(f"Left out: {name}, because {reason}.")
    if missing := _missing(data.pairs):
        console.print(missing)


def _missing(pairs: Sequence[PreparedPair]) -> str:
    parts = []
    for split, size, use in (("dev", "examples", "validation"), ("test", "pairs", "evaluation")):
        counts: collections.Counter[str] = collections.Counter()
        for pair in pairs:
            counts[f"{pair.source}-{pair.target}"] += getattr(pair.splits[split], size)
        if names := [name for name, count in counts.items() if not count]:
            parts.append(f"No {split} text, so no {use}: {', '.join(names)}.")
    return " ".join(parts)
