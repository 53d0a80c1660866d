"""Parallel text on disk: `<src>-<tgt>/<split>.<lang>[.gz]`, line N of one side translating line N.

OPUS-100 naming (`opus.<src>-<tgt>-<split>.<lang>`) and two-column TSV (`<split>.tsv`, columns in the
order of the folder's name) are read as they are.
"""

import dataclasses
import gzip
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gshard_nmt import files
from gshard_nmt.errors import UserError

SPLITS = ("train", "dev", "test")
ENGLISH = "en"


@dataclasses.dataclass(frozen=True)
class CorpusPair:
    """One folder of a corpus.

    Attributes:
      folder: holds the files of all splits.
      source, target: the languages in the order of the folder's name, BCP 47.
    """

    folder: Path
    source: str
    target: str

    @property
    def language(self) -> str:
        """The side that is not English; the first side where neither or both are."""
        return self.target if self.source == ENGLISH else self.source

    def files(self, split: str) -> tuple[Path, ...] | None:
        """The two files of a split, or the one TSV file; None where there is none."""
        languages = (self.source, self.target)
        opus = "-".join(sorted(languages))
        for names in (
            [f"{split}.{language}" for language in languages],
            [f"opus.{opus}-{split}.{language}" for language in languages],
            [f"{split}.tsv"],
        ):
            found = [_plain_or_gz(self.folder / name) for name in names]
            if all(found):
                return tuple(path for path in found if path)
            if any(found):
                missing = names[found.index(None)]
                raise UserError(
                    f"{self.folder} has {next(p.name for p in found if p)} but not {missing}; "
                    "give both sides of a split."
                )
        return None


def find_pairs(corpus: Path) -> list[CorpusPair]:
    """The language pairs of a corpus folder, by name.

    Raises:
      UserError: there is no such folder, or it holds no pair.
    """
    layout = (
        "expected <src>-<tgt>/train.<lang>[.gz], for instance fr-en/train.fr and fr-en/train.en"
    )
    if not corpus.is_dir():
        raise UserError(f"--corpus {corpus}: there is no such folder; {layout}.")
    pairs = []
    for folder in sorted(path for path in corpus.iterdir() if path.is_dir()):
        languages = _languages(folder.name)
        if languages:
            pair = CorpusPair(folder, *languages)
            if any(pair.files(split) for split in SPLITS):
                pairs.append(pair)
    if not pairs:
        raise UserError(f"--corpus {corpus} holds no language pair; {layout}.")
    return pairs


def read_pairs(pair: CorpusPair, split: str, source: str, target: str) -> Iterator[tuple[str, str]]:
    """The (source, target) lines of a split, oriented as asked; none where the split is missing.

    Raises:
      UserError: the two sides have different numbers of lines, a line is not UTF-8, or a line of a
        TSV file does not have two columns.
    """
    files = pair.files(split)
    if files is None:
        return
    rows = _tsv(files[0]) if len(files) == 1 else _aligned(*files)
    if (source, target) == (pair.source, pair.target):
        yield from rows
    elif (source, target) == (pair.target, pair.source):
        yield from ((second, first) for first, second in rows)
    else:
        raise UserError(f"{pair.folder} holds {pair.source}-{pair.target}, not {source}-{target}.")


def write_pairs(
    folder: Path, split: str, source: str, target: str, rows: Sequence[tuple[str, str]]
) -> None:
    """Writes both sides of a split, compressed; the same rows always give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for column, language in enumerate((source, target)):
        path = folder / f"{split}.{language}.gz"
        text = "".join(f"{row[column]}\n" for row in rows)
        files.write(path, gzip.compress(text.encode(), compresslevel=4, mtime=0))


def fingerprint(pairs: Sequence[CorpusPair]) -> str:
    """16 hexadecimal digits that name the text of these pairs, however it is compressed."""
    digest = hashlib.sha256()
    for pair in pairs:
        for split in SPLITS:
            for path in pair.files(split) or ():
                digest.update(f"{pair.folder.name}/{path.name.removesuffix('.gz')}\0".encode())
                with _open(path) as file:
                    while block := file.read(1 << 20):
                        digest.update(block)
    return digest.hexdigest()[:16]


def _languages(name: str) -> tuple[str, str] | None:
    """`pt-BR-en` -> (pt-BR, en), `en-pt-BR` -> (en, pt-BR), `fr-de` -> (fr, de)."""
    if name.endswith(f"-{ENGLISH}"):
        return name.removesuffix(f"-{ENGLISH}"), ENGLISH
    if name.startswith(f"{ENGLISH}-"):
        return ENGLISH, name.removeprefix(f"{ENGLISH}-")
    parts = name.split("-")
    return (parts[0], parts[1]) if len(parts) == 2 else None


def _plain_or_gz(path: Path) -> Path | None:
    compressed = path.with_name(f"{path.name}.gz")
    return next((p for p in (path, compressed) if p.exists()), None)


def _open(path: Path):
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _lines(path: Path) -> Iterator[str]:
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            try:
                yield line.decode().rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{path}, line {number} is not UTF-8 ({error.reason}); convert the file to UTF-8."
                ) from None


def _aligned(first: Path, second: Path) -> Iterator[tuple[str, str]]:
    lines = itertools.zip_longest(_lines(first), _lines(second))
    for done, (one, other) in enumerate(lines):
        if one is None or other is None:
            counts = [done + (one is not None), done + (other is not None)]
            for rest in lines:
                counts = [n + (line is not None) for n, line in zip(counts, rest, strict=True)]
            raise UserError(
                f"the two sides of {first.parent.name} differ in length: {first} has {counts[0]} "
                f"lines, {second} has {counts[1]}. Line N of one must translate line N of the other."
            )
        yield one, other


def _tsv(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(_lines(path), 1):
        columns = line.split("\t")
        if len(columns) != 2:
            raise UserError(
                f"{path}, line {number} has {len(columns)} columns; a corpus in TSV has two, "
                "source and target, with a tab between them."
            )
        yield columns[0], columns[1]


def count_lines(pair: CorpusPair, split: str) -> int:
    """How many pairs a split has."""
    return sum(1 for _ in read_pairs(pair, split, pair.source, pair.target))


def first_pairs(rows: Iterable[tuple[str, str]], limit: int) -> list[tuple[str, str]]:
    """The first `limit` rows; all of them where it is 0."""
    return list(itertools.islice(rows, limit or None))
