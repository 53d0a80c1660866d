"""The contents of data.json and budget.json, for run folders that tests make by hand."""

from collections.abc import Mapping, Sequence
from typing import Any

from gshard_nmt.data.sets.manifest import VOCABULARIES
from gshard_nmt.run.folder import RUN_FORMAT


def data_facts(languages: Sequence[str] = ("fr",), **changes: object) -> dict[str, Any]:
    """Returns the contents of the data.json of a run from these languages to English, with changes."""
    pairs = [
        {"source": tag, "target": "en", "language": tag, "train_pairs": 4} for tag in languages
    ]
    return {
        "format": RUN_FORMAT,
        "version": "1.0",
        "source_vocabulary": 1000,
        "target_vocabulary": 1000,
        "corpus_fingerprint": "0123456789abcdef",
        "pairs": pairs,
        "files": dict.fromkeys((*VOCABULARIES, "data", "config"), "0" * 64),
        "prepared": {},
    } | changes


def budget_facts(tokens_by_language: Mapping[str, int]) -> dict[str, Any]:
    """Returns the contents of the budget.json of a run that has seen these tokens."""
    return {
        "steps": 9,
        "seconds": 1.0,
        "parameters": 5,
        "tokens_by_language": dict(tokens_by_language),
    }
