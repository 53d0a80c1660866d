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
import importlib
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gshard_nmt.data.language_codes import same, understand
from gshard_nmt.data.reading.rows import encodable, listed
from gshard_nmt.data.sets.corpus import read_lines
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.texts.translations import TestSet

_LAYOUTS = (
    "It must have files such as devtest/fra_Latn.devtest (flores), newstest2019-ref.fra.txt (ntrex), "
    "newstest2014-deen-src.de (wmt), or src.de and ref.en (plain)"
)

_PATTERNS = {
    "flores": r"(?:{split}\.(?P<code>.+)|(?P<code_first>.+)\.{split})",
    "ntrex": r"(?P<set>.+)-(?P<side>src|ref)(?:-(?P<number>\d+))?\.(?P<code>[\w-]+)\.txt",
    "wmt": r"(?P<set>.+)-(?P<pair>[a-z]{{4,6}})-(?P<side>src|ref)(?P<number>[A-Z\d]?)"
    r"\.(?P<code>[a-z]{{2,3}})(?:\.txt)?",
    "plain": r"(?i:(?P<side>src|ref)(?P<number>\d*)\.(?P<code>[\w-]+)(?:\.txt)?)",
}
"""The names of the files, without .gz. Each file of FLORES is both a source and a reference."""

FORMATS = tuple(_PATTERNS)

_Directions = dict[tuple[str, str], tuple[Path, tuple[Path, ...]]]
"""The files of each direction (source, target): the source, and all references."""


@dataclasses.dataclass
class _Side:
    """The files of one language: as a source, and as references by their numbers."""

    code: str
    source: Path | None = None
    references: dict[str, Path] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Published:
    """A test set in a folder.

    `name` is a name for its translations, such as "flores.devtest". The notes are about codes that are
    unknown or occur twice.
    """

    folder: Path
    name: str
    directions: _Directions
    notes: tuple[str, ...]

    @property
    def tags(self) -> list[str]:
        return sorted({tag for direction in self.directions for tag in direction})


def open_folder(folder: Path, form: str | None = None, split: str = "test") -> Published:
    """Finds the files of a test set, and reads none of them.

    `form` is one of `FORMATS`; None recognizes it by the names of the files. FLORES calls its test split
    devtest, and the other formats have no splits.
    """
    for candidate in (form,) if form else FORMATS:
        published = _opened(folder, candidate, "devtest" if split == "test" else split)
        if published.directions:
            return published
    of_split = "" if split == "test" else f" for --split {split}"
    known = f"test set with --format {form}" if form else "known test set"
    remedy = "; leave --format out to let it be recognized" if form else ""
    raise UserError(f"--test_set {folder} has no {known}{of_split}. {_LAYOUTS}{remedy}.")


