"""Which files of a folder belong together, and to which split.

    train.fr  train.en.gz                        the two sides of a split; a file may be compressed
    opus.fr-en-train.fr  opus.fr-en-train.en     the names of OPUS-100
    Europarl.en-fr.en  Europarl.en-fr.fr         the names of Moses; Europarl.en-fr.scores may be there
    train-00000.tsv.zst  train-00001.tsv.zst     several files of one split
    src-train.txt  tgt-train.txt                 the names of OpenNMT
    valid.jsonl  test.tmx                        other formats

A word of the name says the split. Files without such a word are training text, if no other file of the
folder is.
"""

import collections
import re
from collections.abc import Sequence
from pathlib import Path

from gshard_nmt.data.language_codes import EXACT, folder_tag, is_english, names_language, nearest
from gshard_nmt.data.reading.rows import Input, listed
from gshard_nmt.data.reading.text_lines import without_compression
from gshard_nmt.errors import UserError

SPLITS = ("train", "dev", "test")

_SPLIT_WORDS = (
    (re.compile(r"train(ing)?\d*"), "train"),
    (re.compile(r"(news)?dev\d*|valid\d*|validation|val"), "dev"),
    (re.compile(r"(news)?devtest\d*"), "devtest"),
    (re.compile(r"(news)?test\d*|tst\d*"), "test"),
)
_FORMATS = {"tsv": "tsv", "csv": "tsv", "jsonl": "jsonl", "tmx": "tmx"}
_SCORES = "scores"
OPENNMT = re.compile(r"(src|tgt)-([\w-]+)\.txt")
"""The names of OpenNMT's files: src is the first language of the folder's name."""
_ABOUT = re.compile(r"(readme|license|copying)(\..*)?", re.IGNORECASE)
"""Files about the others, in any language."""


def find_inputs(
    folder: Path,
    names: Sequence[str],
    languages: tuple[str, str],
    notes: list[str],
    subset: str = "",
    pair: str = "",
) -> tuple[tuple[Input, ...], dict[str, str]]:
    """Returns the inputs of a language pair among the files of a folder, in the order of their names.

    Also returns what is wrong with splits that cannot be read, as sentences. `notes` get the files that
    look like text and are not read. `languages` are the BCP 47 tags of the source and the target, and
    `subset` the name of the corpus or "". The names of the inputs begin with `pair`, the folder of the
    pair, if they lie in one.
    """
    groups, others = _by_stem(folder, _without_copies(folder, names, notes), languages, notes)
    # Scores alone are no text.
    others += [files[_SCORES] for files in groups.values() if [*files] == [_SCORES]]
    groups = {stem: files for stem, files in groups.items() if [*files] != [_SCORES]}
    splits = {stem: split_of(stem) for stem in groups}
    has_train = "train" in splits.values()
    # FLORES has its test text in devtest; other corpora have both.
    devtest = "dev" if "test" in splits.values() else "test"
    problems: dict[str, str] = {}
    inputs: list[Input] = []
    lonely: list[str] = []
    prefix = "".join(f"{name}/" for name in (subset, pair) if name)
    for stem, files in sorted(groups.items()):
        split = devtest if splits[stem] == "devtest" else splits[stem]
        sides = [files[language] for language in languages if language in files]
        texts = [(_FORMATS[key], [name]) for key, name in files.items() if key in _FORMATS]
        if split is None and has_train:
            file = next(iter(files.values()))
            notes.append(f"{folder / file} is not read: other files of its folder are named train")
            continue
        if len(sides) == 2:
            texts.insert(0, ("aligned", [*sides, *(files[key] for key in files if key == _SCORES)]))
        elif sides:
            other = f"{stem}.{languages[languages[0] in files]}"
            problem = f"{folder} has {sides[0]} but not {other}; a split needs both files."
            if split:
                problems[split] = problem
            else:
                lonely.append(problem)
        for kind, own in texts:
            name = f"{prefix}{without_compression(own[0])}"
            paths = tuple(folder / file for file in own)
            inputs.append(Input(subset, *languages, split or "train", paths, kind, name))
    if others:
        listing = listed([folder / name for name in sorted(others)])
        notes.append(f"{listing} {'is' if len(others) == 1 else 'are'} not read: no known format")
    if any(text.split == "train" for text in inputs):
        notes += [problem.removesuffix(".") for problem in lonely]
    elif lonely:
        problems.setdefault("train", lonely[0])
    return tuple(inputs), problems


