"""Which files of a folder belong together, and to which split.

    train.fr  train.en.gz                        the two sides of a split; a file may be compressed
    opus.fr-en-train.fr  opus.fr-en-train.en     the names of OPUS-100
    Europarl.en-fr.en  Europarl.en-fr.fr         the names of Moses; Europarl.en-fr.scores may be there
    train-00000.tsv.zst  train-00001.tsv.zst     several files of one split
    src-train.txt  tgt-train.txt                 the names of OpenNMT
    valid.jsonl  test.tmx  fr.po                 other formats

A word of the name says the split. Files without such a word are training text, if no other file of the
folder is.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gshard_nmt.data.language_codes import EXACT, names_language, nearest
from gshard_nmt.data.reading.rows import Input, listed
from gshard_nmt.data.reading.text_lines import without_compression

SPLITS = ("train", "dev", "test")

_SPLIT_WORDS = (
    (re.compile(r"train(ing)?\d*"), "train"),
    (re.compile(r"(news)?dev(test)?\d*|valid\d*|validation|val"), "dev"),
    (re.compile(r"(news)?test\d*|tst\d*"), "test"),
)
# fmt: off
_FORMATS = {
    "tsv": "tsv", "csv": "tsv", "jsonl": "jsonl", "tmx": "tmx", "po": "gettext", "mo": "gettext",
}
# fmt: on
_SCORES = "scores"
OPENNMT = re.compile(r"(src|tgt)-([\w-]+)\.txt")
"""The names of OpenNMT's files: src is the first language of the folder's name."""
_NO_TEXT = re.compile(r"\..*|readme.*|license.*|copying.*|.*\.md", re.IGNORECASE)
"""Files that nobody expects to be read."""


@dataclasses.dataclass(frozen=True)
class PairFiles:
    """The text of a language pair in one folder.

    Attributes:
      inputs: the inputs of all splits, in the order of their names.
      problems: splits that cannot be read -> what is wrong, as a sentence for a message.
      notes: files that look like text and are not read, with the reason.
    """

    inputs: tuple[Input, ...]
    problems: Mapping[str, str]
    notes: tuple[str, ...]


@dataclasses.dataclass
class _Group:
    """Files with the same stem: those of the two sides, the scores, and tables with their formats."""

    sides: dict[str, Path]
    scores: Path | None
    tables: list[tuple[str, Path]]


def find_inputs(
    folder: Path, names: Sequence[str], languages: tuple[str, str], subset: str = "", pair: str = ""
) -> PairFiles:
    """Returns the inputs of a language pair among the files of a folder.

    `languages` are the BCP 47 tags of the source and the target, and `subset` the name of the corpus or
    "". The names of the inputs begin with `pair`, or with the name of the folder.
    """
    notes: list[str] = []
    groups, others = _group(folder, _without_copies(folder, names, notes), languages)
    splits = {stem: split_of(stem) for stem in groups}
    has_train = any(split == "train" for split in splits.values())
    problems: dict[str, str] = {}
    inputs: list[Input] = []
    lonely: list[str] = []
    prefix = "/".join(filter(None, (subset, pair or folder.name)))
    for stem, group in sorted(groups.items()):
        split = splits[stem] or "train"
        is_left_out = splits[stem] is None and has_train
        if is_left_out:
            file = next(iter(group.sides.values()), None) or group.tables[0][1]
            notes.append(f"{file} is not read: other files of its folder are named train")
            continue
        if len(group.sides) == 1:
            problem = _missing_side(folder, stem, group, languages)
            if splits[stem]:
                problems[split] = problem
            else:
                lonely.append(problem)
        for kind, files in _texts(group, languages):
            name = f"{prefix}/{without_compression(files[0].name)}"
            inputs.append(Input(subset, *languages, split, files, kind, name))
    if others:
        verb = "is" if len(others) == 1 else "are"
        notes.append(
            f"{listed([folder / name for name in others])} {verb} not read: no known format"
        )
    if lonely and not any(text.split == "train" for text in inputs):
        problems.setdefault("train", lonely[0])
    return PairFiles(tuple(inputs), problems, tuple(notes))


def split_of(stem: str) -> str | None:
    """Returns the split that a word of a file's name names; None if no word does."""
    for word in re.split(r"[._-]", stem.lower()):
        for pattern, split in _SPLIT_WORDS:
            if pattern.fullmatch(word):
                return split
    return None


def is_text(name: str) -> bool:
    return without_compression(name).rpartition(".")[2] in _FORMATS


def _without_copies(folder: Path, names: Sequence[str], notes: list[str]) -> list[str]:
    plain: dict[str, str] = {}
    for name in sorted(names, key=len):
        base = without_compression(name)
        if base in plain:
            notes.append(f"{folder / name} is not read: {plain[base]} is beside it")
        else:
            plain[base] = name
    return sorted(plain.values())


def _group(
    folder: Path, names: Sequence[str], languages: tuple[str, str]
) -> tuple[dict[str, _Group], list[str]]:
    """Returns the files that hold text of the pair, by stem, and the files that were not understood."""
    groups: dict[str, _Group] = {}
    others: list[str] = []
    scores: dict[str, Path] = {}
    for name in names:
        stem, _, ending = without_compression(name).rpartition(".")
        kind = _FORMATS.get(ending)
        side = _side(ending, languages)
        if match := OPENNMT.fullmatch(without_compression(name)):
            stem, side = match[2], languages[match[1] == "tgt"]
        if kind is None and stem and ending == _SCORES:
            scores[stem] = folder / name
        elif stem and (kind or side):
            group = groups.setdefault(stem, _Group({}, None, []))
            if kind:
                group.tables.append((kind, folder / name))
            elif side not in group.sides or ending == side:
                group.sides[side] = folder / name
        elif not _NO_TEXT.fullmatch(name):
            others.append(name)
    for stem, group in groups.items():
        group.scores = scores.pop(stem, None)
    return groups, sorted([*others, *(path.name for path in scores.values())])


def _side(ending: str, languages: tuple[str, str]) -> str:
    """Returns the language of the pair that the ending of a file names; "" if it names neither."""
    found = [tag for tag in languages if names_language(ending, tag)]
    if not found and EXACT.fullmatch(ending):
        found = [tag for tag in languages if nearest(ending, [tag])]
    return found[0] if found else ""


def _texts(group: _Group, languages: tuple[str, str]) -> Iterator[tuple[str, tuple[Path, ...]]]:
    if len(group.sides) == 2:
        files = tuple(group.sides[language] for language in languages)
        yield "aligned", (*files, group.scores) if group.scores else files
    for kind, file in group.tables:
        yield kind, (file,)


def _missing_side(folder: Path, stem: str, group: _Group, languages: tuple[str, str]) -> str:
    ((side, file),) = group.sides.items()
    missing = languages[1 - languages.index(side)]
    return f"{folder} has {file.name} but not {stem}.{missing}; a split needs both files."
