"""Finds the message catalogues of a machine and makes a parallel corpus of all languages to English.

Software comes with translations of its messages and labels, in over a hundred languages. A few
languages have many messages and most have few, as in the large corpora of the web.
"""

import collections
import dataclasses
import hashlib
import os
import re
import site
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt.data.catalogues.messages import Message, UnreadableError, clean, read_catalogue
from gshard_nmt.data.language_codes import has_name, is_english, locale_tag
from gshard_nmt.data.sets.corpus import ENGLISH, SPLITS, write_pairs
from gshard_nmt.data.text.normal_form import message_form, sentence_form
from gshard_nmt.data.worker_pool import WorkerPool, usable_cpus

_LIST_DOMAINS = re.compile(
    r"iso[-_]?\d+.*|iso_.*|xkeyboard-config.*|tzdata.*|.*countries.*|.*-names?"
)
_FUNCTION_WORDS = frozenset(
    """
    a an and are as at be by can cannot do for from has have if in into is it must no not of on or
    please should that the then there this to use was when will with you your %s %d
    """.split()  # noqa: SIM905
)
_SENTENCE = re.compile(r"[.?!:…,;]\s|[.?!:…]$|%[sdn(]|\{")
_WORDS = frozenset("bak bin ext kde man min mo new run sh src".split())  # noqa: SIM905
"""Names of folders that are also codes of languages."""
_MINIMUM_LIST = 40
_LIST_SHARE = 0.9
_BUCKETS = 1000
_PART = 16
"""The number of catalogues that a worker process reads at a time."""
_Row = tuple[str, str]  # translation, English


@dataclasses.dataclass(frozen=True)
class Catalogue:
    """A catalogue file.

    Attributes:
      path: the .mo or .po file.
      domain: the program that the messages belong to.
      language: BCP 47 tag of the translations.
    """

    path: Path
    domain: str
    language: str


@dataclasses.dataclass(frozen=True)
class Harvest:
    """The messages of all catalogues: cleaned, without duplicates, and split.

    Attributes:
      rows: (language, split) -> rows of (translation, English) in their final order. The split
        "names" has the messages of lists of names.
      dropped: reason -> number of messages left out.
      catalogues: number of files that were read.
      unreadable: the damaged files.
      unclear: the files whose plurals have no right rule in the header.
      list_domains: the domains that were recognized as lists of names.
    """

    rows: Mapping[tuple[str, str], list[tuple[str, str]]]
    dropped: Mapping[str, int]
    catalogues: int
    unreadable: tuple[Path, ...]
    unclear: tuple[Path, ...]
    list_domains: tuple[str, ...]

    def languages(self) -> list[str]:
        """Returns the languages, sorted from most to fewest training pairs."""
        languages = {language for language, _ in self.rows}
        return sorted(languages, key=lambda tag: (-self.count(tag, "train"), tag))

    def count(self, language: str, split: str) -> int:
        """Returns the number of pairs of a language in a split."""
        return len(self.rows.get((language, split), ()))


def default_roots() -> list[Path]:
    """Returns the system's locale folders and this Python's package folders, if they exist."""
    data = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    folders = [
        Path(part) / name for part in data.split(":") for name in ("locale", "locale-langpack")
    ]
    folders += [Path(sys.prefix) / "share" / "locale"]
    folders += [Path(p) for p in [*site.getsitepackages(), site.getusersitepackages()]]
    unique = dict.fromkeys(Path(os.path.realpath(folder)) for folder in folders if folder.is_dir())
    return list(unique)


def find_catalogues(roots: Sequence[Path]) -> list[Catalogue]:
    """Returns the catalogues below the roots, except English ones, in a fixed order.

    A .po file is left out if the .mo file that was made from it is beside it.
    """
    catalogues = {}
    for root in roots:
        for folder, folders, files in os.walk(root):
            folders.sort()
            for name in sorted(files):
                stem, _, suffix = name.rpartition(".")
                if suffix not in ("mo", "po") or not stem:
                    continue
                if suffix == "po" and f"{stem}.mo" in files:
                    continue
                catalogue = _identify(Path(folder), stem, name)
                if catalogue:
                    catalogues[catalogue.path] = catalogue
    return list(catalogues.values())


def _identify(folder: Path, stem: str, name: str) -> Catalogue | None:
    """Finds language and domain from `fr/LC_MESSAGES/domain.mo`, `fr/domain.po` or `fr.po`."""
    if folder.name == "LC_MESSAGES":
        locale, domain = folder.parent.name, stem
        if domain in ("django", "djangojs", "messages"):  # not the name of a program
            domain = f"{folder.parent.parent.parent.name}/{stem}"
    elif "@" in stem or _is_locale(stem):
        locale, domain = stem, folder.parent.name
    elif _is_locale(folder.name):
        locale, domain = folder.name, stem
    else:
        return None
    language = locale_tag(locale)
    if language is None or is_english(language):
        return None
    return Catalogue(folder / name, domain, language)


