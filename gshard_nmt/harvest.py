"""`gshard-data harvest`: makes a parallel corpus from the message catalogues of this machine.

Software comes with translations of its messages and labels, in over a hundred languages. A few languages
have many messages and most have few, as in the large corpora of the web.
"""

import collections
import functools
import hashlib
import json
import os
import re
import site
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gshard_nmt import files, outputs
from gshard_nmt.data.cleaning.report import ranked
from gshard_nmt.data.language_codes import has_name, is_english, locale_tag
from gshard_nmt.data.preparation.inputs import fingerprint
from gshard_nmt.data.reading.gettext import Message, clean, read_catalogue
from gshard_nmt.data.reading.rows import listed
from gshard_nmt.data.sets.corpus import ENGLISH, SPLITS, find_pairs, write_pairs
from gshard_nmt.data.text.normal_form import message_form, sentence_form
from gshard_nmt.data.worker_pool import WorkerPool, usable_cpus
from gshard_nmt.errors import UserError
from gshard_nmt.terminal import Terminal, counting, table

REPORT = "corpus.json"

_LIST_DOMAINS = re.compile(
    r"iso[-_]?\d+.*|iso_.*|xkeyboard-config.*|tzdata.*|.*countries.*|.*-names?"
)
_FUNCTION_WORDS = frozenset(
    """
    a an are as at be by can cannot do for from has have if in into is it must no not on or
    please should that then there this to use was when will with you your %s %d
    """.split()  # noqa: SIM905
)
_SENTENCE = re.compile(r"[.?!:…,;]\s|[.?!:…]$|%[sdn(]|\{")
_WORDS = frozenset("bak bin ext kde man min mo new run sh src".split())  # noqa: SIM905
"""Names of folders that are also codes of languages."""
_BUCKETS, _TEST, _DEV = 1000, 20, 10
"""A hash of the English side has one of these buckets. The first belong to test, and the next to dev."""
_PART = 16  # catalogues that a worker process reads at a time
_Row = tuple[str, str]  # translation, English
_Messages = dict[tuple[str, str], list[Message]]  # (language, domain) -> the cleaned messages


class Catalogue(NamedTuple):
    """A .mo or .po file, the program that its messages belong to, and the BCP 47 tag of its language."""

    path: Path
    domain: str
    language: str


class Harvest(NamedTuple):
    """What all catalogues hold.

    Attributes:
      rows: (language, split) -> rows of (translation, English) without duplicates in their final order.
        The split "names" has the messages of lists of names.
      dropped: reason -> number of messages left out.
      unreadable: the damaged files.
      list_domains: the domains that were recognized as lists of names.
    """

    rows: dict[tuple[str, str], list[_Row]]
    dropped: collections.Counter[str]
    unreadable: list[Path]
    list_domains: list[str]


def harvest(out: Path, roots: Sequence[Path] = (), system: bool = True) -> None:
    """Reads all catalogues below the roots and writes a corpus of each language paired with English.

    With `system`, the system's locale folders and the packages of this Python are searched too. `out` is
    complete at any time, and a corpus of an earlier harvest is replaced.
    """
    for root in roots:
        if not root.is_dir():
            raise UserError(f"--root {root}: there is no such folder.")
    outputs.check_folder("--out", out, replaced=True)
    _check_is_a_harvest(out)
    searched = [*roots, *(_default_roots() if system else [])]
    catalogues = find_catalogues(searched)
    places = ", ".join(map(str, searched)) or "no folder"
    with counting(f"reading {len(catalogues)} catalogues", len(catalogues)) as advance:
        harvested = read_and_split(catalogues, advance)
    if harvested.unreadable:
        unreadable = listed(harvested.unreadable)
        sys.stderr.write(f"note: damaged catalogues are left out: {unreadable}.\n")
    counts = {
        language: {s: len(harvested.rows.get((language, s), ())) for s in (*SPLITS, "names")}
        for language in {language for language, _ in harvested.rows}
    }
    counts = {tag: row for tag, row in counts.items() if row["train"]}
    counts = dict(sorted(counts.items(), key=lambda item: (-item[1]["train"], item[0])))
    if not counts:
        raise UserError(
            f"no message catalogues (.mo, .po) with translations below {places}. Name a folder that has "
            "some with --root DIR, or install a package that has some: pip install django, or on Debian "
            "any language pack."
        )
    with outputs.new_folder(out) as corpus:
        for (language, split), rows in harvested.rows.items():
            if language in counts and (rows or split in SPLITS):
                folder, name = corpus / f"{language}-{ENGLISH}", split
                if split == "names":
                    folder, name = corpus / "names" / folder.name, "train"
                write_pairs(folder, name, language, ENGLISH, rows)
        report = {
            "roots": [str(root) for root in searched],
            "catalogues": len(catalogues),
            "unreadable": len(harvested.unreadable),
            "fingerprint": fingerprint(find_pairs(corpus)),
            "languages": counts,
            "dropped": ranked(harvested.dropped),
            "lists_of_names": harvested.list_domains,
        }
        files.write_json(corpus / REPORT, report)
    _show(report)


