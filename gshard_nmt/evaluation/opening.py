"""Opens the systems of a report before anything is decoded, and refuses what cannot be compared."""

from collections.abc import Sequence
from pathlib import Path

from gshard_nmt import json_shape
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.systems import Budget, System, Systems, key_of
from gshard_nmt.evaluation.translations import TestSet
from gshard_nmt.json_shape import mapping_of, number
from gshard_nmt.run.folder import RunFolder


def open_systems(
    run: RunFolder,
    tests: Sequence[TestSet],
    others: Sequence[Path] = (),
    names: Sequence[str] = (),
    baselines: Path | None = None,
) -> Systems:
    """Opens the main run with the test sets of its directions, and everything that it is compared with.

    `names` are those of the runs, the main run first; a run without a name gets that of its folder.
    `baselines` is a folder of run folders that are named by language, or a JSON file {"fr": 30.1, ...}.
    A UserError names what cannot be read, or cannot be compared with the main run.
    """
    of_baselines = _open_baselines(baselines, tests)
    runs = [run, *map(RunFolder, others)]
    if len(names) > len(runs):
        raise UserError(
            f"there are {len(names)} --name and {len(runs)} --workdir. Give at most one name for "
            "each run, in the same order."
        )
    folders = [each.path.name or str(each.path) for each in runs]
    opened: dict[str, System] = {}
    for name, other in zip([*names, *folders[len(names) :]], runs, strict=True):
        shared = tests if other is run else _shared_tests(run, other, tests)
        unique, number_of_name = name, 1
        while unique in opened:
            number_of_name += 1
            unique = f"{name} ({number_of_name})"
        opened[unique] = System(unique, shared, other, budget=Budget.of(other))
    main, *rest = opened.values()
    return Systems(main, rest, of_baselines)


def _shared_tests(run: RunFolder, other: RunFolder, tests: Sequence[TestSet]) -> list[TestSet]:
    shared = _tests_of(other, tests)
    if not shared:
        names = {"-".join(direction) for direction in other.directions}
        own = {test.direction_name for test in tests}
        ours, theirs = (", ".join(sorted(each)[:5]) for each in (own, names))
        raise UserError(
            f"--workdir {other.path} translates {theirs}, and {run.path} translates {ours}. Compare "
            "runs that have a direction in common."
        )
    return shared


def _tests_of(run: RunFolder, tests: Sequence[TestSet]) -> list[TestSet]:
    directions = run.directions
    return [test for test in tests if (test.source, test.target) in directions]


def _open_baselines(path: Path | None, tests: Sequence[TestSet]) -> list[System]:
    """Opens --baselines: a run of each language, or one system that has all scores of a file."""
    if path is None:
        return []
    if not path.exists():
        raise UserError(
            f"--baselines {path}: there is no such folder or file; give the --workdir of gshard-train "
            "--baselines_of, or a JSON file with the BLEU of each language."
        )
    if path.is_dir():
        languages = dict.fromkeys(test.language for test in tests)
        there = [RunFolder(path / tag) for tag in languages if (path / tag / "data.json").exists()]
        # A baseline that has just begun has no checkpoint.
        runs = {run.path.name: run for run in there if run.budget() or not run.identity()["data"]}
        if not runs:
            raise UserError(
                f"--baselines {path} has no run folder with a checkpoint of {', '.join(languages)}; "
                "name each folder by its language, as gshard-train --baselines_of does."
            )
        of_tag = {tag: [test for test in tests if test.language == tag] for tag in runs}
        systems = [
            System(tag, _tests_of(run, of_tag[tag]), run, budget=Budget.of(run))
            for tag, run in runs.items()
        ]
        if known := [system for system in systems if system.tests]:
            return known
        names = ", ".join(test.direction_name for test in tests)
        raise UserError(f"--baselines {path} has no run that translates {names}; give theirs.")
    try:
        scores = json_shape.parse(path.read_bytes(), mapping_of(number(0, 100)))
    except ValueError as error:
        raise UserError(
            f'--baselines {path} is not JSON like {{"fr": 30.1, "de": 28.4}}: {error}.'
        ) from None
    own = [test for test in tests if key_of(scores, test)]
    keys = [key_of(scores, test) for test in own]
    if several := [key for key in keys if keys.count(key) > 1]:
        raise UserError(
            f"--baselines {path}: {several[0]} is the score of several directions; name each score by "
            f"its direction, such as {own[keys.index(several[0])].direction_name}."
        )
    if not own:
        raise UserError(
            f"--baselines {path} has scores of {', '.join(scores) or 'nothing'}, and of none of "
            f"{', '.join(test.direction_name for test in tests)}; name each score by its language or "
            "direction."
        )
    return [System("baselines", own, bleu=scores)]