def read(
    published: Published, pairs: Sequence[dict[str, Any]], sentences: int = 0
) -> tuple[list[TestSet], list[str]]:
    """Returns the test sets of the directions of a run (data.json lists them), and what was left out.

    Each has the first `sentences` sentences; 0 means all.
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
        sources, reference, *others = _aligned([source_path, *reference_paths], sentences)
        train_pairs = pair["train_pairs"]
        test = TestSet(
            pair["language"], source, target, train_pairs, sources, reference, tuple(others)
        )
        tests.append(test)
    if not tests:
        raise UserError(
            f"--test_set {published.folder} has {listed(published.tags, 20)}, and the run was trained on "
            f"{listed(missing, 20)}. Give a test set with a direction of the run."
        )
    notes = []
    if missing:
        notes.append(
            f"the test set has no text of {listed(missing, 20)}, which the run was trained on"
        )
    unused = [tag for tag in published.tags if tag not in used]
    if unused:
        notes.append(f"the run was not trained on {listed(unused, 20)}, so they are left out")
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


def _opened(folder: Path, form: str, split: str) -> Published:
    """Finds the files of a format in a folder, or in its folder of the split or of NTREX."""
    pattern = re.compile(_PATTERNS[form].format(split=split))
    inner = folder / {"flores": split, "ntrex": "NTREX-128"}.get(form, ".")
    place = inner if inner.is_dir() else folder
    groups: dict[tuple[str, str], dict[str, _Side]] = {}
    notes: list[str] = []
    for path in sorted(filter(Path.is_file, place.iterdir())):
        name = path.name.removesuffix(".gz")
        if form == "flores" and _is_flores_plus(path):
            name = name.rpartition(".")[0]
            if inner.is_dir() and split not in name.split("."):
                name = f"{name}.{split}"
        if (match := pattern.fullmatch(name)) is None:
            continue
        parts = {key: text or "" for key, text in match.groupdict().items()}
        sides = groups.setdefault((parts.get("set", ""), parts.get("pair", "")), {})
        code = parts.get("code_first") or parts["code"]
        if (language := understand(code)) is None:
            notes.append(f"{path.name} is left out, because {code!r} is not a language code")
            continue
        if language.tag not in sides and not language.is_known:
            notes.append(f"the code {code} of {path.name} is unknown; it is used as {language.tag}")
        side = sides.setdefault(language.tag, _Side(code))
        if side.code != code:
            notes.append(f"{path.name} is left out, because {side.code} is {language.tag} too")
            continue
        role = parts.get("side", "").lower()
        if role != "ref":
            side.source = path
        if role != "src":
            side.references[parts.get("number", "")] = path
    if form == "ntrex":
        # Its English source is also the reference of translations into English.
        for side in (side for sides in groups.values() for side in sides.values()):
            side.source = side.source or min(side.references.items())[1]
            side.references = side.references or {"": side.source}
    directions: _Directions = {}
    for sides in groups.values():
        for (source, ours), (target, theirs) in itertools.permutations(sorted(sides.items()), 2):
            if not ours.source or not theirs.references:
                continue
            if (source, target) in directions:
                raise UserError(
                    f"--test_set {folder} has two test sets of {source}-{target}: "
                    f"{directions[source, target][0].name} and {ours.source.name}. Give a "
                    "folder with one."
                )
            references = tuple(path for _, path in sorted(theirs.references.items()))
            directions[source, target] = ours.source, references
    name = f"flores.{split}" if form == "flores" else form
    return Published(folder, name, directions, tuple(notes))


def _aligned(paths: Sequence[Path], sentences: int) -> list[list[str]]:
    """Returns the lines of files that must have the same number of lines, at least one."""
    texts = [_flores_plus(p) if _is_flores_plus(p) else read_lines(p) for p in paths]
    for path, lines in zip(paths, texts, strict=True):
        if not lines:
            raise UserError(f"{path} is empty; it must have a line for each sentence.")
        if len(lines) != len(texts[0]):
            raise UserError(
                f"the files have different lengths: {paths[0]} has {len(texts[0])} lines, {path} has "
                f"{len(lines)}. Line N of one file must translate line N of the other."
            )
    return [lines[: sentences or None] for lines in texts]


def _is_flores_plus(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith((".jsonl", ".parquet"))


def _flores_plus(path: Path) -> list[str]:
    """Reads the sentences of a language, in the order of their ids if all rows have one."""
    rows = _rows(path)
    column = next((name for name in ("text", "sentence") if rows and name in rows[0]), "text")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not isinstance(row.get(column), str):
            raise UserError(
                f"{path}, row {number} is {str(row)[:80]}; it must have a text named text. Give "
                "the files of FLORES+ as they are published."
            )
    if all(isinstance(row.get("id"), int) for row in rows):
        rows.sort(key=lambda row: row["id"])
    # A translation is a line, so a sentence must be one too.
    return [" ".join(encodable(row[column]).splitlines()) for row in rows]


def _rows(path: Path) -> list[Any]:
    try:
        if not path.name.endswith(".parquet"):
            return [json.loads(line) for line in read_lines(path) if line.strip()]
        rows: list[Any] = importlib.import_module("pyarrow.parquet").read_table(path).to_pylist()
        return rows
    except ImportError:
        raise UserError(
            f"{path} is a Parquet file, and the package pyarrow is not installed. Install it with: pip "
            "install pyarrow; or write one sentence a line into a text file."
        ) from None
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # of the disk or the server
        raise UserError(
            f"{path} cannot be read ({error}); it must be a file of FLORES+ as it is published. Download "
            "it again."
        ) from error