def _check_is_a_harvest(out: Path) -> None:
    if not out.exists() or not any(out.iterdir()):
        return
    try:
        languages = list(json.loads((out / REPORT).read_bytes())["languages"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        raise UserError(
            f"--out {out} is not empty and not a harvested corpus; choose another folder."
        ) from None
    known = {
        f"{base}{language}-{ENGLISH}/{split}.{side}.gz"
        for language in languages
        for base in ("", "names/")
        for split in SPLITS
        for side in (language, ENGLISH)
    }
    outputs.check_only_has("--out", out, known | {REPORT}, "gshard-data harvest")


def _default_roots() -> list[Path]:
    data = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    folders = [Path(p) / name for p in data.split(":") for name in ("locale", "locale-langpack")]
    folders += [Path(sys.prefix) / "share" / "locale"]
    folders += map(Path, [*site.getsitepackages(), site.getusersitepackages()])
    unique = dict.fromkeys(Path(os.path.realpath(folder)) for folder in folders if folder.is_dir())
    return list(unique)


def find_catalogues(roots: Sequence[Path]) -> list[Catalogue]:
    """Returns the catalogues below the roots, except English ones, in a fixed order.

    A .po file is left out if the .mo file that was made from it is beside it.
    """
    catalogues = {}
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names):
                stem, _, suffix = name.rpartition(".")
                is_copy = suffix == "po" and f"{stem}.mo" in names
                if stem and suffix in ("mo", "po") and not is_copy:
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
    catalogues: Sequence[Catalogue], progress: Callable[[int], object] = int, workers: int = 0
) -> Harvest:
    """Reads the catalogues, cleans their messages, removes duplicates, and splits them.

    A hash of the English side decides the split. The hash ignores case, spacing, punctuation, digits,
    placeholders and plural endings. So all variants of a message are in the same split, in every
    language. Another hash decides the order within a split. So the corpus depends neither on the file
    system nor on the number of workers.

    `progress` is called with the number of catalogues that were read since the last call. 0 `workers`
    mean one for each core.
    """
    messages: dict[tuple[str, str], set[_Row]] = collections.defaultdict(set)
    families: dict[str, str] = {}
    dropped: collections.Counter[str] = collections.Counter()
    unreadable: list[Path] = []
    parts = [(catalogues[i : i + _PART],) for i in range(0, len(catalogues), _PART)]
    with WorkerPool(workers or usable_cpus()) as pool:
        for number, (some_messages, some_dropped, damaged) in pool.map(_read, parts):
            dropped.update(some_dropped)
            unreadable += damaged
            for key, some in some_messages.items():
                for message in some:
                    row = (message.translation, message.english)
                    dropped["duplicate"] += row in messages[key]
                    messages[key].add(row)
                    if message.singular:
                        forms = message_form(message.english), message_form(message.singular)
                        first, second = sorted(_first_form(families, form) for form in forms)
                        if first != second:
                            families[second] = first
            progress(len(parts[number][0]))
    list_domains = sorted(_list_domains(messages))
    names: dict[str, set[_Row]] = collections.defaultdict(set)
    sentences: dict[str, set[_Row]] = collections.defaultdict(set)
    for (language, domain), some_rows in messages.items():
        joined = (names if domain in list_domains else sentences)[language]
        dropped["duplicate"] += len(joined & some_rows)
        joined |= some_rows

    @functools.cache
    def split_of(key: str) -> str:
        return hash_split(_first_form(families, key))

    rows: dict[tuple[str, str], list[_Row]] = {}
    for language, every in sentences.items():
        splits: dict[str, list[_Row]] = {split: [] for split in SPLITS}
        for row in _ordered(every):
            splits[split_of(message_form(row[1]))].append(row)
        for split in ("dev", "test"):
            # Only the first of the rows with the same English is kept.
            first_rows: dict[str, _Row] = {}
            for row in splits[split]:
                first_rows.setdefault(sentence_form(row[1]) or row[1], row)
            dropped[f"same English in {split}"] += len(splits[split]) - len(first_rows)
            splits[split] = list(first_rows.values())
        rows |= {(language, split): chosen for split, chosen in splits.items()}
    for language, every in names.items():
        rows[language, "names"] = _ordered(every - sentences.get(language, set()))
    return Harvest(rows, dropped, sorted(unreadable), list_domains)