def _is_locale(name: str) -> bool:
    """Returns whether a name is a locale's and not a word with three letters: `doc`, `src`, `bin`."""
    tag = locale_tag(name)
    return tag is not None and name not in _WORDS and has_name(tag.split("-")[0])


def read_and_split(
    catalogues: Sequence[Catalogue],
    dev_share: float = 0.01,
    test_share: float = 0.02,
    progress: Callable[[int], None] | None = None,
    workers: int = 0,
) -> Harvest:
    """Reads the catalogues, cleans their messages, removes duplicates, and splits them.

    A hash of the English side decides the split. The hash ignores case, spacing, punctuation, digits,
    placeholders and plural endings. So all variants of a message are in the same split, in every
    language. Another hash decides the order within a split. So the corpus depends neither on the file
    system nor on the number of workers.

    Args:
      catalogues: the files.
      dev_share, test_share: fractions of the distinct English sides that go to dev and test.
      progress: called with the number of catalogues read so far.
      workers: number of processes; 0 means one for each core.
    """
    dropped: collections.Counter[str] = collections.Counter()
    messages: dict[tuple[str, str], set[_Row]] = collections.defaultdict(set)
    families = Families()
    unreadable, unclear = [], []
    for number, (catalogue, cleaned, reasons, is_unclear) in enumerate(
        _read_all(catalogues, workers), 1
    ):
        unreadable += [catalogue.path] * (cleaned is None)
        unclear += [catalogue.path] * is_unclear
        dropped.update(reasons)
        rows = messages[catalogue.language, catalogue.domain]
        for message in cleaned or ():
            before = len(rows)
            rows.add((message.translation, message.english))
            if message.singular:
                families.join(message_form(message.english), message_form(message.singular))
            dropped["duplicate"] += len(rows) == before
        if progress:
            progress(number)
    lists = _list_domains(messages)
    names, sentences = _by_language(messages, lists, dropped)
    split_of: dict[str, str] = {}
    bounds = (round(test_share * _BUCKETS), round((test_share + dev_share) * _BUCKETS))
    splits: dict[tuple[str, str], list[_Row]] = {}
    for language, rows in sentences.items():
        by_split = _split(rows, families, split_of, bounds, dropped)
        splits |= {(language, split): chosen for split, chosen in by_split.items()}
    for language, rows in names.items():
        only_names = rows - sentences.get(language, set())
        splits[language, "names"] = sorted(only_names, key=lambda row: _digest("\t".join(row)))
    files = (len(catalogues), tuple(unreadable), tuple(unclear))
    return Harvest(splits, dict(dropped), *files, tuple(sorted(lists)))


def _by_language(
    messages: Mapping[tuple[str, str], set[_Row]],
    lists: set[str],
    dropped: collections.Counter[str],
) -> tuple[dict[str, set[_Row]], dict[str, set[_Row]]]:
    """Returns the rows of each language: first the lists of names, then all other rows."""
    names: dict[str, set[_Row]] = collections.defaultdict(set)
    sentences: dict[str, set[_Row]] = collections.defaultdict(set)
    for (language, domain), rows in messages.items():
        joined = (names if domain in lists else sentences)[language]
        before = len(joined)
        joined |= rows
        dropped["duplicate"] += before + len(rows) - len(joined)
    return names, sentences


def write_corpus(harvest: Harvest, out: Path, minimum_pairs: int = 1) -> list[str]:
    """Writes `out/<language>-en/` and `out/names/<language>-en/`. Returns the languages written."""
    languages = []
    for language in harvest.languages():
        if harvest.count(language, "train") < minimum_pairs:
            continue
        languages.append(language)
        for split in SPLITS:
            rows = harvest.rows.get((language, split), [])
            write_pairs(out / f"{language}-{ENGLISH}", split, language, ENGLISH, rows)
        if names := harvest.rows.get((language, "names")):
            folder = out / "names" / f"{language}-{ENGLISH}"
            write_pairs(folder, "train", language, ENGLISH, names)
    return languages


def _read_all(
    catalogues: Sequence[Catalogue], workers: int
) -> Iterator[tuple[Catalogue, list[Message] | None, Mapping[str, int], bool]]:
    """Yields what `_read_one` returns, in order. Raises UserError if a worker process is killed."""
    parts = [catalogues[i : i + _PART] for i in range(0, len(catalogues), _PART)]
    ready, following = {}, 0
    with WorkerPool(workers or usable_cpus()) as pool:
        for number, results in pool.map(_read_part, [(part,) for part in parts]):
            ready[number] = results
            while following in ready:
                yield from ready.pop(following)
                following += 1


