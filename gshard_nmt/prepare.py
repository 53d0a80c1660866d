"""gshard-data prepare: makes vocabularies and tokenized shards from a corpus."""

import collections
import contextlib
from collections.abc import Mapping
from pathlib import Path

from gshard_nmt import outputs, paths
from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation.job import Job, Options
from gshard_nmt.data.preparation.tokenizing import TOO_LONG
from gshard_nmt.data.sets.corpus import SPLITS, CorpusPair, list_corpus
from gshard_nmt.data.sets.directions import candidates
from gshard_nmt.data.sets.manifest import FORMAT, MANIFEST, REPORTS, files_of, read_manifest
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
    console = Terminal(stderr=True)
    old_key = _old_key(out)
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
        listing = list_corpus(folder, subset, damaged=True)
        pairs += listing.pairs
        notes += listing.notes
    if unknown := [name for name in config.subset_tags if name not in corpora]:
        notes.append(f"Data.subset_tags names {', '.join(unknown)}, but no --corpus has this name")
    usable = candidates(config, pairs)
    for note in (*notes, *usable.notes):
        console.print(f"note: {note}.")
    job = Job(config, usable.pairs, out, old_key, options or Options(), console)
    if job.is_up_to_date():
        console.print(f"{out} is up to date")
        if job.partial.exists():
            console.print(f"note: {job.partial} has other work; remove it if you do not need it.")
    else:
        try:
            with outputs.named(job.partial):
                job.run()
        except BaseException as error:
            if any(job.partial.glob("*/*/result.json")):
                note = f"Finished work is in {job.partial}; the same command goes on from there."
                if isinstance(error, UserError):
                    # The same command would end with the same error.
                    note = f"Finished work is in {job.partial}, and is not done again."
                if isinstance(error, KeyboardInterrupt) and not error.args:
                    error.args = (f"interrupted. {note}",)
                else:
                    error.add_note(note)
            raise
    _show(PreparedData.open(out))


def _old_key(out: Path) -> str | None:
    """Returns what identifies the data that `out` has, if any. UserError if it must not be replaced."""
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
    with contextlib.suppress(UserError):  # damaged data is made again
        PreparedData.open(out)
        return manifest.get("key")
    return None


_HEADER = ("pair", "train", "dev", "test", "tokens per pair", "bytes", "too long", "cleaned")


def _show(data: PreparedData) -> None:
    console = Terminal()
    sizes = [pair.splits["train"].examples for pair in data.pairs]
    rows = []
    for pair in data.pairs:
        train, dev, test = (pair.splits[split] for split in SPLITS)
        too_long = train.removed.get(TOO_LONG, 0)
        examples = map(short_count, (train.examples, dev.examples, test.pairs))
        left_out = map(short_count, (too_long, train.pairs - train.examples - too_long))
        length, share = train.tokens / train.examples, train.spelled_tokens / train.tokens
        rows.append((pair.folder, *examples, f"{length:.1f}", f"{share:.1%}", *left_out))
    console.print(table(f"prepared {data.manifest['direction']}", _HEADER, rows))
    console.print(
        f"\nTraining examples: {sum(sizes):,}. Source vocabulary: {data.source_vocabulary:,} pieces. "
        f"Target vocabulary: {data.target_vocabulary:,} pieces. Corpus fingerprint: "
        f"{data.manifest['corpus_fingerprint']}.\n"
        "Bytes: the part of the tokens that spell rare characters. "
        "Too long: training pairs that do not fit into a row, so they were left out. Cleaned: training "
        "pairs that cleaning left out."
    )
    for name, reason in data.manifest.get("left_out", {}).items():
        console.print(f"Left out: {name}, because {reason}.")
    for split, size, use in (("dev", "examples", "validation"), ("test", "pairs", "evaluation")):
        counts: collections.Counter[str] = collections.Counter()
        for pair in data.pairs:
            counts[f"{pair.source}-{pair.target}"] += getattr(pair.splits[split], size)
        if names := [name for name, count in counts.items() if not count]:
            console.print(f"No {split} text, so no {use}: {', '.join(names)}.")
