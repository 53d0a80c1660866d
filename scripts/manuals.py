"""Makes a corpus of manuals from Debian's packages: LibreOffice's help and the Developer's Reference.

    .venv/bin/python scripts/manuals.py --out data/manuals/corpus

It downloads 115 MB with `apt-get download`, needs no root and installs nothing. In --out are then two
corpora: `help`, with 31 languages to English in train, dev and test, and `reference`, which is all test.

A paragraph has the same place in all translations of a page, so no aligner is needed. As in
`gshard-data harvest`, a hash of the English decides the split, so no English text of dev or test is in
the training text of any language.
"""

import argparse
import collections
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.progress import Progress

from gshard_nmt import outputs
from gshard_nmt.data.language_codes import folder_tag
from gshard_nmt.data.sets.corpus import ENGLISH, SPLITS, write_pairs
from gshard_nmt.data.text.normal_form import message_form, sentence_form
from gshard_nmt.errors import UserError
from gshard_nmt.harvest import hash_split
from gshard_nmt.terminal import Terminal, table

MANUALS = {
    "help": ("libreoffice-help-en-us", "libreoffice-help-"),
    "reference": ("developers-reference", "developers-reference-"),
}
"""The English package of each manual, and how the names of the others begin."""
NOT_TRANSLATED = ("common", "en-gb", "en-us")
UPDATE = "The lists of apt may be missing or old: give `sudo apt-get update`, and then this again."

_BLOCK = re.compile("p|h[1-6]|dt|figcaption|th|td")
_VOID = re.compile("br|hr|img|input|link|meta|wbr")
_CODE = re.compile("(bas|smath|sql)?code(intable)?")
_LEFT_OUT = re.compile("headerlink|section-number|[A-Z]+")
"""Classes without text of the manual. Capitals are variants for one system, such as MAC."""

Texts = dict[tuple[str, ...], str]  # the place of each paragraph -> its text


