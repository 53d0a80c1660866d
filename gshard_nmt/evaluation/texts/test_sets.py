"""Published test sets in a local folder: FLORES, NTREX, WMT, or plain files.

    flores   devtest/fra_Latn.devtest, devtest/devtest.fra_Latn, or as FLORES+ is published:
             devtest/fra_Latn.parquet or devtest/fra_Latn.jsonl; dev/ likewise
    ntrex    newstest2019-src.eng.txt, newstest2019-ref.fra.txt, newstest2019-ref-2.spa.txt
    wmt      newstest2014-deen-src.de, newstest2014-deen-ref.en, newstest2014-deen-refB.en
    plain    src.de, ref.en, ref2.en; the names may be in capitals

Every file may end in .gz, and those of wmt and plain in .txt. Line N of all files is the same sentence.
"""

import dataclasses
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gshard_nmt.data.language_codes import same, understand
from gshard_nmt.data.sets.corpus import read_lines
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.texts import flores_plus
from gshard_nmt.evaluation.texts.translations import TestSet

FORMATS = ("flores", "ntrex", "wmt", "plain")

LAYOUTS = (
    "It must have files such as devtest/fra_Latn.devtest (flores), newstest2019-ref.fra.txt (ntrex), "
    "newstest2014-deen-src.de (wmt), or src.de and ref.en (plain)"
)

_NTREX = re.compile(r"(?P<set>.+)-(?P<side>src|ref)(?:-(?P<number>\d+))?\.(?P<code>[\w-]+)\.txt")
_WMT = re.compile(
    r"(?P<set>.+)-(?P<pair>[a-z]{4,6})-(?P<side>src|ref)(?P<number>[A-Z\d]?)\.(?P<code>[a-z]{2,3})(?:\.txt)?"
)
_PLAIN = re.compile(r"(?P<side>src|ref)(?P<number>\d*)\.(?P<code>[\w-]+)(?:\.txt)?", re.IGNORECASE)


@dataclasses.dataclass
class _Side:
    """The files of one language: as a source, and as references by their numbers."""

    code: str
    source: Path | None = None
    references: dict[str, Path] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Published:
    """A test set in a folder.

    Attributes:
      folder: the folder that the user named.
      name: a name for its translations, such as "flores.devtest".
      directions: files of each direction (source, target): the source, and all references.
      notes: what the user should know about codes that are unknown or occur twice.
    """

    folder: Path
    name: str
    directions: dict[tuple[str, str], tuple[Path, tuple[Path, ...]]]
    notes: tuple[str, ...]

    @property
    def tags(self) -> list[str]:
        """The BCP 47 tags of all languages, sorted."""
        return sorted({tag for direction in self.directions for tag in direction})


def open_folder(folder: Path, form: str | None = None, split: str = "test") -> Published:
    """Finds the files of a test set, and reads none of them.

    Args:
      folder: the folder of the test set.
      form: one of `FORMATS`; None recognizes it by the names of the files.
      split: "test" or "dev". FLORES calls its test split devtest. The other formats have no splits.

    Raises:
      UserError: the folder has no test set of this format, or two of the same direction.
    """
    for candidate in (form,) if form else FORMATS:
        published = _flores(folder, split) if candidate == "flores" else _flat(folder, candidate)
        if published.directions:
            return published
    of_split = "" if split == "test" else f" for --split {split}"
    if form:
        raise UserError(
            f"--test_set {folder} has no test set with --format {form}{of_split}. {LAYOUTS}; leave "
            "--format out to let it be recognized."
        )
    raise UserError(f"--test_set {folder} has no known test set{of_split}. {LAYOUTS}.")


def read(
    published: Published, pairs: Sequence[dict[str, Any]], sentences: int = 0
) -> tuple[list[TestSet], list[str]]:
    """Reads the directions that a run was trained on.

    Args:
      published: the test set.
      pairs: the directions of the run, as data.json lists them.
      sentences: number of sentences of each direction; 0 means all.

    Returns:
      The test sets, and what was left out, in sentences for the report.

    Raises:
      UserError: no direction is the run's, a file is empty, or the numbers of lines differ.
    """
    tests, missing, used = [], [], set()
    for pair in pairs:
        source, target = pair["source"], pair["target"]
        # The run's own tag comes first, because a run may have both zh and zh-CN.
        matches = [d for d in published.directions if d == (source, target)]
        matches += [d for d in published.directions if same(d[0], source) and same(d[1], target)]
        if not matches:
            missing.append(f"{source}-{target}")
            continue
        used |= set(matches[0])
        source_path, reference_paths = published.directions[matches[0]]
        sources, *references = _aligned([source_path, *reference_paths], sentences)
        tests.append(
            TestSet(
                pair["language"],
                source,
                target,
                pair["train_pairs"],
                sources,
                references[0],
                tuple(references[1:]),
            )
        )
    if not tests:
        raise UserError(
            f"--test_set {published.folder} has {_listed(published.tags)}, and the run was trained on "
            f"{_listed(missing)}. Give a test set with a direction of the run."
        )
    notes = []
    if missing:
        notes.append(
            f"the test set has no text of {_listed(missing)}, which the run was trained on"
        )
    unused = [tag for tag in published.tags if tag not in used]
    if unused:
        notes.append(f"the run was not trained on {_listed(unused)}, so they are left out")
    return tests, notes


