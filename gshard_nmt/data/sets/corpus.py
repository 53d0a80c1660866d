"""Parallel text on disk.

A corpus is a folder with one folder for each language pair:

    fr-en/train.fr      the two sides of a split; line N of one file translates line N of the other
    fr-en/train.en.gz   a file may be compressed
    de-en/opus.de-en-dev.de, de-en/opus.de-en-dev.en      the file names of OPUS-100
    pt-BR-en/test.tsv   two columns with a tab between them, in the order of the folder's name

`reading/layout.py` describes all names. Files such as Europarl.en-fr.fr, which name their pair, may also
lie in the corpus folder itself.
"""

import collections
import dataclasses
import gzip
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gshard_nmt import files, paths
from gshard_nmt.data.language_codes import folder_tag
from gshard_nmt.data.reading import layout
from gshard_nmt.data.reading.layout import ENGLISH, SPLITS, find_inputs, is_text, split_pair
from gshard_nmt.data.reading.reader import read_blocks
from gshard_nmt.data.reading.rows import Input, SentencePair, listed
from gshard_nmt.data.reading.text_lines import without_compression
from gshard_nmt.errors import UserError

__all__ = ["ENGLISH", "SPLITS", "Input", "SentencePair", "read_blocks"]


@dataclasses.dataclass(frozen=True)
class CorpusPair:
    """A language pair of a corpus, in the order of its folder's name.

    A corpus without a name has the subset "". `problems` says what is wrong with splits that cannot be
    read. `label` is the name of the pair in figures, if it is not the usual one.
    """

    folder: Path
    source: str
    target: str
    subset: str = ""
    texts: tuple[Input, ...] = ()
    problems: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    label: str = ""

    @property
    def name(self) -> str:
        """The name of the folder, with that of the subset: "fr-en" or "fr-en.back"."""
        return f"{self.folder.name}.{self.subset}" if self.subset else self.folder.name

    @property
    def languages(self) -> frozenset[str]:
        return frozenset((self.source, self.target))

    @property
    def language(self) -> str:
        """The name of the pair in figures: the language that is not English, or "fr-de"."""
        if self.label:
            return self.label
        if self.source == ENGLISH:
            return self.target
        return self.source if self.target == ENGLISH else f"{self.source}-{self.target}"

    def inputs(self, split: str) -> tuple[Input, ...]:
        """Returns the inputs of a split, if any. Raises UserError if a side is missing."""
        if split in self.problems:
            raise UserError(self.problems[split])
        return tuple(text for text in self.texts if text.split == split)

    def reversed(self) -> "CorpusPair":
        texts = tuple(text.reversed() for text in self.texts)
        return dataclasses.replace(self, source=self.target, target=self.source, texts=texts)


@dataclasses.dataclass(frozen=True)
class Listing:
    """The pairs of a corpus, and notes: sentences without full stops. Two may have equal languages."""

    pairs: list[CorpusPair]
    notes: list[str]


_LAYOUT = (
    "it must contain files such as fr-en/train.fr and fr-en/train.en; they may be compressed: .gz, .zst, "
    ".xz or .bz2"
)


def find_pairs(corpus: Path, damaged: bool = False, subset: str = "") -> list[CorpusPair]:
    """Returns the language pairs of a corpus folder, sorted by name; see `list_corpus`."""
    return list_corpus(corpus, subset, damaged).pairs