def hash_split(form: str) -> str:
    """Returns the split of an English text by its `message_form`, whatever the language and corpus."""
    bucket = int(_digest(f"split {form}")[:8], 16) % _BUCKETS
    return "test" if bucket < _TEST else "dev" if bucket < _TEST + _DEV else "train"


def _read(
    catalogues: Sequence[Catalogue],
) -> tuple[_Messages, collections.Counter[str], list[Path]]:
    """Returns the cleaned messages, the number of others by the reason, and the damaged files."""
    messages: _Messages = collections.defaultdict(list)
    dropped: collections.Counter[str] = collections.Counter()
    unreadable = []
    for path, domain, language in catalogues:
        try:
            raw, incomplete = read_catalogue(path)
        except (ValueError, LookupError, OSError):
            unreadable.append(path)
            continue
        dropped["incomplete plural"] += incomplete
        for message in raw:
            cleaned = clean(message)
            if isinstance(cleaned, Message):
                messages[language, domain].append(cleaned)
            else:
                dropped[cleaned] += 1
    return messages, dropped, unreadable


def _list_domains(messages: Mapping[tuple[str, str], Iterable[_Row]]) -> set[str]:
    """Returns the domains that are lists of names: countries, languages, keyboard layouts.

    Some domains are known. Another domain is a list if it has at least 40 distinct English sides and
    at least 9 in 10 look like names. In catalogues of programs fewer than 2 in 3 do, even if the labels
    are in title case.
    """
    english: dict[str, set[str]] = collections.defaultdict(set)
    for (_, domain), pairs in messages.items():
        english[domain].update(row[1] for row in pairs)
    return {
        domain
        for domain, sides in english.items()
        if _LIST_DOMAINS.fullmatch(domain)
        or (len(sides) >= 40 and sum(map(looks_like_name, sides)) >= 0.9 * len(sides))
    }


def looks_like_name(english: str) -> bool:
    """Returns whether a text is short, has no punctuation and no function word, and is in title case."""
    words = english.split()
    if len(words) > 8 or _SENTENCE.search(english):
        return False
    if any(word.casefold() in _FUNCTION_WORDS for word in words):
        return False
    return all(word[0].isupper() for word in words if len(word) > 3 and word[0].isalpha())


def _first_form(earlier: Mapping[str, str], form: str) -> str:
    """Returns the first form, in the order of the alphabet, of the family of a form.

    A family has the forms of messages that are variants of each other although their letters differ, such
    as the singular "once a day" and the plural "every %d days".
    """
    while form in earlier:
        form = earlier[form]
    return form


def _ordered(rows: Iterable[_Row]) -> list[_Row]:
    return sorted(rows, key=lambda row: (_digest("\t".join(row)), row))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _show(report: Mapping[str, Any]) -> None:
    columns = (*SPLITS, "names")
    counts = report["languages"]
    totals = {column: sum(row[column] for row in counts.values()) for column in columns}
    rows = [
        (language, *(f"{row[column]:,}" for column in columns))
        for language, row in [*counts.items(), ("all", totals)]
    ]
    console = Terminal()
    console.print(table(f"{len(counts)} languages to English", ("language", *columns), rows))
    dropped = [f"{reason} {number:,}" for reason, number in report["dropped"].items() if number]
    console.print(
        f"Read {report['catalogues']:,} catalogues. Messages left out: {', '.join(dropped) or 'none'}. "
        f"Catalogues that list names were written to names/, not to train, dev or test: "
        f"{', '.join(report['lists_of_names']) or 'none'}."
    )