def _read_part(catalogues: Sequence[Catalogue]) -> list[Any]:
    return [_read_one(catalogue) for catalogue in catalogues]


def _read_one(
    catalogue: Catalogue,
) -> tuple[Catalogue, list[Message] | None, collections.Counter[str], bool]:
    """Returns the catalogue, its cleaned messages (None if damaged), its drops by reason, and whether
    the header has no right rule for its plurals.
    """
    reasons: collections.Counter[str] = collections.Counter()
    messages: list[Message] = []
    try:
        contents = read_catalogue(catalogue.path)
    except (UnreadableError, OSError):
        return catalogue, None, reasons, False
    reasons["incomplete plural"] += len(contents.incomplete)
    for message in contents.messages:
        cleaned = clean(message)
        if isinstance(cleaned, Message):
            messages.append(cleaned)
        else:
            reasons[cleaned] += 1
    return catalogue, messages, reasons, contents.unclear > 0


def _list_domains(messages: Mapping[tuple[str, str], Iterable[tuple[str, str]]]) -> set[str]:
    """Returns the domains that are lists of names: countries, languages, keyboard layouts.

    Some domains are known. Another domain is a list if it has at least 40 distinct English sides and
    at least 9 in 10 look like names: no sentence punctuation, no placeholder, no function word, and a
    capital at the start of each longer word. In catalogues of programs fewer than 2 in 3 look like
    names, even if the labels are in title case.
    """
    english: dict[str, set[str]] = collections.defaultdict(set)
    for (_, domain), pairs in messages.items():
        english[domain].update(row[1] for row in pairs)
    return {
        domain
        for domain, sides in english.items()
        if _LIST_DOMAINS.fullmatch(domain)
        or (len(sides) >= _MINIMUM_LIST and name_share(sides) >= _LIST_SHARE)
    }


def name_share(sides: Iterable[str]) -> float:
    """Returns the fraction of English sides that look like names."""
    looks = [_looks_like_name(side) for side in sides]
    return sum(looks) / max(len(looks), 1)


def _looks_like_name(english: str) -> bool:
    words = english.split()
    if len(words) > 8 or _SENTENCE.search(english):
        return False
    if any(word.casefold() in _FUNCTION_WORDS - {"and", "of", "the"} for word in words):
        return False
    return all(word[0].isupper() for word in words if len(word) > 3 and word[0].isalpha())


def _split(
    rows: Iterable[_Row],
    families: "Families",
    split_of: dict[str, str],
    bounds: tuple[int, int],
    dropped: collections.Counter[str],
) -> dict[str, list[_Row]]:
    """Returns the rows of each split in the order of their hashes.

    In dev and test, only the first of the rows with the same English is kept.

    Args:
      rows: (translation, English) of one language.
      families: the forms of messages that must be in the same split.
      split_of: `message_form` of the English side -> split; filled here, and shared by all languages.
      bounds: hashes below the first number go to test, other hashes below the second go to dev.
      dropped: reason -> number of messages left out; changed here.
    """
    splits: dict[str, list[tuple[str, _Row]]] = {split: [] for split in SPLITS}
    for row in rows:
        key = message_form(row[1])
        if key not in split_of:
            digest = _digest(f"split {families.first(key)}")
            bucket = int(digest[:8], 16) % _BUCKETS
            split = "test" if bucket < bounds[0] else "dev" if bucket < bounds[1] else "train"
            split_of[key] = split
        splits[split_of[key]].append((_digest("\t".join(row)), row))
    result = {"train": [row for _, row in sorted(splits["train"])]}
    for split in ("dev", "test"):
        first: dict[str, _Row] = {}
        for _, row in sorted(splits[split]):
            first.setdefault(sentence_form(row[1]) or row[1], row)
        dropped[f"same English in {split}"] += len(splits[split]) - len(first)
        result[split] = list(first.values())
    return result


class Families:
    """Joins the forms of messages that are variants of each other although their letters differ.

    An example is the entry with the singular "once a day" and the plural "every %d days".
    """

    def __init__(self) -> None:
        """Starts with each form in a family of its own."""
        self._earlier: dict[str, str] = {}

    def first(self, form: str) -> str:
        """Returns the first form, in the order of the alphabet, of the family of a form."""
        while (earlier := self._earlier.get(form, form)) != form:
            form = earlier
        return form

    def join(self, form: str, other: str) -> None:
        """Makes one family of the families of two forms."""
        first, second = sorted((self.first(form), self.first(other)))
        if first != second:
            self._earlier[second] = first


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
