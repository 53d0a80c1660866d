"""The test sets of a corpus, and whether it is the corpus that a run was trained on.

A corpus may have several folders, as for `gshard-data prepare`: the main one, and subsets with names.
The main one alone is enough for a report.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from gshard_nmt.data.preparation.inputs import fingerprint
from gshard_nmt.data.reading.rows import listed
from gshard_nmt.data.sets.corpus import CorpusPair, find_pairs, read_pairs
from gshard_nmt.data.sets.directions import joined, with_one_test_set
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.translations import TestSet
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.values import read_run_config

Folders = Mapping[str, Path]
"""The folders of a corpus by the names of their subsets; the name of the main one is ""."""

Pairs = Mapping[str, Sequence[CorpusPair]]
"""The language pairs of a corpus by the names that a run has for them: the pair of each folder that has
it, that of the main corpus first. dev and test are in one of them only."""


def pairs_of(run: RunFolder, folders: Folders) -> dict[str, list[CorpusPair]]:
    """Returns the pairs of a corpus by the names that the run has for them; see `Pairs`.

    The order of the languages in the name of a folder matters only if the run's direction is "as-named".
    """
    all_pairs = [p for subset, place in folders.items() for p in find_pairs(place, True, subset)]
    direction = run.data.get("direction", "")
    names = {(d["source"], d["target"]): d["language"] for d in run.data["pairs"]}
    by_name: dict[str, list[CorpusPair]] = {}
    for pair in with_one_test_set(joined(direction, all_pairs, []), []):
        ends = [(pair.source, pair.target)]
        ends += [ends[0][::-1]] if direction != "as-named" else []
        # An imported model has a name for each of the two directions.
        for name in dict.fromkeys(names[d] for d in ends if d in names) or [pair.language]:
            by_name.setdefault(name, []).append(dataclasses.replace(pair, label=name))
    return by_name


def test_sets(
    run: RunFolder, folders: Folders, pairs: Pairs, split: str, sentences: int
) -> tuple[list[TestSet], list[str]]:
    """Returns the test set of each direction of a run, and sentences about directions without one.

    Raises UserError if there is no test set at all.
    """
    tests, notes, corpus = [], [], _flag(folders)
    missing: list[str] = []
    without: list[str] = []
    for direction in run.data["pairs"]:
        language, source, target = (direction[key] for key in ("language", "source", "target"))
        try:
            rows: list[tuple[str, str]] = []
            for pair in pairs.get(language, ()):
                rows += itertools.islice(read_pairs(pair, split, source, target), sentences or None)
        except UserError as error:
            notes.append(f"{source}-{target} is not scored: {error}")
            continue
        if not rows:
            (without if language in pairs else missing).append(f"{source}-{target}")
            continue
        sources, references = (list(side) for side in zip(*rows, strict=True))
        train_pairs = direction["train_pairs"]
        tests.append(TestSet(language, source, target, train_pairs, sources, references))
    if without:
        notes.append(_not_scored(without, f"{corpus} has no {split} text") + ".")
    if missing:
        start = _not_scored(missing, f"{corpus} has no text")
        notes.insert(0, f"{start}, which {run.path} was trained on; give the corpus of the run.")
    if not tests:
        raise UserError(
            f"{corpus} has no {split} text of any language of {run.path} that can be read: {notes[0]} "
            f"Give the corpus of the run, or one with {split} text."
        )
    return tests, notes


def facts(
    run: RunFolder, folders: Folders, pairs: Pairs, split: str
) -> tuple[list[tuple[str, str]], list[str]]:
    """Returns what the report says about the text, and alarms if it is not the text of the run."""
    places = " and ".join(map(str, folders.values()))
    trained = fingerprints_of(run)
    languages = dict.fromkeys(direction["language"] for direction in run.data["pairs"])
    of_languages = [pair for language in languages for pair in pairs.get(language, ())]
    known = list({(pair.subset, pair.folder): pair for pair in of_languages}.values())
    try:
        own = {name: fingerprint([p for p in known if p.subset == name]) for name in ("", *folders)}
    except UserError as error:
        return [("test text", f"{split} of {places}"), ("training text", f"unknown: {error}")], []
    others = [name for name in folders if trained.get(name) != own[name]]
    is_part = any(language not in pairs for language in languages)
    is_part = is_part or bool(read_run_config(run.config).data.languages)
    named = f" ({', '.join(name or 'the main corpus' for name in others)})" if any(others) else ""
    alarms = []
    if not others:
        verdict = f"fingerprint {trained['']}: the same corpus"
    elif is_part and all(name in trained for name in others):
        verdict = (
            f"fingerprint {trained['']} of the prepared data. This run may use only some languages "
            "of that data (Data.languages), so the fingerprint does not tell whether the corpus is "
            f"the same{named}"
        )
    else:
        verdict = f"fingerprint {trained['']}: another corpus{named}"
        alarms = [
            f"{_flag({name: folders[name]})} is not the corpus that {run.path} was trained on."
            for name in others
        ]
    about = f"{split} of {places}; fingerprint {own['']} (text of the run's languages)"
    return [("test text", about), ("training text", verdict)], alarms


def fingerprints_of(run: RunFolder) -> dict[str, str]:
    """Returns the fingerprint of each folder of the text that a run was trained on, by its name."""
    return {"": run.data["corpus_fingerprint"]} | run.data.get("subset_fingerprints", {})


def _flag(folders: Folders) -> str:
    return " ".join(
        f"--corpus {name}={place}" if name else f"--corpus {place}"
        for name, place in folders.items()
    )


def _not_scored(directions: Sequence[str], reason: str) -> str:
    verb, these = ("is", "this direction") if len(directions) == 1 else ("are", "these directions")
    return f"{listed(directions, 5)} {verb} not scored: {reason} of {these}"
