"""The new folder of prepared data, put together of new and old shards; and what is left out of it."""

import contextlib
import json
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt import files
from gshard_nmt.data.cleaning import report
from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation.filtering import CleanText, CleanTexts
from gshard_nmt.data.preparation.plan import Direction, Models, Plan, folder_of
from gshard_nmt.data.preparation.tokenizing import TOO_LONG, Tokens
from gshard_nmt.data.sets.examples import SIDES
from gshard_nmt.data.sets.manifest import (
    VOCABULARIES,
    PreparedPair,
    SplitData,
    link,
    write_manifest,
)
from gshard_nmt.data.text.vocabulary import vocabulary_of
from gshard_nmt.errors import UserError

SHARDED = ("train", "dev")
"""The splits that have shards. Evaluation reads test text from the corpus."""

Old = Mapping[str, Any]
"""The manifest of the old data; empty if there is none."""

Reasons = dict[str, str]
"""Why directions are left out, by their folders: each has no training pair. The manifest keeps them."""

AllTokens = Mapping[tuple[str, str], Tokens]
"""The shards by the folder of the direction and the split."""


def make_folder(
    path: Path, plan: Plan, models: Models, tokens: AllTokens, reasons: Reasons, out: Path, old: Old
) -> None:
    """Makes a folder of prepared data whose shards are hard links.

    A direction without `tokens` and without a reason to leave it out has the shards of the `old` data.
    """
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    pairs, checksums = [], {}
    old_pairs = {pair.folder: pair for pair in _pairs_of(old)}
    for d in plan.directions:
        if d.folder in reasons:
            continue
        splits = {"test": SplitData(plan.text(d.pair, "test").total)}
        if (d.folder, "train") not in tokens:
            splits = old_pairs[d.folder].splits
            for name in (
                f"{d.folder}/{file}" for split in splits.values() for file, *_ in split.files
            ):
                link(out / name, path / name)
                checksums[name] = old.get("checksums", {}).get(name, "")
        else:
            for split in SHARDED:
                own = tokens.get((d.folder, split), Tokens(SplitData(0)))
                splits[split] = own.data
                for (file, *_), place, digest in zip(
                    own.data.files, own.files, own.checksums, strict=True
                ):
                    link(place, path / d.folder / file)
                    checksums[f"{d.folder}/{file}"] = digest
        pairs.append(PreparedPair(d.source, d.target, d.pair.language, splits, d.pair.subset))
    for side, name in zip(SIDES, VOCABULARIES, strict=True):
        files.write(path / name, models[side])
    sizes = [vocabulary_of(models[side]).size for side in SIDES]
    facts = plan.facts() | {
        "direction": plan.config.direction,
        "source_vocabulary": sizes[0],
        "target_vocabulary": sizes[1],
        "temperature": plan.config.temperature,
        "keys": plan.keys(models),
        "texts": plan.text_keys,
    }
    if reasons:
        facts["left_out"] = reasons
    pairs.sort(key=lambda pair: (-pair.splits["train"].examples, pair.folder))
    write_manifest(path, pairs, facts, checksums)


def reusable(out: Path, old: Old, keys: Mapping[str, str]) -> tuple[set[str], Reasons]:
    """Returns the folders of the directions whose shards the old data has, and those it leaves out.

    A direction with another key than in the manifest may have other training pairs now.
    """
    same = {name for name, key in keys.items() if old.get("keys", {}).get(name) == key}
    complete = set()
    for pair in _pairs_of(old):
        shards = [shard for split in pair.splits.values() for shard in split.files]
        paths = [(out / pair.folder / shard, size) for shard, size, _ in shards]
        if pair.folder in same and all(p.is_file() and p.stat().st_size == n for p, n in paths):
            complete.add(pair.folder)
    return complete, {n: reason for n, reason in old.get("left_out", {}).items() if n in same}


def _pairs_of(old: Old) -> Iterator[PreparedPair]:
    return map(PreparedPair.from_manifest, old.get("pairs", ()))


def report_cleaning(
    path: Path, cleaned: Iterable[CleanText], names: Collection[str], out: Path
) -> list[str]:
    """Writes the report, with the old facts of pairs not cleaned now; returns its warnings."""
    reports = []
    for text in cleaned:
        pair, counts = text.text.pair, (text.pairs, text.removed)
        languages = (pair.source, pair.target, pair.subset)
        reports.append(report.Direction(*languages, *counts, text.samples(), text.edited))
    wanted = set(names) - {entry.name for entry in reports}
    reports += [entry for entry in old_reports(out) if entry.name in wanted]
    return report.write_report(reports, path)


def old_reports(folder: Path) -> list[report.Direction]:
    reports = []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        for entry in json.loads((folder / report.JSON).read_bytes())["directions"]:
            dropped = {
                name: [report.Sample(0, text["source"], text["target"]) for text in texts]
                for name, texts in entry.pop("samples").items()
            }
            del entry["remaining"]
            reports.append(report.Direction(**entry, samples=dropped))
    return reports


def without_clean_text(directions: Iterable[Direction], clean: CleanTexts) -> Reasons:
    texts = {d.folder: clean[folder_of(d.pair), "train"] for d in directions}
    return {name: _reason(text) for name, text in texts.items() if not text.rows}


def _reason(text: CleanText) -> str:
    if not text.pairs:
        held_out = any(item.split != "train" for item in text.text.pair.texts)
        return "there is no training text" + (" beside its dev and test text" if held_out else "")
    counts = ", ".join(f"{name} {count:,}" for name, count in text.removed.items())
    return f"cleaning left out all {text.pairs:,} training pairs ({counts})"


def without_examples(directions: Iterable[Direction], tokens: AllTokens, config: Data) -> Reasons:
    reason = (
        f"all training pairs have more than {config.source_length} source or {config.target_length} "
        "target tokens"
    )
    return {d.folder: reason for d in directions if not tokens[d.folder, "train"].data.examples}


def check_rest(directions: Sequence[Direction], reasons: Reasons) -> None:
    """Raises UserError if all directions are left out. The message has the first three reasons."""
    if any(direction.folder not in reasons for direction in directions):
        return
    listed = "; ".join(f"{name}: {reason}" for name, reason in list(reasons.items())[:3])
    raise UserError(
        f"no training pair is left ({listed}). Add text, turn filters off with Cleaning.without or "
        "Cleaning.duplicates, or raise Data.source_length and Data.target_length."
    )


def too_long(tokens: AllTokens, config: Data) -> Iterator[str]:
    for (name, split), own in tokens.items():
        lost = own.data.removed.get(TOO_LONG, 0)
        clean = own.data.examples + lost
        if split == "train" and own.data.examples and lost > report.TOO_MUCH * clean:
            yield (
                f"{lost:,} of {clean:,} training pairs of {name} are left out: they have more than "
                f"Data.source_length = {config.source_length} or Data.target_length = "
                f"{config.target_length} tokens. Raise both; with twice as many tokens, "
                f"{own.fit_twice / clean:.0%} of the pairs stay."
            )
