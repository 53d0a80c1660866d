"""From the message catalogues of a machine to one parallel corpus of all languages to English.

Every program that speaks many languages ships its translations: sentences and labels, mostly by
volunteers, in over a hundred languages with a power law of sizes.
"""

import collections
import dataclasses
import hashlib
import multiprocessing
import os
import re
import site
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from gshard_nmt.data.catalogues.locales import bcp47, is_english
from gshard_nmt.data.catalogues.messages import Message, UnreadableError, clean, read_catalogue
from gshard_nmt.data.corpus import ENGLISH, SPLITS, write_pairs

_LIST_DOMAINS = re.compile(
    r"iso[-_]?\d+.*|iso_.*|xkeyboard-config.*|tzdata.*|.*countries.*|.*-names?"
)
_FUNCTION_WORDS = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "by",
        "can",
        "cannot",
        "do",
        "for",
        "from",
        "has",
        "have",
        "if",
        "in",
        "into",
        "is",
        "it",
        "must",
        "no",
        "not",
        "of",
        "on",
        "or",
        "please",
        "should",
        "that",
        "the",
        "then",
        "there",
        "this",
        "to",
        "use",
        "was",
        "when",
        "will",
        "with",
        "you",
        "your",
        "%s",
        "%d",
    ]
)
_SENTENCE = re.compile(r"[.?!:…,;]\s|[.?!:…]$|%[sdn(]|\{")
_MINIMUM_LIST = 40
_LIST_SHARE = 0.9
_KEY = re.compile(r"[\W_\d]+")
_BUCKETS = 1000


@dataclasses.dataclass(frozen=True)
class Catalogue:
    """One catalogue file.

    Attributes:
      path: the .mo or .po file.
      domain: the program whose messages it holds.
      language: BCP 47.
    """

    path: Path
    domain: str
    language: str


@dataclasses.dataclass(frozen=True)
class Harvest:
    """What was read, cleaned, deduplicated and split.

    Attributes:
      rows: (language, split) -> (translation, English) rows in their final order; the split "names"
        holds the lists of names.
      dropped: reason -> messages.
      catalogues: files read.
      unreadable: files that were damaged.
      list_domains: the domains that were told to be lists of names.
    """

    rows: Mapping[tuple[str, str], list[tuple[str, str]]]
    dropped: Mapping[str, int]
    catalogues: int
    unreadable: int
    list_domains: tuple[str, ...]

    def languages(self) -> list[str]:
        """Languages by training pairs, most first."""
        languages = {language for language, _ in self.rows}
        return sorted(languages, key=lambda tag: (-self.count(tag, "train"), tag))

    def count(self, language: str, split: str) -> int:
        """Pairs of a language in a split."""
        return len(self.rows.get((language, split), ()))


def default_roots() -> list[Path]:
    """The system's locale folders and the packages of this Python, those that exist."""
    data = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    folders = [
        Path(part) / name for part in data.split(":") for name in ("locale", "locale-langpack")
    ]
    folders += [Path(sys.prefix) / "share" / "locale"]
    folders += [Path(p) for p in [*site.getsitepackages(), site.getusersitepackages()]]
    unique = dict.fromkeys(folder.resolve() for folder in folders if folder.is_dir())
    return list(unique)


def find_catalogues(roots: Sequence[Path]) -> list[Catalogue]:
    """All catalogues below the roots that are in a language other than English, in a fixed order.

    A .po file beside the .mo file made from it is not read a second time.
    """
    found = {}
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
                    found[catalogue.path] = catalogue
    return list(found.values())


def _identify(folder: Path, stem: str, name: str) -> Catalogue | None:
    """`fr/LC_MESSAGES/domain.mo`, `fr/domain.po` or `fr.po`."""
    if folder.name == "LC_MESSAGES":
        locale, domain = folder.parent.name, stem
        if domain in ("django", "djangojs", "messages"):  # the package is the domain
            domain = f"{folder.parent.parent.parent.name}/{stem}"
    elif bcp47(stem):
        locale, domain = stem, folder.parent.name
    else:
        locale, domain = folder.name, stem
    language = bcp47(locale)
    if language is None or is_english(language):
        return None
    return Catalogue(folder / name, domain, language)


