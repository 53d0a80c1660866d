"""`gshard-data harvest`: makes a parallel corpus from the message catalogues of this machine.

Software comes with translations of its messages and labels, in over a hundred languages. A few languages
have many messages and most have few, as in the large corpora of the web.
"""

import collections
import dataclasses
import hashlib
import json
import os
import re
import site
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.progress import Progress

from gshard_nmt import json_shape, outputs
from gshard_nmt.data.language_codes import has_name, is_english, locale_tag
from gshard_nmt.data.preparation.inputs import fingerprint
from gshard_nmt.data.reading.gettext import Message, UnreadableError, clean, read_catalogue
from gshard_nmt.data.reading.rows import listed, note
from gshard_nmt.data.sets.corpus import ENGLISH, SPLITS, find_pairs, write_pairs
from gshard_nmt.data.text.normal_form import message_form, sentence_form
from gshard_nmt.data.worker_pool import WorkerPool, usable_cpus
from gshard_nmt.errors import UserError
from gshard_nmt.json_shape import anything, fields, mapping_of
from gshard_nmt.terminal import Terminal, table

REPORT = "corpus.json"
_REPORT = fields({"languages": mapping_of(anything())})

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
_BUCKETS = 1000
_PART = 16  # catalogues that a worker process reads at a time
_Row = tuple[str, str]  # translation, English


