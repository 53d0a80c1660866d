"""The bilingual baselines that a run is compared with: their run folders, or their known scores."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt import json_shape
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.report import baselines_section
from gshard_nmt.evaluation.texts.translations import TestSet
from gshard_nmt.json_shape import mapping_of, number
from gshard_nmt.run.folder import RunFolder

_SCORES = mapping_of(number(0, 100))


@dataclasses.dataclass(frozen=True)
class Baselines:
    """The bilingual baselines to compare with: known scores, or runs to decode.

    Attributes:
      scores: BLEU of each language, or of each direction such as "fr-en".
      runs: run folder of each language.
    """

    scores: dict[str, float] = dataclasses.field(default_factory=dict)
    runs: dict[str, RunFolder] = dataclasses.field(default_factory=dict)

    @property
    def folders(self) -> dict[str, Path]:
        """Path of the run folder of each language."""
        return {language: run.path for language, run in self.runs.items()}

    def score_of(self, test: TestSet) -> float | None:
        """Returns the known score of a direction or of its language; None if there is none."""
        return self.scores.get(test.direction_name, self.scores.get(test.language))

    def has(self, test: TestSet) -> bool:
        """Returns whether there is a score or a run to compare a direction with."""
        return self.score_of(test) is not None or test.language in self.runs


def read_baselines(path: Path | None, languages: Sequence[str]) -> Baselines:
    """Reads --baselines, a folder of run folders or a JSON file of scores."""
    if path is None:
        return Baselines()
    if path.is_dir():
        runs = {
            language: RunFolder(path / language)
            for language in languages
            if (path / language / "data.json").exists()
        }
        if not runs:
            raise UserError(
                f"--baselines {path} has no run folder of {', '.join(languages)}; name each folder by "
                "its language, as gshard-train --baselines_of does."
            )
        return Baselines(runs=runs)
    if not path.exists():
        raise UserError(
            f"--baselines {path}: there is no such folder or file; give the --workdir of "
            "gshard-train --baselines_of, or a JSON file with the BLEU of each language."
        )
    try:
        return Baselines(json_shape.parse(path.read_bytes(), _SCORES))
    except ValueError as error:
        raise UserError(
            f'--baselines {path} is not JSON like {{"fr": 30.1, "de": 28.4}}: {error}.'
        ) from None


def directions_without(
    baselines: Baselines, path: Path | None, tests: Sequence[TestSet]
) -> list[str]:
    """Returns the names of the directions that have no baseline; [] if there is no --baselines.

    Args:
      baselines: the baselines.
      path: the value of --baselines, for the error.
      tests: the test sets of the run.

    Raises:
      UserError: no direction has a baseline.
    """
    if path is None:
        return []
    without = [test.direction_name for test in tests if not baselines.has(test)]
    if len(without) == len(tests):
        raise UserError(
            f"--baselines {path} has scores of {', '.join(baselines.scores)} but of none of "
            f"{', '.join(without)}; name each score by its language or direction."
        )
    return without


def budget_facts(run: RunFolder, baselines: Baselines) -> Iterator[tuple[str, str]]:
    """Yields what the report says about the training of the run and of its baselines."""
    if budget := run.budget():
        yield (
            "multilingual model",
            f"{budget['parameters']:,} parameters, {budget['steps']:,} steps, "
            f"{_total_tokens(budget):,} tokens, {budget['seconds']:.0f} s",
        )
    budgets = [budget for folder in baselines.runs.values() if (budget := folder.budget())]
    if budgets:
        sizes = sorted({budget["parameters"] for budget in budgets})
        size = " to ".join(f"{parameters:,}" for parameters in dict.fromkeys((sizes[0], sizes[-1])))
        records = baselines_section.read(baselines.folders)
        yield (
            "baselines",
            f"{len(budgets)} bilingual models of {size} parameters each; "
            f"{sum(map(_total_tokens, budgets)):,} tokens in total; "
            f"{sum(b['seconds'] for b in budgets):.0f} s in total. "
            + baselines_section.kind_text(records, len(baselines.runs)),
        )


def _total_tokens(budget: dict[str, Any]) -> int:
    return sum(budget["tokens_by_language"].values())
