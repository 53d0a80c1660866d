"""Published test sets in a local folder: FLORES, or plain files of any other.

    flores   devtest/fra_Latn.devtest or devtest/devtest.fra_Latn; dev/ likewise
    plain    src.de, ref.en, ref2.en, also with .txt; the names may be in capitals

Every file may end in .gz. Line N of all files is the same sentence.
"""

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gshard_nmt.data.language_codes import canonical, understand
from gshard_nmt.data.reading import text_lines
from gshard_nmt.data.reading.rows import listed
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.translations import TestSet

_FLORES = r"(?:{split}\.(?P<code>.+)|(?P<code_first>.+)\.{split})"
"""The names of the files, without .gz. Each file is both a source and a reference."""
_PLAIN = r"(?i:(?P<side>src|ref)(?P<number>\d*)\.(?P<code>[\w-]+)(?:\.txt)?)"


@dataclasses.dataclass(frozen=True)
class Published:
    """A test set in a folder."""

    folder: Path
    name: str  # a name for its translations, such as "flores.devtest"
    # the files of each direction (source, target): the source, and all references
    directions: dict[tuple[str, str], tuple[Path, list[Path]]]
    notes: list[str]  # what is said about codes that are unknown or occur twice

    @property
    def tags(self) -> list[str]:
        return sorted({tag for direction in self.directions for tag in direction})


def open_folder(folder: Path, split: str = "test") -> Published:
    """Finds the files of a test set, and reads none of them.

    FLORES calls its test split devtest, and plain files have no splits.
    """
    part = "devtest" if split == "test" else split
    place = folder / part if (folder / part).is_dir() else folder
    for name, files, pattern in (
        (f"flores.{part}", place, _FLORES.format(split=re.escape(part))),
        ("plain", folder, _PLAIN),
    ):
        directions, notes = _directions(files, pattern)
        if directions:
            return Published(folder, name, directions, notes)
    of_split = "" if split == "test" else f" for --split {split}"
    raise UserError(
        f"--test_set {folder} has no known test set{of_split}. It must have files such as "
        "devtest/fra_Latn.devtest (FLORES), or src.de and ref.en."
    )


def _directions(
    place: Path, pattern: str
) -> tuple[dict[tuple[str, str], tuple[Path, list[Path]]], list[str]]:
    sources: dict[str, Path] = {}
    references: dict[str, dict[str, Path]] = {}
    notes = []
    for path in sorted(filter(Path.is_file, place.iterdir())):
        match = re.fullmatch(pattern, path.name.removesuffix(".gz"))
        if match is None:
            continue
        parts = {key: text or "" for key, text in match.groupdict().items()}
        code, side = parts.get("code_first") or parts["code"], parts.get("side", "").lower()
        language, number = understand(code), parts.get("number", "")
        if language is None:
            notes.append(f"{path.name} is left out, because {code!r} is not a language code")
            continue
        tag = language.tag
        has_number = number in references.get(tag, {})
        if (side != "ref" and tag in sources) or (side != "src" and has_number):
            notes.append(f"{path.name} is left out, because {tag} has another file")
            continue
        if not language.is_known:
            notes.append(f"the code {code} of {path.name} is unknown; it is used as {tag}")
        if side != "ref":
            sources[tag] = path
        if side != "src":
            references.setdefault(tag, {})[number] = path
    directions = {
        (source, target): (path, [file for _, file in sorted(references[target].items())])
        for (source, path), target in itertools.product(sources.items(), references)
        if source != target
    }
    return directions, notes


def read(
    published: Published, pairs: Sequence[dict[str, Any]], sentences: int = 0
) -> tuple[list[TestSet], list[str]]:
    """Returns the test sets of the directions of a run (data.json lists them), and what was left out.

    Each has the first `sentences` sentences; 0 means all.
    """
    tests, notes, missing, used = [], [], [], set()
    named: dict[tuple[tuple[str, ...], ...], tuple[str, str]] = {}
    for direction in published.directions:
        named.setdefault(tuple(map(canonical, direction)), direction)
    for pair in pairs:
        source, target = pair["source"], pair["target"]
        # The run's own tag comes first, because a run may have both zh and zh-CN.
        meant = named.get((canonical(source), canonical(target)))
        match = (source, target) if (source, target) in published.directions else meant
        if not match:
            missing.append(f"{source}-{target}")
            continue
        used |= set(match)
        path, references = published.directions[match]
        try:
            texts = _read([path, *references])
        except UserError as error:
            notes.append(f"{source}-{target} is not scored: {error}")
            continue
        own, first, *others = (lines[: sentences or None] for lines in texts)
        number = pair["train_pairs"]
        tests.append(TestSet(pair["language"], source, target, number, own, first, tuple(others)))
    if notes and not tests:
        raise UserError(notes[0])
    if not tests:
        raise UserError(
            f"--test_set {published.folder} has {listed(published.tags, 20)}, and the run was trained on "
            f"{listed(missing, 20)}. Give a test set with a direction of the run."
        )
    if missing:
        notes.append(
            f"the test set has no text of {listed(missing, 20)}, which the run was trained on"
        )
    if unused := [tag for tag in published.tags if tag not in used]:
        notes.append(f"the run was not trained on {listed(unused, 20)}, so they are left out")
    return tests, notes


def _read(paths: Sequence[Path]) -> list[list[str]]:
    """Returns the lines of files that must have the same number of lines, at least one."""
    texts = [list(text_lines.lines(path)) for path in paths]
    for path, lines in zip(paths, texts, strict=True):
        if not lines:
            raise UserError(f"{path} is empty; it must have a line for each sentence.")
        if len(lines) != len(texts[0]):
            raise UserError(
                f"the files have different lengths: {paths[0]} has {len(texts[0])} lines, {path} has "
                f"{len(lines)}. Line N of one file must translate line N of the other."
            )
    return texts


def facts(
    published: Published, tests: Sequence[TestSet], notes: Sequence[str]
) -> list[tuple[str, str]]:
    """Returns what the report says about a test set; `notes` are those of `read`."""
    digest = hashlib.sha256()
    for test in tests:
        digest.update(f"{test.direction_name}\0".encode())
        for lines in (test.sources, *test.all_references):
            digest.update(("\n".join(lines) + "\0").encode())
    count = max(len(test.all_references) for test in tests)
    text = f"{published.name} of {published.folder}; fingerprint {digest.hexdigest()[:16]}"
    left_out = "; ".join([*published.notes, *notes])
    return [
        ("test text", f"{text}; {count} reference{'s' if count > 1 else ''}"),
        *([("left out", left_out)] if left_out else []),
    ]