def _by_stem(
    folder: Path, names: Sequence[str], languages: tuple[str, str], notes: list[str]
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Returns the files of each stem, by the tag of their language, their format or "scores".

    The list has the files that were not understood. A second one of a stem and language gets a note.
    """
    groups: dict[str, dict[str, str]] = collections.defaultdict(dict)
    others: list[str] = []
    for name in names:
        if name.startswith(".") or _ABOUT.fullmatch(name):
            continue
        stem, _, ending = without_compression(name).rpartition(".")
        key = ending if ending in (*_FORMATS, _SCORES) else _side(ending, languages)
        if match := OPENNMT.fullmatch(without_compression(name)):
            stem, key = match[2], languages[match[1] == "tgt"]
        if stem and key:
            files = groups[stem]
            if key in files:
                left, other = (files[key], name) if ending == key else (name, files[key])
                notes.append(f"{folder / left} is not read: {other} is in the same language")
            if key not in files or ending == key:
                files[key] = name
        elif not name.lower().endswith(".md"):
            others.append(name)
    return groups, others


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
    for name in sorted(names, key=lambda name: (len(name), name)):
        base = without_compression(name)
        if base in plain:
            notes.append(f"{folder / name} is not read: {plain[base]} is beside it")
        else:
            plain[base] = name
    return sorted(plain.values())


def _side(ending: str, languages: tuple[str, str]) -> str:
    """Returns the language of the pair that the ending of a file names; "" if it names neither."""
    found = [tag for tag in languages if names_language(ending, tag)]
    if not found and EXACT.fullmatch(ending):
        found = [tag for tag in languages if nearest(ending, [tag])]
    return found[0] if found else ""


ENGLISH = "en"


def split_pair(name: str) -> tuple[str, str] | None:
    """Splits the name of a language pair: pt-BR-en -> (pt-BR, en), zh_cn-en -> (zh-CN, en).

    If capital letters do not tell regions from languages, a name with `en` at one end is split there.
    Returns BCP 47 tags, or None for a name of no pair. Raises UserError if it may be that of several.
    """
    parts = name.split("-")
    codes = [("-".join(parts[:i]), "-".join(parts[i:])) for i in range(1, len(parts))]
    pairs = [pair for pair in codes if all(map(EXACT.fullmatch, pair))] or codes
    tags = list(dict.fromkeys(pair for pair in map(_tags, pairs) if pair))
    if len(tags) > 1:
        tags = [pair for pair in tags if ENGLISH in pair] or tags
    if len(tags) > 1:
        readings = ", or ".join(f"{source} and {target}" for source, target in tags)
        names = " or ".join(f"{source}-{target}" for source, target in tags)
        raise UserError(
            f"the name {name} is not clear: it may be the pair of {readings}. Write regions with capital "
            f"letters: {names}."
        )
    return tags[0] if tags else None


def pair_in(stem: str) -> tuple[str, str] | None:
    """Returns the pair that a part of a file's name names; None if no part does.

    Europarl.en-fr has the pair (en, fr), and opus.de-en-train the pair (de, en). The parts stand between
    dots. The name of a corpus may look like a pair, so the last part counts.
    """
    for part in reversed(stem.split(".")):
        while "-" in part and split_of(part.rpartition("-")[2]):
            part = part.rpartition("-")[0]
        if "-" in part and (pair := split_pair(part)):
            return pair
    return None


def _tags(codes: tuple[str, str]) -> tuple[str, str] | None:
    """Returns the tags of two codes; None if one is no code or both are one language.

    English of any region is `en`, unless both languages are English.
    """
    source, target = map(folder_tag, codes)
    if source is None or target is None or names_language(source, target):
        return None
    if is_english(source) and is_english(target):
        return source, target
    return ENGLISH if is_english(source) else source, ENGLISH if is_english(target) else target