def facts(
    published: Published, tests: Sequence[TestSet], notes: Sequence[str]
) -> list[tuple[str, str]]:
    """Returns what the report says about a test set; `notes` are those of `read`."""
    count = max(len(test.all_references) for test in tests)
    left_out = "; ".join([*published.notes, *notes])
    text = f"{published.name} of {published.folder}; fingerprint {fingerprint(tests)}"
    return [
        ("test text", f"{text}; {count} reference{'s' if count > 1 else ''}"),
        *([("left out", left_out)] if left_out else []),
    ]


def fingerprint(tests: Sequence[TestSet]) -> str:
    """Returns 16 hexadecimal digits that identify the sources and references of all directions."""
    digest = hashlib.sha256()
    for test in tests:
        digest.update(f"{test.source}-{test.target}\0".encode())
        for lines in (test.sources, *test.all_references):
            digest.update(("\n".join(lines) + "\0").encode())
    return digest.hexdigest()[:16]


def _flores(folder: Path, split: str) -> Published:
    """Finds the files of FLORES in a folder, or in the folder of the split below it."""
    split = "devtest" if split == "test" else split
    inner = folder / split
    place = inner if inner.is_dir() else folder
    sides: dict[str, _Side] = {}
    notes: list[str] = []
    for path in _files(place):
        name = path.name.removesuffix(".gz")
        if flores_plus.is_one(path):
            name = name.rpartition(".")[0]
            if inner.is_dir() and split not in name.split("."):
                name = f"{name}.{split}"
        code = name.removeprefix(f"{split}.") if name.startswith(f"{split}.") else ""
        code = name.removesuffix(f".{split}") if name.endswith(f".{split}") else code
        side = _side_of(sides, notes, code, path) if code else None
        if side:
            side.source, side.references = path, {"": path}
    return Published(folder, f"flores.{split}", _all_directions(sides), tuple(notes))


def _flat(folder: Path, form: str) -> Published:
    """Finds the files of a test set whose files are all in one folder."""
    pattern = {"ntrex": _NTREX, "wmt": _WMT, "plain": _PLAIN}[form]
    groups: dict[tuple[str, str], dict[str, _Side]] = {}
    notes: list[str] = []
    place = folder / "NTREX-128" if form == "ntrex" else folder
    for path in _files(place if place.is_dir() else folder):
        match = pattern.fullmatch(path.name.removesuffix(".gz"))
        if match is None:
            continue
        parts = match.groupdict()
        sides = groups.setdefault((parts.get("set") or "", parts.get("pair") or ""), {})
        is_source = parts["side"].lower() == "src"
        number = parts["number"] or ""
        side = _side_of(sides, notes, parts["code"], path)
        if side and is_source:
            side.source = path
        elif side:
            side.references[number] = path
    if form == "ntrex":
        # The English source is also the reference of translations into English.
        for sides in groups.values():
            for side in sides.values():
                side.source = side.source or min(side.references.items())[1]
                side.references = side.references or {"": side.source}
    return Published(folder, form, _one_of_each(folder, groups), tuple(notes))


def _one_of_each(
    folder: Path, groups: dict[tuple[str, str], dict[str, _Side]]
) -> dict[tuple[str, str], tuple[Path, tuple[Path, ...]]]:
    """Returns the directions of all groups of files. Raises UserError if two groups have the same."""
    directions: dict[tuple[str, str], tuple[Path, tuple[Path, ...]]] = {}
    for sides in groups.values():
        for direction, paths in _all_directions(sides).items():
            if direction in directions:
                raise UserError(
                    f"--test_set {folder} has two test sets of {'-'.join(direction)}: "
                    f"{directions[direction][0].name} and {paths[0].name}. Give a folder with one."
                )
            directions[direction] = paths
    return directions


def _all_directions(
    sides: dict[str, _Side],
) -> dict[tuple[str, str], tuple[Path, tuple[Path, ...]]]:
    return {
        (source, target): (
            ours.source,
            tuple(path for _, path in sorted(theirs.references.items())),
        )
        for source, ours in sorted(sides.items())
        for target, theirs in sorted(sides.items())
        if source != target and ours.source and theirs.references
    }


def _side_of(sides: dict[str, _Side], notes: list[str], code: str, path: Path) -> _Side | None:
    """Returns the files of the language that a code names; None if the file cannot be used."""
    language = understand(code)
    if language is None:
        notes.append(f"{path.name} is left out, because {code!r} is not a language code")
        return None
    side = sides.get(language.tag)
    if side is None:
        if not language.is_known:
            notes.append(f"the code {code} of {path.name} is unknown; it is used as {language.tag}")
        side = sides[language.tag] = _Side(code)
    elif side.code != code:
        notes.append(f"{path.name} is left out, because {side.code} is {language.tag} too")
        return None
    return side


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def _aligned(paths: Sequence[Path], sentences: int) -> list[list[str]]:
    """Returns the lines of files that must have the same number of lines, at least one."""
    texts = [flores_plus.read(p) if flores_plus.is_one(p) else read_lines(p) for p in paths]
    for path, lines in zip(paths, texts, strict=True):
        if not lines:
            raise UserError(f"{path} is empty; it must have a line for each sentence.")
        if len(lines) != len(texts[0]):
            raise UserError(
                f"the files have different lengths: {paths[0]} has {len(texts[0])} lines, {path} has "
                f"{len(lines)}. Line N of one file must translate line N of the other."
            )
    return [lines[: sentences or None] for lines in texts]


def _listed(words: Sequence[str], most: int = 20) -> str:
    """Returns the first words of a list, and the number of all others."""
    rest = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + rest