def harvest(
    catalogues: Sequence[Catalogue],
    dev_share: float = 0.01,
    test_share: float = 0.02,
    progress: Callable[[int], None] | None = None,
    workers: int = 0,
) -> Harvest:
    """Reads, cleans, deduplicates and splits.

    The split of a pair is decided by a hash of its English side, normalised for case, spacing,
    punctuation and digits: no English sentence of one split is in another split of any language. The
    order within a split is that of another hash, so neither the file system nor the number of
    workers changes the corpus.

    Args:
      catalogues: the files.
      dev_share, test_share: of the distinct English sides.
      progress: called with the number of catalogues read so far.
      workers: processes; 0 means one a core.
    """
    dropped: collections.Counter[str] = collections.Counter()
    messages: dict[tuple[str, str], set[tuple[str, str]]] = collections.defaultdict(set)
    unreadable = 0
    for done, (catalogue, kept, counts) in enumerate(_read_all(catalogues, workers), 1):
        unreadable += kept is None
        dropped.update(counts)
        pairs = messages[catalogue.language, catalogue.domain]
        for message in kept or ():
            before = len(pairs)
            pairs.add((message.translation, message.english))
            dropped["duplicate"] += len(pairs) == before
        if progress:
            progress(done)
    lists = _list_domains(messages)
    rows: dict[tuple[str, str], list[tuple[str, str]]] = {}
    by_language: dict[str, set[tuple[str, str]]] = collections.defaultdict(set)
    names: dict[str, set[tuple[str, str]]] = collections.defaultdict(set)
    for (language, domain), pairs in messages.items():
        place = names if domain in lists else by_language
        before = len(place[language])
        place[language] |= pairs
        dropped["duplicate"] += before + len(pairs) - len(place[language])
    keys: dict[str, tuple[str, str]] = {}
    bounds = (round(test_share * _BUCKETS), round((test_share + dev_share) * _BUCKETS))
    for language, pairs in by_language.items():
        rows |= {(language, s): r for s, r in _split(pairs, keys, bounds, dropped).items()}
    for language, pairs in names.items():
        fresh = pairs - by_language.get(language, set())
        rows[language, "names"] = sorted(fresh, key=lambda row: _digest("\t".join(row)))
    return Harvest(rows, dict(dropped), len(catalogues), unreadable, tuple(sorted(lists)))


def write_corpus(harvest: Harvest, out: Path, minimum_pairs: int = 1) -> list[str]:
    """Writes `OUT/<language>-en/` and `OUT/names/<language>-en/`; returns the languages written."""
    written = []
    for language in harvest.languages():
        if harvest.count(language, "train") < minimum_pairs:
            continue
        written.append(language)
        for split in SPLITS:
            rows = harvest.rows.get((language, split), [])
            write_pairs(out / f"{language}-{ENGLISH}", split, language, ENGLISH, rows)
        if names := harvest.rows.get((language, "names")):
            folder = out / "names" / f"{language}-{ENGLISH}"
            write_pairs(folder, "train", language, ENGLISH, names)
    return written


def normalised(english: str) -> str:
    """What two English sides share that count as the same: letters, without case."""
    return _KEY.sub("", english.casefold()) or english


def _read_all(
    catalogues: Sequence[Catalogue], workers: int
) -> Iterator[tuple[Catalogue, list[Message] | None, Mapping[str, int]]]:
    workers = workers or os.cpu_count() or 1
    if workers == 1 or len(catalogues) < 8:
        yield from map(_read_one, catalogues)
        return
    # Not forked from this process, which may have threads.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("forkserver")) as pool:
        yield from pool.map(_read_one, catalogues, chunksize=16)


def _read_one(
    catalogue: Catalogue,
) -> tuple[Catalogue, list[Message] | None, collections.Counter[str]]:
    counts: collections.Counter[str] = collections.Counter()
    kept: list[Message] = []
    try:
        for message in read_catalogue(catalogue.path):
            cleaned = clean(message)
            if isinstance(cleaned, Message):
                kept.append(cleaned)
            else:
                counts[cleaned] += 1
    except (UnreadableError, OSError):
        return catalogue, None, counts
    return catalogue, kept, counts


def _list_domains(messages: Mapping[tuple[str, str], Iterable[tuple[str, str]]]) -> set[str]:
    """The domains that list names: countries, languages, keyboard layouts.

    Some are known. Any other is one where 9 in 10 of at least 40 distinct English sides are names by
    their looks: no sentence punctuation, placeholder or function word, and each longer word begins
    with a capital. Programs' catalogues stay below 2 in 3, even those with labels in title case.
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
    """The share of English sides that look like names."""
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
    pairs: Iterable[tuple[str, str]],
    keys: dict[str, tuple[str, str]],
    bounds: tuple[int, int],
    dropped: collections.Counter[str],
) -> dict[str, list[tuple[str, str]]]:
    """The rows of each split in the order of their hashes; `keys` remembers English sides."""
    splits: dict[str, list[tuple[str, tuple[str, str]]]] = {split: [] for split in SPLITS}
    for row in pairs:
        key = normalised(row[1])
        if key not in keys:
            digest = _digest(f"split {key}")
            bucket = int(digest[:8], 16) % _BUCKETS
            split = "test" if bucket < bounds[0] else "dev" if bucket < bounds[1] else "train"
            keys[key] = (split, key)
        split = keys[key][0]
        splits[split].append((_digest("\t".join(row)), row))
    result = {"train": [row for _, row in sorted(splits["train"])]}
    for split in ("dev", "test"):
        once: dict[str, tuple[str, str]] = {}
        for _, row in sorted(splits[split]):
            once.setdefault(normalised(row[1]), row)
        dropped[f"same English in {split}"] += len(splits[split]) - len(once)
        result[split] = list(once.values())
    return result


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
