"""The systems that a run is compared with: other runs, and published scores.

A system that cannot be compared is refused: it has no direction of the main run, or its scores are those
of another test text.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.systems import published
from gshard_nmt.evaluation.systems.published import Published
from gshard_nmt.evaluation.texts.translations import TestSet
from gshard_nmt.run.folder import RunFolder


@dataclasses.dataclass(frozen=True)
class Others:
    """What a user compares the main run with.

    Attributes:
      workdirs: run folders.
      names: names of the systems, the main run first. A run without a name gets that of its folder.
      scores: files of published scores.
      cross_entropies: the values for which the report counts tokens; () lets it choose them.
    """

    workdirs: Sequence[Path] = ()
    names: Sequence[str] = ()
    scores: Sequence[Path] = ()
    cross_entropies: Sequence[float] = ()


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A system that is compared with the main run: a run, or published scores.

    Attributes:
      name: its name in the report, different from all others.
      tests: the test sets of its directions.
      source: its run folder, or its published scores.
    """

    name: str
    tests: Sequence[TestSet]
    source: RunFolder | Published

    @property
    def run(self) -> RunFolder | None:
        """Its run folder; None if it has published scores."""
        return self.source if isinstance(self.source, RunFolder) else None


def read_candidates(
    run: RunFolder, tests: Sequence[TestSet], others: Others
) -> tuple[str, list[Candidate]]:
    """Reads what the main run is compared with, before anything is decoded.

    Args:
      run: the main run.
      tests: its test sets.
      others: what the user compares it with.

    Returns:
      The name of the main run, and the other systems.

    Raises:
      UserError: there are more names than runs, a folder or a file cannot be read, or a system cannot be
        compared with the main run.
    """
    runs = [run, *(RunFolder(path) for path in others.workdirs)]
    if len(others.names) > len(runs):
        raise UserError(
            f"there are {len(others.names)} --name and {len(runs)} --workdir. Give at most one name for "
            "each run, in the same order."
        )
    names = [*others.names, *(_folder_name(each) for each in runs[len(others.names) :])]
    candidates = [
        Candidate(name, _tests_of(run, each, tests), each)
        for name, each in zip(names[1:], runs[1:], strict=True)
    ]
    for path in others.scores:
        scores = published.read(path)
        candidates.append(Candidate(scores.name, _tests_scored(scores, tests), scores))
    unique = unique_names([names[0], *(candidate.name for candidate in candidates)])
    return unique[0], [
        dataclasses.replace(candidate, name=name)
        for name, candidate in zip(unique[1:], candidates, strict=True)
    ]


def text_digest(test: TestSet) -> str:
    """Returns 16 hexadecimal digits that identify the sentences and references of a test set."""
    content = json.dumps([test.sources, *test.all_references], ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def key_of(values: Mapping[str, object], test: TestSet) -> str:
    """Returns the key of a test set in a mapping: its direction or its language; "" if it has none."""
    return next(
        (key for key in (f"{test.source}-{test.target}", test.language) if key in values), ""
    )


def _tests_of(run: RunFolder, other: RunFolder, tests: Sequence[TestSet]) -> list[TestSet]:
    directions = {(pair["source"], pair["target"]) for pair in other.data["pairs"]}
    shared = [test for test in tests if (test.source, test.target) in directions]
    if not shared:
        own, of_other = (
            ", ".join(sorted({"-".join(direction) for direction in each})[:5])
            for each in ([(test.source, test.target) for test in tests], directions)
        )
        raise UserError(
            f"--workdir {other.path} translates {of_other}, and {run.path} translates {own}. Compare "
            "runs that have a direction in common."
        )
    return shared


def _tests_scored(scores: Published, tests: Sequence[TestSet]) -> list[TestSet]:
    shared = [test for test in tests if key_of(scores.bleu, test)]
    if not shared:
        raise UserError(
            f"--scores {scores.file} has scores of {', '.join(sorted(scores.bleu)[:5]) or 'nothing'}, "
            f"and the test set has {', '.join(test.language for test in tests[:5])}. Give scores of a "
            "language or direction of the run."
        )
    for test in shared:
        stated = scores.sentences.get(key_of(scores.sentences, test), len(test.sources))
        if stated != len(test.sources):
            raise UserError(
                f"--scores {scores.file} was measured on {stated:,} sentences of {test.source}-"
                f"{test.target}, and this test set has {len(test.sources):,}. Scores can be compared "
                "only on the same test text; change --corpus, --split or --sentences."
            )
        digest = scores.text_digests.get(key_of(scores.text_digests, test))
        if digest is not None and digest != text_digest(test):
            raise UserError(
                f"--scores {scores.file} was measured on another test text of {test.source}-"
                f"{test.target}. Scores can be compared only on the same test text; change --corpus or "
                "--split."
            )
    return shared


def _folder_name(run: RunFolder) -> str:
    return run.path.name or str(run.path)


def unique_names(names: Sequence[str]) -> list[str]:
    """Returns the names, with a number behind a name that was used before."""
    unique: list[str] = []
    for name in names:
        number, candidate = 1, name
        while candidate in unique:
            number += 1
            candidate = f"{name} ({number})"
        unique.append(candidate)
    return unique