class Catalogue(NamedTuple):
    """A .mo or .po file, the program that its messages belong to, and the BCP 47 tag of its language."""

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
      unreadable, unclear: the damaged files, and those whose plurals have no right rule in the header.
      list_domains: the domains that were recognized as lists of names.
    """

    rows: Mapping[tuple[str, str], list[_Row]]
    dropped: Mapping[str, int]
    catalogues: int
    unreadable: Sequence[Path]
    unclear: Sequence[Path]
    list_domains: Sequence[str]

    def languages(self) -> list[str]:
        languages = {language for language, _ in self.rows}
        return sorted(languages, key=lambda tag: (-self.count(tag, "train"), tag))

    def count(self, language: str, split: str) -> int:
        return len(self.rows.get((language, split), ()))


def harvest(
    out: Path, roots: Sequence[Path] = (), system: bool = True, minimum_pairs: int = 1
) -> None:
    """Reads all catalogues below the roots and writes a corpus of each language paired with English.

    With `system`, the system's locale folders and the packages of this Python are searched too. Languages
    with fewer training pairs than `minimum_pairs` are left out. `out` is complete at any time, and a
    corpus of an earlier harvest is replaced.

    Raises:
      UserError: there are no catalogues, a root does not exist, or `out` has other files in it.
    """
    console = Terminal(stderr=True)
    for root in roots:
        if not root.is_dir():
            raise UserError(f"--root {root}: there is no such folder.")
    _check_is_a_harvest(out)
    outputs.check_folder("--out", out, replaced=True)
    searched = [*roots, *(_default_roots() if system else [])]
    catalogues = find_catalogues(searched)
    places = ", ".join(map(str, searched)) or "no folder"
    if not catalogues:
        raise UserError(
            f"no message catalogues (.mo, .po) below {places}. Name a folder that has some with "
            "--root DIR, or install a package that has some: pip install django, or on Debian any "
            "language pack."
        )
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"reading {len(catalogues)} catalogues", total=len(catalogues))
        harvested = read_and_split(catalogues, lambda done: progress.update(task, advance=done))
    for problem, files in (
        ("damaged and left out", harvested.unreadable),
        ("without a right Plural-Forms, so plurals may be paired wrongly", harvested.unclear),
    ):
        if files:
            count = "1 catalogue is" if len(files) == 1 else f"{len(files):,} catalogues are"
            note(f"{count} {problem}: {listed(files)}")
    languages = [
        tag for tag in harvested.languages() if harvested.count(tag, "train") >= minimum_pairs
    ]
    if not languages:
        raise UserError(
            f"no language has {minimum_pairs} or more training pairs in the {len(catalogues)} "
            f"catalogues below {places}. Name more folders with --root DIR."
        )
    counts = {
        language: {split: harvested.count(language, split) for split in (*SPLITS, "names")}
        for language in languages
    }
    with outputs.new_folder(out) as corpus:
        _write(harvested, languages, corpus)
        report = {
            "roots": [str(root) for root in searched],
            "catalogues": harvested.catalogues,
            "unreadable": len(harvested.unreadable),
            "fingerprint": fingerprint(find_pairs(corpus)),
            "languages": counts,
            "dropped": dict(_ranked(harvested.dropped)),
            "lists_of_names": list(harvested.list_domains),
        }
        # An odd name of a folder may have bytes that are not UTF-8, so all other characters are escaped.
        (corpus / REPORT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    _show(harvested, counts)


def _check_is_a_harvest(out: Path) -> None:
    if not out.exists() or not any(out.iterdir()):
        return
    try:
        report = json_shape.parse((out / REPORT).read_bytes(), _REPORT)
    except (FileNotFoundError, ValueError):
        raise UserError(
            f"--out {out} is not empty and not a harvested corpus; choose another folder."
        ) from None
    known = {
        f"{base}{language}-{ENGLISH}/{split}.{side}.gz"
        for language in report["languages"]
        for base in ("", "names/")
        for split in SPLITS
        for side in (language, ENGLISH)
    }
    outputs.check_only_has("--out", out, known | {REPORT}, "gshard-data harvest")


def _default_roots() -> list[Path]:
    data = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    folders = [
        Path(part) / name for part in data.split(":") for name in ("locale", "locale-langpack")
    ]
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
        for folder, folders, files in os.walk(root):
            folders.sort()
            for name in sorted(files):
                stem, _, suffix = name.rpartition(".")
                is_copy = suffix == "po" and f"{stem}.mo" in files
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


@dataclasses.dataclass
class _Read:
    """What some catalogues hold: messages by (language, domain), and what `Harvest` says of the rest."""

    messages: dict[tuple[str, str], list[Message]] = dataclasses.field(default_factory=dict)
    dropped: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    unreadable: list[Path] = dataclasses.field(default_factory=list)
    unclear: list[Path] = dataclasses.field(default_factory=list)


def read_and_split(
    catalogues: Sequence[Catalogue],
    progress: Callable[[int], object] = int,
    dev_share: float = 0.01,
    test_share: float = 0.02,
    workers: int = 0,
) -> Harvest:
    """Reads the catalogues, cleans their messages, removes duplicates, and splits them.

    A hash of the English side decides the split. The hash ignores case, spacing, punctuation, digits,
    placeholders and plural endings. So all variants of a message are in the same split, in every
    language. Another hash decides the order within a split. So the corpus depends neither on the file
    system nor on the number of workers.

    `progress` is called with the number of catalogues that were read since the last call. The shares are
    fractions of the distinct English sides. 0 `workers` mean one for each core.

    Raises:
      UserError: a worker process was killed.
    """
    messages: dict[tuple[str, str], set[_Row]] = collections.defaultdict(set)
    families: dict[str, str] = {}
    read = _Read()
    parts = [(catalogues[i : i + _PART],) for i in range(0, len(catalogues), _PART)]
    with WorkerPool(workers or usable_cpus()) as pool:
        for number, part in pool.map(_read_part, parts):
            read.dropped.update(part.dropped)
            read.unreadable += part.unreadable
            read.unclear += part.unclear
            for key, some in part.messages.items():
                for message in some:
                    row = (message.translation, message.english)
                    read.dropped["duplicate"] += row in messages[key]
                    messages[key].add(row)
                    if message.singular:
                        forms = message_form(message.english), message_form(message.singular)
                        _join(families, *forms)
            progress(len(parts[number][0]))
    lists = _list_domains(messages)
    names: dict[str, set[_Row]] = collections.defaultdict(set)
    sentences: dict[str, set[_Row]] = collections.defaultdict(set)
    for (language, domain), rows in messages.items():
        joined = (names if domain in lists else sentences)[language]
        read.dropped["duplicate"] += len(joined & rows)
        joined |= rows
    bounds = (round(test_share * _BUCKETS), round((test_share + dev_share) * _BUCKETS))
    split_of: dict[str, str] = {}
    splits: dict[tuple[str, str], list[_Row]] = {}
    for language, rows in sentences.items():
        by_split = _split(rows, families, split_of, bounds, read.dropped)
        splits |= {(language, split): chosen for split, chosen in by_split.items()}
    for language, rows in names.items():
        splits[language, "names"] = _ordered(rows - sentences.get(language, set()))
    files = (len(catalogues), sorted(read.unreadable), sorted(read.unclear))
    return Harvest(splits, read.dropped, *files, sorted(lists))


def _read_part(catalogues: Sequence[Catalogue]) -> _Read:
    result = _Read()
    for path, domain, language in catalogues:
        messages = result.messages.setdefault((language, domain), [])
        try:
            contents = read_catalogue(path)
        except (UnreadableError, OSError):
            result.unreadable.append(path)
            continue
        result.dropped["incomplete plural"] += len(contents.incomplete)
        result.unclear += [path] * (contents.unclear > 0)
        for message in contents.messages:
            cleaned = clean(message)
            if isinstance(cleaned, Message):
                messages.append(cleaned)
            else:
                result.dropped[cleaned] += 1
    return result


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


def _split(
    rows: Iterable[_Row],
    families: Mapping[str, str],
    split_of: dict[str, str],
    bounds: tuple[int, int],
    dropped: collections.Counter[str],
) -> dict[str, list[_Row]]:
    """Returns the rows of each split of a language in the order of their hashes.

    In dev and test, only the first of the rows with the same English is kept. `split_of` has the split of
    each `message_form` of English, for all languages; it and `dropped` are filled here. Hashes below the
    first bound go to test, and those below the second to dev.
    """
    splits: dict[str, list[_Row]] = {split: [] for split in SPLITS}
    for row in rows:
        key = message_form(row[1])
        if key not in split_of:
            bucket = int(_digest(f"split {_first_form(families, key)}")[:8], 16) % _BUCKETS
            split = "test" if bucket < bounds[0] else "dev" if bucket < bounds[1] else "train"
            split_of[key] = split
        splits[split_of[key]].append(row)
    result = {split: _ordered(some) for split, some in splits.items()}
    for split in ("dev", "test"):
        first: dict[str, _Row] = {}
        for row in result[split]:
            first.setdefault(sentence_form(row[1]) or row[1], row)
        dropped[f"same English in {split}"] += len(result[split]) - len(first)
        result[split] = list(first.values())
    return result


def _first_form(earlier: Mapping[str, str], form: str) -> str:
    """Returns the first form, in the order of the alphabet, of the family of a form.

    A family has the forms of messages that are variants of each other although their letters differ, such
    as the singular "once a day" and the plural "every %d days".
    """
    while form in earlier:
        form = earlier[form]
    return form


def _join(earlier: dict[str, str], form: str, other: str) -> None:
    first, second = sorted((_first_form(earlier, form), _first_form(earlier, other)))
    if first != second:
        earlier[second] = first


def _ordered(rows: Iterable[_Row]) -> list[_Row]:
    return sorted(rows, key=lambda row: (_digest("\t".join(row)), row))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _write(harvested: Harvest, languages: Sequence[str], corpus: Path) -> None:
    for language in languages:
        folder = f"{language}-{ENGLISH}"
        for split in SPLITS:
            rows = harvested.rows.get((language, split), [])
            write_pairs(corpus / folder, split, language, ENGLISH, rows)
        if names := harvested.rows.get((language, "names")):
            write_pairs(corpus / "names" / folder, "train", language, ENGLISH, names)


def _show(harvested: Harvest, counts: Mapping[str, Mapping[str, int]]) -> None:
    columns = (*SPLITS, "names")
    totals = {column: sum(row[column] for row in counts.values()) for column in columns}
    rows = [
        (language, *(f"{row[column]:,}" for column in columns))
        for language, row in [*counts.items(), ("all", totals)]
    ]
    console = Terminal()
    console.print(table(f"{len(counts)} languages to English", ("language", *columns), rows))
    dropped = [f"{reason} {number:,}" for reason, number in _ranked(harvested.dropped) if number]
    console.print(
        f"Read {harvested.catalogues:,} catalogues; {len(harvested.unreadable)} of them are damaged. "
        f"Messages left out: {', '.join(dropped) or 'none'}."
    )
    if harvested.list_domains:
        names = ", ".join(harvested.list_domains)
        console.print(
            "Catalogues that list names of countries, languages and so on were written to names/, not "
            f"to train, dev or test: {names}."
        )


def _ranked(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