class Page(HTMLParser):
    """Collects the paragraphs of a page in `texts`.

    The place is the page, the id, and how often the id came before. In pages of Sphinx it is the section,
    the number of the block, and how many it has. So sections of unequal length make no wrong pairs.
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__()
        self.texts: Texts = {}
        self._sections: list[tuple[str, list[str]]] = []  # the open ones: id, texts of blocks
        self._block = self._id = ""  # of the open block, if any
        self._parts: list[str] = []
        self._skipped = 0  # open elements, from one that is left out
        self._seen: collections.Counter[str] = collections.Counter()
        self._name = name
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        name, kind = (dict(attrs).get(key) or "" for key in ("id", "class"))
        if _VOID.fullmatch(tag):
            self._parts.append(" ")
        elif self._skipped or (self._block and _LEFT_OUT.fullmatch(kind)):
            self._skipped += 1
        elif tag == "section":
            self._end_block()
            self._sections.append((name, []))
        elif _BLOCK.fullmatch(tag):
            self._end_block()
            self._id = name if name.startswith(("par_", "hd_")) else ""
            self._seen[self._id] += 1
            if (self._id or self._sections) and not _CODE.fullmatch(kind):
                self._block = tag

    def handle_endtag(self, tag: str) -> None:
        if self._skipped:
            self._skipped -= 1
        elif tag == self._block or tag == "section":
            self._end_block()
            if tag == "section" and self._sections:
                name, texts = self._sections.pop()
                places = ((self._name, name, f"{n} of {len(texts)}") for n in range(len(texts)))
                self.texts |= zip(places, texts, strict=True)

    def handle_data(self, data: str) -> None:
        if self._block and not self._skipped:
            self._parts.append(data)

    def _end_block(self) -> None:
        if self._block and (text := " ".join("".join(self._parts).split())):
            if self._id:
                self.texts[self._name, self._id, str(self._seen[self._id])] = text
            else:
                self._sections[-1][1].append(text)
        self._block, self._parts, self._skipped = "", [], 0


def split_rows(english: Texts, other: Texts) -> Mapping[str, list[tuple[str, str]]]:
    """Returns split -> rows of (translation, English), without duplicates and text in English."""
    rows: dict[str, dict[str | tuple[str, str], tuple[str, str]]] = {split: {} for split in SPLITS}
    pairs = {(text, english[place]) for place, text in other.items() if place in english}
    # In the order of a hash, so that the same text gives the same corpus.
    for row in sorted(pairs, key=lambda row: hashlib.blake2b("\t".join(row).encode()).digest()):
        form, split = sentence_form(row[1]), hash_split(message_form(row[1]))
        if form and sentence_form(row[0]) not in ("", form):
            # Of rows with the same English, dev and test keep the first.
            rows[split].setdefault(row if split == "train" else form, row)
    return {split: list(chosen.values()) for split, chosen in rows.items()}


def run_apt(*command: str, folder: Path | None = None) -> str:
    """Returns what a program of Debian prints. UserError if it is not there or fails."""
    if not shutil.which(command[0]):
        raise UserError(f"{command[0]} is not here; run this on Debian or Ubuntu")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"{' '.join(command)} failed: {done.stderr.strip()[-300:]}\n{UPDATE}")
    return done.stdout


def translations(prefix: str) -> dict[str, str]:
    """Returns the packages by the ending of their names, such as pt-br."""
    found = sorted(run_apt("apt-cache", "pkgnames", prefix).split())
    if not found:
        raise UserError(f"apt knows no package {prefix}*. {UPDATE}")
    names = {name.removeprefix(prefix): name for name in found}
    return {ending: name for ending, name in names.items() if ending not in NOT_TRANSLATED}


def fetch(package: str, folder: Path) -> None:
    """Downloads a package and unpacks it into a folder."""
    run_apt("apt-get", "download", package, folder=folder)
    run_apt("dpkg-deb", "-x", *(str(path) for path in folder.glob("*.deb")), str(folder))


def read_package(package: str, place: Path) -> Texts:
    texts: Texts = {}
    with tempfile.TemporaryDirectory(dir=place, prefix=f"{package}.") as folder:
        fetch(package, Path(folder))
        for path in sorted(Path(folder).rglob("*.html")):
            # Above "text" is a folder with the name of the language.
            name = path.as_posix().rpartition("/text/")[2] if "text" in path.parts else path.name
            texts |= Page(name, path.read_text(encoding="utf-8", errors="replace")).texts
    return texts


def make_corpus(out: Path) -> None:
    """Writes both corpora into a new folder, which gets its name when it is complete."""
    packages = {manual: translations(prefix) for manual, (_, prefix) in MANUALS.items()}
    console, rows = Terminal(stderr=True), []
    progress = Progress(console=console, disable=not console.is_terminal)
    with outputs.new_folder(out) as folder, progress:
        task = progress.add_task("reading manuals", total=sum(map(len, packages.values())))
        for manual, others in packages.items():
            english = read_package(MANUALS[manual][0], folder)
            for ending, package in others.items():
                splits = split_rows(english, read_package(package, folder))
                if manual == "reference":
                    splits = {"test": [row for some in splits.values() for row in some]}
                tag = folder_tag(ending) or ending
                # A package may have nothing but English, and then there is no folder.
                for split, some in splits.items() if any(splits.values()) else ():
                    write_pairs(folder / manual / f"{tag}-{ENGLISH}", split, tag, ENGLISH, some)
                rows.append((f"{manual}/{tag}", *(f"{len(splits.get(s, ())):,}" for s in SPLITS)))
                progress.advance(task)
    Terminal().print(table(f"{out}: pairs with English", ("corpus", *SPLITS), rows))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, default="data/manuals/corpus", help="a new folder")
    out = parser.parse_args(arguments).out.absolute()
    if out.exists():
        parser.error(f"--out {out} exists; remove it, or choose another folder")
    try:
        outputs.check_folder("--out", out)
        make_corpus(out)
    except (UserError, OSError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("interrupted, nothing is kept; give the same command again", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
