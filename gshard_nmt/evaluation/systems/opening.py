"""Opens the systems of a report before anything is decoded: runs, baselines and published scores.

A system that cannot be compared is refused: it has no direction of the main run, or its scores are those
of another test text. Published scores are a JSON file:

    {"name": "MoE(2048E, 36L)", "bleu": {"fr": 44.3, "de-en": 43.1}, "weights": 600000000000}

"bleu" has the score of each language, or of each direction. All other keys may be left out: "sentences"
(of each language, to refuse a test set of another length), and the columns of the table of costs. The
`bleu.json` of a report can be given too; its first system is read.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt import json_shape
from gshard_nmt.data.language_codes import understand
from gshard_nmt.data.sets.corpus import read_lines
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.systems.systems import (
    Budget,
    Published,
    System,
    Systems,
    key_of,
    text_digest,
)
from gshard_nmt.evaluation.texts.translations import TestSet
from gshard_nmt.json_shape import anything, fields, list_of, mapping_of, number, text, whole
from gshard_nmt.run.folder import RunFolder

_COSTS = {
    **dict.fromkeys(("weights", "experts", "layers", "steps", "tokens", "devices"), whole()),
    **dict.fromkeys(("steps_per_second", "batch_tokens", "device_years", "days"), number()),
}
_SCORES = fields(
    {"name": text(), "bleu": mapping_of(number(0, 100))},
    {"sentences": mapping_of(whole(1)), **_COSTS},
    closed=True,
)
_ROW = fields(
    {
        **dict.fromkeys(("source", "target", "text_digest"), text()),
        "bleu": number(0, 100),
        "sentences": anything(),
    }
)
_SYSTEM = fields({"name": text(), "languages": list_of(_ROW, least=1)})
_REPORT = fields({"signature": fields({"bleu": text()}), "systems": list_of(_SYSTEM, least=1)})
"""The shape of bleu.json, as far as it is read."""


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
class Files:
    """The files of one direction. Line N of all of them belongs to the same sentence."""

    hypotheses: Sequence[Path]
    references: Sequence[Path]
    target: str
    sources: Path | None = None
    source: str = ""


def open_systems(
    run: RunFolder, tests: Sequence[TestSet], others: Others, baselines: Path | None = None
) -> Systems:
    """Opens the main run, and everything that it is compared with.

    `baselines` is a folder of run folders that are named by language, or a JSON file {"fr": 30.1, ...}.
    A UserError names what cannot be read, or cannot be compared with the main run.
    """
    of_baselines = open_baselines(baselines, tests)
    runs = [run, *map(RunFolder, others.workdirs)]
    if len(others.names) > len(runs):
        raise UserError(
            f"there are {len(others.names)} --name and {len(runs)} --workdir. Give at most one name for "
            "each run, in the same order."
        )
    names = [each.path.name or str(each.path) for each in runs]
    names[: len(others.names)] = others.names
    opened = []
    for name, other in zip(names, runs, strict=True):
        shared = tests if other is run else _shared_tests(run, other, tests)
        opened.append(System(name, shared, other, budget=Budget.of(other)))
    main, *rest = with_unique_names(
        [*opened, *(_open_scores(file, tests) for file in others.scores)]
    )
    return Systems(main, rest, of_baselines)


def open_baselines(path: Path | None, tests: Sequence[TestSet]) -> list[System]:
    """Opens --baselines: a run of each language, or one system that has all scores of a file."""
    if path is None:
        return []
    if path.is_dir():
        languages = dict.fromkeys(test.language for test in tests)
        runs = {
            tag: RunFolder(path / tag) for tag in languages if (path / tag / "data.json").exists()
        }
        if not runs:
            raise UserError(
                f"--baselines {path} has no run folder of {', '.join(languages)}; name each folder by "
                "its language, as gshard-train --baselines_of does."
            )
        of_tag = {tag: [test for test in tests if test.language == tag] for tag in runs}
        return [System(tag, of_tag[tag], run, budget=Budget.of(run)) for tag, run in runs.items()]
    shape = mapping_of(number(0, 100))
    scores = _read(
        "--baselines", path, lambda _: shape, '{"fr": 30.1, "de": 28.4}',
        "there is no such folder or file; give the --workdir of gshard-train --baselines_of, or",
    )  # fmt: skip
    own = [test for test in tests if key_of(scores, test)]
    if not own:
        raise UserError(
            f"--baselines {path} has scores of {', '.join(scores)} but of none of "
            f"{', '.join(test.direction_name for test in tests)}; name each score by its language or "
            "direction."
        )
    return [System("baselines", own, published=Published(path, scores))]


def _read(
    flag: str, file: Path, shape: Callable[[Any], Any], example: str, missing: str
) -> dict[str, Any]:
    """Reads a file of scores. `shape` returns the shape of its contents."""
    if not file.exists() or file.is_dir():
        raise UserError(f"{flag} {file}: {missing} a JSON file with the BLEU of each language.")
    try:
        content = json_shape.parse(file.read_bytes(), mapping_of(anything()))
        if wrong := json_shape.problem(shape(content), content):
            raise ValueError(wrong)
    except ValueError as error:
        raise UserError(f"{flag} {file} is not JSON like {example}: {error}.") from None
    return dict(content)


def read_scores(file: Path) -> System:
    """Reads a file of published scores; its test sets are unknown."""
    content = _read(
        "--scores", file, lambda content: _REPORT if "systems" in content else _SCORES,
        '{"name": "a model", "bleu": {"fr": 30.1}}', "there is no such file; give",
    )  # fmt: skip
    system = content["systems"][0] if "systems" in content else content
    costs = {
        name: system[name]
        for name, shape in _COSTS.items()
        if name in system and json_shape.problem(shape, system[name]) is None
    }
    scores = Published(file, content.get("bleu", {}), content.get("sentences", {}))
    if "systems" in content:
        rows = {f"{row['source']}-{row['target']}": row for row in system["languages"]}
        scores = Published(
            file,
            {key: row["bleu"] for key, row in rows.items()},
            {key: row["sentences"] for key, row in rows.items() if type(row["sentences"]) is int},
            {key: row["text_digest"] for key, row in rows.items() if row["text_digest"]},
            content["signature"]["bleu"],
        )
    return System(system["name"], published=scores, budget=Budget(**costs))


def _open_scores(file: Path, tests: Sequence[TestSet]) -> System:
    system = read_scores(file)
    scores = system.published
    assert scores is not None
    shared = [test for test in tests if key_of(scores.bleu, test)]
    if not shared:
        raise UserError(
            f"--scores {file} has scores of {', '.join(sorted(scores.bleu)[:5]) or 'nothing'}, "
            f"and the test set has {', '.join(test.language for test in tests[:5])}. Give scores of a "
            "language or direction of the run."
        )
    for test in shared:
        stated = scores.sentences.get(key_of(scores.sentences, test), len(test.sources))
        if stated != len(test.sources):
            raise UserError(
                f"--scores {file} was measured on {stated:,} sentences of {test.direction_name}, and "
                f"this test set has {len(test.sources):,}. Scores can be compared only on the same "
                "test text; change --corpus, --split or --sentences."
            )
        digest = scores.text_digests.get(key_of(scores.text_digests, test))
        if digest is not None and digest != text_digest(test):
            raise UserError(
                f"--scores {file} was measured on another test text of {test.direction_name}. Scores can "
                "be compared only on the same test text; change --corpus or --split."
            )
    return dataclasses.replace(system, tests=shared)


def _shared_tests(run: RunFolder, other: RunFolder, tests: Sequence[TestSet]) -> list[TestSet]:
    names = {f"{pair['source']}-{pair['target']}" for pair in other.data["pairs"]}
    shared = [test for test in tests if test.direction_name in names]
    if not shared:
        own = {test.direction_name for test in tests}
        ours, theirs = (", ".join(sorted(each)[:5]) for each in (own, names))
        raise UserError(
            f"--workdir {other.path} translates {theirs}, and {run.path} translates {ours}. Compare "
            "runs that have a direction in common."
        )
    return shared


def open_files(files: Files) -> Systems:
    """Opens files as systems. Every file must have as many lines as the first reference."""
    if understand(files.target) is None:
        raise UserError(
            f"--target is {files.target!r}, which is no code of a language. Give one such as fr, zh or "
            "pt-BR; it chooses the tokenizer of BLEU."
        )
    named = [
        *(("references", path) for path in files.references),
        *(("hypotheses", path) for path in files.hypotheses),
        *([("sources", files.sources)] if files.sources else []),
    ]
    texts = [read_lines(path) for _, path in named]
    for (flag, path), lines in zip(named, texts, strict=True):
        if not lines:
            raise UserError(f"--{flag} {path} is empty; it must have a line for each sentence.")
        if len(lines) != len(texts[0]):
            raise UserError(
                f"--{flag} {path} has {len(lines)} line{'' if len(lines) == 1 else 's'}, and "
                f"--references {files.references[0]} has {len(texts[0])}. Give files in which line N "
                "belongs to the same sentence."
            )
    first, *others = texts[: len(files.references)]
    sources = texts[-1] if files.sources else []
    test = TestSet(
        files.target, files.source, files.target, 0, sources, first, other_references=tuple(others)
    )
    main, *rest = with_unique_names(
        System(path.name, [test], lines={(files.source, files.target): lines}, made_by=str(path))
        for path, lines in zip(files.hypotheses, texts[len(files.references) :], strict=False)
    )
    return Systems(main, rest)


def with_unique_names(systems: Iterable[System]) -> list[System]:
    """Returns the systems, with a number behind a name that was used before."""
    unique: dict[str, System] = {}
    for system in systems:
        number, name = 1, system.name
        while name in unique:
            number += 1
            name = f"{system.name} ({number})"
        unique[name] = dataclasses.replace(system, name=name)
    return list(unique.values())