def list_corpus(corpus: Path, subset: str = "", damaged: bool = False) -> Listing:
    """Returns the language pairs of a corpus folder, sorted by name.

    With `damaged`, also pairs with a split that lacks a side; reading that split fails.

    Raises:
      UserError: there is no folder or no pair in it, the name of a folder with text is not clear; without
        `damaged`, also a split that lacks a side.
    """
    pairs: list[CorpusPair] = []
    notes: list[str] = []
    with paths.reaching("corpus", corpus):
        if not corpus.is_dir():
            raise UserError(f"the corpus {corpus}: there is no such folder; {_LAYOUT}.")
        names: list[str] = []
        for path in sorted(corpus.iterdir()):
            if path.is_dir():
                pairs += _pair_of_folder(path, subset, notes)
            else:
                names.append(path.name)
    pairs += _loose_pairs(corpus, names, subset, notes)
    pairs = [pair for pair in pairs if pair.texts or pair.problems]
    pairs.sort(key=lambda pair: pair.folder.name)
    if not damaged:
        for problem in (text for pair in pairs for text in pair.problems.values()):
            raise UserError(problem)
    if not pairs:
        left_out = f" Left out: {'; '.join(notes[:3])}." if notes else ""
        parent = ""
        if split_pair(corpus.name):
            parent = " Its name is that of a pair, so give the folder that contains it."
        raise UserError(
            f"the corpus {corpus} contains no language pair; {_LAYOUT}.{parent}{left_out}"
        )
    return Listing(pairs, notes)


def _pair_of_folder(folder: Path, subset: str, notes: list[str]) -> Iterator[CorpusPair]:
    # A named pipe would wait for its writer for ever.
    names = [path.name for path in folder.iterdir() if paths.is_url(path) or not path.is_fifo()]
    has_text, languages = any(map(_looks_like_text, names)), None
    try:
        languages = split_pair(folder.name)
    except UserError as error:
        if has_text:
            raise UserError(f"{folder}: {error}") from None
    if languages:
        texts, problems = find_inputs(folder, names, languages, notes, subset, folder.name)
        yield CorpusPair(folder, *languages, subset, texts, problems)
    elif has_text or ("-" in folder.name and names):
        notes.append(
            f"{folder} is not read: its name is not two language codes of ISO 639 such as fr-en"
        )


def _loose_pairs(
    corpus: Path, names: Sequence[str], subset: str, notes: list[str]
) -> Iterator[CorpusPair]:
    """Yields the pairs of files that lie in the corpus folder itself and name their languages."""
    by_pair: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    others = []
    for name in names:
        try:
            languages = layout.pair_in(without_compression(name).rpartition(".")[0])
        except UserError as error:
            notes.append(f"{corpus / name} is not read: {str(error).removesuffix('.')}")
            continue
        if languages:
            by_pair[languages].append(name)
        elif _looks_like_text(name):
            others.append(corpus / name)
    if others:
        verb = "is" if len(others) == 1 else "are"
        notes.append(f"{listed(others)} {verb} not read: put files into a folder such as fr-en")
    for languages, own in by_pair.items():
        texts, problems = find_inputs(corpus, own, languages, notes, subset)
        yield CorpusPair(corpus / "-".join(languages), *languages, subset, texts, problems)


def _looks_like_text(name: str) -> bool:
    stem, _, ending = without_compression(name).rpartition(".")
    return is_text(name) or bool(layout.split_of(stem) and folder_tag(ending))


def read_pairs(pair: CorpusPair, split: str, source: str, target: str) -> Iterator[tuple[str, str]]:
    """Yields the (source, target) lines of a split, in either direction of the pair."""
    inputs = pair.inputs(split)
    if inputs and (source, target) == (pair.target, pair.source):
        inputs = tuple(text.reversed() for text in inputs)
    elif inputs and (source, target) != (pair.source, pair.target):
        raise UserError(f"{pair.folder} has {pair.source}-{pair.target}, not {source}-{target}.")
    for text in inputs:
        for block in read_blocks(text):
            yield from (row[:2] for row in block)


def write_pairs(
    folder: Path, split: str, source: str, target: str, rows: Sequence[tuple[str, str]]
) -> None:
    """Writes both sides of a split as .gz files. Equal rows give equal bytes in one version of Python."""
    folder.mkdir(parents=True, exist_ok=True)
    for column, language in enumerate((source, target)):
        path = folder / f"{split}.{language}.gz"
        text = "".join(f"{row[column]}\n" for row in rows)
        files.write(path, gzip.compress(text.encode(), compresslevel=4, mtime=0))
