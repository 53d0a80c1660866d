"""What must not change in a translation: it goes through the model as symbols, and comes back.

The source "Copy %d files to /tmp" has the values "%d" and "/tmp". The model reads `<ph>` in their places
and writes it in its translation, and the values are put back, see `data/text/protection.py`. A source
term of a glossary is a value too, and its target term comes back.

A translation is whole if it has the symbol of each value once. If no translation that the search has
found is whole, the best one is mended: each missing symbol is put to the place at which the model gives
the whole translation the highest score.
"""

import collections
import functools
import hashlib
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gshard_nmt.data.text import capitals, protection
from gshard_nmt.data.text.vocabulary import EOS, LINE_BREAKS, SPACE, Vocabulary
from gshard_nmt.decoding.source_lines import SourceLines, copied, opened, visible
from gshard_nmt.errors import UserError
from gshard_nmt.settings.config import Config

_FIRST_MARK = 0x100000
_MARKS = re.compile("([\U00100000-\U0010ffff])")
"""Private characters, which no language uses. They stand for the values of a line while it is split."""

_MOST_PLACES = 32
"""The places for a symbol among which the model chooses. Each costs about as much as a translation."""

_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Letters of scripts that write no spaces between words."""


class Entry(NamedTuple):
    """A row of a glossary. `language` is a source or target language, a direction, or "" for all."""

    source: str
    target: str
    language: str = ""


class Terms(NamedTuple):
    """The target term of each source term, and the lengths of source terms, the longest first."""

    targets: Mapping[str, str]
    lengths: Sequence[int]


class Protection(NamedTuple):
    """What a translator protects: placeholders of all kinds, the terms of a glossary, and numbers."""

    placeholders: bool = True
    glossary: tuple[Entry, ...] = ()
    numbers: bool = False  # with placeholders only

    def terms(self, source: str, target: str) -> Terms:
        """Returns the target term of each source term in a direction.

        A term that begins with a small letter is also found with a capital, and then its target term
        has one too.
        """
        here = ("", source, target, f"{source}-{target}")
        # The row of a language goes before that of all languages.
        rows = [row for tag in here for row in self.glossary if row.language == tag]
        terms = {_capital(row.source): _capital(row.target) for row in rows}
        terms |= {row.source: row.target for row in rows}
        return Terms(terms, sorted(set(map(len, terms)), reverse=True))

    @property
    def digest(self) -> str:
        """The SHA-256 of this, as hex digits."""
        return hashlib.sha256(repr(self).encode()).hexdigest()

    @property
    def words(self) -> str:
        glossary = f", glossary {self.digest[:8]}" if self.glossary else ""
        return ", protected" * self.placeholders + ", numbers too" * self.numbers + glossary


def trained_protection(config: Config) -> Protection | None:
    """Returns the protection of a run that was trained with placeholders; None for any other run."""
    return Protection() if config.data.augmentation.get("placeholders") else None


def read_glossary(path: Path, pairs: Sequence[tuple[str, str]]) -> tuple[Entry, ...]:
    """Reads a table with a source term, a target term and perhaps a language in each row.

    `pairs` are the directions of the model. Raises UserError if a row is wrong, or contradicts another.
    """
    name, languages = f"--glossary {path}", sorted({tag for pair in pairs for tag in pair})
    known = {*languages, *map("-".join, pairs)}
    rows: dict[tuple[str, str], str] = {}
    with opened(path) as stream:
        lines = SourceLines(stream, name)
        for line in itertools.chain.from_iterable(iter(lambda: lines.take(1), [])):
            cells = [re.sub(f"[{LINE_BREAKS}]", " ", cell).strip() for cell in line.split("\t")]
            source, target, language = (*cells, "", "")[:3]
            place = f"{name}, line {lines.number}"
            if not any(cells):
                continue
            if len(cells) not in (2, 3) or not source or not target:
                raise UserError(
                    f"{place} is {line[:80]!r}; it must be a source term, a target term and, if it is "
                    "not for all languages, a language, separated by tabs. Correct the line."
                )
            if language and language not in known:
                raise UserError(
                    f"{place} is for {language!r}; the model has {', '.join(languages)}. Give one of "
                    f"these or a direction, such as {'-'.join(pairs[0])}, or leave out the third column."
                )
            if (earlier := rows.setdefault((source, language), target)) != target:
                raise UserError(
                    f"{place} translates {source!r} as {target!r}, and an earlier line as {earlier!r}. "
                    "Keep one of them."
                )
    if not rows:
        raise UserError(f"{name} has no terms. Give a file with some, or leave out --glossary.")
    return tuple(Entry(source, target, tag) for (source, tag), target in rows.items())


class Line(NamedTuple):
    """A line whose values are replaced by marks: the n-th value of `values` by U+100000 + n.

    A translation has `outputs` in the place of the values. If the line is in capitals, the template is in
    small letters, and `capitals` is the target language.
    """

    template: str
    values: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    capitals: str = ""

    @property
    def text(self) -> str:
        """The line itself."""
        return _filled(self.template, self.values)

    @property
    def copy(self) -> str | None:
        """The translation of a line that has no letters and digits but those of its values."""
        if self.values and copied(_MARKS.sub("", self.template)) is not None:
            return _filled(self.template, self.outputs).strip()
        return copied(self.template)

    def lost(self, text: str) -> tuple[str, ...]:
        """Returns what a translation lacks, as often as it lacks it."""
        missing = collections.Counter(self.outputs)
        for value in sorted(missing, key=len, reverse=True):  # a value may be a part of another
            missing[value] -= text.count(value)
            text = text.replace(value, "\0")
        return tuple(missing.elements())


def protect(line: str, placeholders: bool, terms: Terms, numbers: bool) -> Line:
    """Returns a line with marks for its placeholders, and numbers, and for the terms of a glossary.

    Terms are whole words, and the longest one at a place is taken.
    """
    if not (placeholders or terms.targets) or _MARKS.search(line):
        return Line(line)
    template = re.sub(f"[{LINE_BREAKS}]", " ", line)
    values: list[str] = []
    # Terms are looked for in the rest, so that none is in the middle of an address.
    term_spans = functools.partial(_term_spans, terms=terms)
    find_all = functools.partial(protection.spans, numbers=numbers)
    for find in (find_all, term_spans) if placeholders else (term_spans,):
        spans = find(template)[: 0xFFFF - len(values)]  # there are no more marks
        around, found = protection.take_out(template, spans, len(spans))
        marks = [chr(_FIRST_MARK + len(values) + n) for n in range(len(found))]
        template = protection.put_back(around, marks)
        values += found
    return Line(template, tuple(values), tuple(terms.targets.get(v, v) for v in values))


def in_small_letters(line: Line, source: str, target: str) -> Line:
    """Returns a line in capitals in small letters: models have seen few capitals. Others stay."""
    template = capitals.lower(line.template, source)
    # Further values are text, which capitals would change.
    if template is None or len(line.values) > protection.MOST:
        return line
    return line._replace(template=template, capitals=target)


class Piece(NamedTuple):
    """The ids of a line, or of a part of it, and what comes back for the n-th value in them."""

    ids: list[int]
    outputs: tuple[str, ...] = ()
    copy: str | None = None  # the translation of a part without letters, which no model gets


def encode_lines(vocabulary: Vocabulary, lines: Sequence[Line], *languages: str) -> list[Piece]:
    """Returns what the encoder reads for lines, or for parts of them; from source to target."""
    marks = [_MARKS.findall(line.template) if line.values else [] for line in lines]
    plain = [visible(line.template) for line, has in zip(lines, marks, strict=True) if not has]
    plain_ids = iter(vocabulary.encode_source(plain, *languages))
    pieces = []
    for line, found in zip(lines, marks, strict=True):
        if not found:
            pieces.append(Piece(next(plain_ids)))
            continue
        numbers = [_number(mark) for mark in found[: protection.MOST]]
        parts = _MARKS.split(line.template)
        rest = _filled("".join(parts[2 * len(numbers) :]), line.values)  # more values stay text
        texts = [visible(text) for text in (*parts[: 2 * len(numbers) : 2], rest)]
        ids = protection.encode(vocabulary, texts, range(1, len(numbers) + 1), len(numbers))
        outputs = tuple(line.outputs[number] for number in numbers)
        pieces.append(Piece([*vocabulary.tags(*languages), *ids, EOS], outputs))
    return pieces


def encode_translation(vocabulary: Vocabulary, text: str, outputs: Sequence[str]) -> list[int]:
    """Returns the ids of a given translation, without tags and EOS: the values in it are symbols."""
    rest, found = text, []
    for number, output in sorted(enumerate(outputs, 1), key=lambda entry: -len(entry[1])):
        if output and (start := rest.find(output)) >= 0:
            end = start + len(output)
            found.append((start, end, number))
            rest = rest[:start] + "\0" * (end - start) + rest[end:]
    found.sort()
    texts, _ = protection.take_out(text, [span[:2] for span in found])
    return protection.encode(vocabulary, texts, [number for *_, number in found], len(outputs))


def decode_translation(
    vocabulary: Vocabulary, ids: Sequence[int], outputs: Sequence[str], language: str = ""
) -> str:
    """Returns the text of a translation with the values of its piece; a wrong symbol is left out.

    If a language is given, the text around the values is in its capitals.
    """
    texts, numbers = protection.decode(vocabulary, ids, len(outputs))
    if language:
        texts = [capitals.upper(text, language) for text in texts]
    values = [outputs[n - 1] if 0 < n <= len(outputs) else "" for n in numbers]
    return "".join(itertools.chain(*itertools.zip_longest(texts, values, fillvalue=""))).strip()


Score = Callable[[list[list[int]], list[list[int]]], Sequence[float]]
"""Returns the score of each translation, given as ids without EOS, of each source."""
NBest = Sequence[tuple[list[int], float]]


def whole(
    vocabulary: Vocabulary,
    pieces: Sequence[Piece],
    nbests: Sequence[NBest],
    starts: Sequence[int],
    longest: int,
    score: Score,
    placeholders: bool,
) -> list[NBest]:
    """Returns the whole translations of each piece; if there are none, the best one, mended.

    With `placeholders`, the values are all that the sources have of these. Then a translation with one
    in its text, such as 20%s for 20 %, is left out too, unless all have one.
    `nbests` are the translations of each piece as (ids, score), best first. The first `starts` tokens of
    each are given and stay. A symbol that does not fit into `longest` tokens, with EOS, stays missing.
    """
    results: list[NBest] = []
    broken: dict[int, list[int]] = {}
    for index, (piece, nbest) in enumerate(zip(pieces, nbests, strict=True)):
        count = len(piece.outputs)
        numbers = ([n for *_, n in _symbols(vocabulary, ids, count)] for ids, _ in nbest)
        are_whole = [sorted(found) == [*range(1, count + 1)] for found in numbers]
        results.append(list(itertools.compress(nbest, are_whole)))
        if placeholders and count < protection.MOST:
            texts = (protection.decode(vocabulary, ids, count)[0] for ids, _ in results[-1])
            are_clean = [not any(map(protection.INVENTED.search, own)) for own in texts]
            results[-1] = list(itertools.compress(results[-1], are_clean)) or results[-1]
        if nbest and not results[-1]:
            broken[index] = _without_wrong(vocabulary, nbest[0][0], count)
    while broken:
        # All pieces get their next symbol together, so that the model reads full batches.
        candidates = {
            index: _longer(vocabulary, ids, len(pieces[index].outputs), starts[index], longest)
            for index, ids in broken.items()
        }
        tried = [(index, ids) for index, others in candidates.items() for ids in others]
        scores = iter(score([pieces[index].ids for index, _ in tried], [ids for _, ids in tried]))
        before, broken = broken, {}
        for index, others in candidates.items():
            scored = [(ids, next(scores)) for ids in others]
            results[index] = [max(scored, key=lambda entry: entry[1])]  # of equal ones the first
            ids, count = results[index][0][0], len(pieces[index].outputs)
            if len(ids) > len(before[index]) and _missing(vocabulary, ids, count):
                broken[index] = ids
    return results


@functools.lru_cache(maxsize=4)
def _spelling(vocabulary: Vocabulary) -> tuple[list[int], int, dict[int, int]]:
    """Returns the ids of a space before a symbol, the symbol, and the number that each digit means."""
    symbol = protection.symbol(vocabulary)
    assert symbol is not None, "the vocabulary has no symbol"
    numbers = range(1, protection.MOST + 1)
    spelled = {n: protection.encode(vocabulary, ["", ""], [n], protection.MOST) for n in numbers}
    space = spelled[1][: spelled[1].index(symbol)]
    return space, symbol, {spelled[n][len(space) + 1]: n for n in numbers}


def _symbols(
    vocabulary: Vocabulary, ids: Sequence[int], count: int
) -> Iterator[tuple[int, int, int]]:
    """Yields the start, the end and the number of each symbol.

    The number is 0 if a digit lacks its symbol, or a symbol its digit.
    """
    _, symbol, digits = _spelling(vocabulary)
    end = 0
    for place, token in enumerate(ids):
        if token == symbol:
            number = digits.get(ids[place + 1], 0) if count > 1 and place + 1 < len(ids) else 0
            end = place + 1 + (number > 0)
            yield place, end, number if count > 1 else count
        elif count > 1 and place >= end and token in digits:
            yield place, place + 1, 0


def _without_wrong(vocabulary: Vocabulary, ids: Sequence[int], count: int) -> list[int]:
    """Returns ids without the symbols that no value has, and without those that came before."""
    space = _spelling(vocabulary)[0]
    kept: list[int] = []
    end, seen = 0, set[int]()
    pieces = [*vocabulary.pieces(ids), SPACE]
    for start, after, number in _symbols(vocabulary, ids, count):
        kept += ids[end:start]
        if 0 < number <= count and number not in seen:
            seen.add(number)
            kept += ids[start:after]
        elif space and kept[-len(space) :] == space and pieces[after].startswith(SPACE):
            del kept[-len(space) :]
        end = after
    return [*kept, *ids[end:]]


def _missing(vocabulary: Vocabulary, ids: Sequence[int], count: int) -> list[int]:
    """Returns the numbers of the values without a symbol."""
    there = {number for *_, number in _symbols(vocabulary, ids, count)}
    return [number for number in range(1, count + 1) if number not in there]


def _longer(
    vocabulary: Vocabulary, ids: list[int], count: int, start: int, longest: int
) -> list[list[int]]:
    """Returns ids with the first missing symbol at each place from `start` that is not inside a word.

    If none is missing, or they would be too long, it returns the ids alone.
    """
    space, symbol, digits = _spelling(vocabulary)
    result = []
    for number in _missing(vocabulary, ids, count)[:1]:
        written = [symbol, *(token for token, n in digits.items() if n == number and count > 1)]
        pieces, values = [*vocabulary.pieces(ids), SPACE], [*vocabulary.byte_values[ids], -1]
        for place in range(start, len(ids) + 1):
            is_digit = count > 1 and ids[place - 1 : place] == [symbol]
            if is_digit or _is_in_word(pieces[place][0]) or 0x80 <= values[place] < 0xC0:
                continue
            result.append([*ids[:place], *space, *written, *ids[place:]])
            # After a letter, a value would seem to belong to the word.
            if space and place > start and not _is_in_word(pieces[place - 1][-1]):
                result.append([*ids[:place], *written, *ids[place:]])
    result = [longer for longer in result if len(longer) < longest]
    return result[:: -(-len(result) // _MOST_PLACES)] if result else [ids]


def _filled(template: str, values: Sequence[str]) -> str:
    """Returns a template with a value in the place of each mark."""
    return _MARKS.sub(lambda match: values[_number(match[0])], template) if values else template


def _number(mark: str) -> int:
    return ord(mark) - _FIRST_MARK


def _term_spans(text: str, terms: Terms) -> list[tuple[int, int]]:
    """Returns the places of terms in a text: whole words, the longest term at each place."""
    spans, place = [], 0
    while terms.lengths and place < len(text):
        ends = (place + n for n in terms.lengths if text[place : place + n] in terms.targets)
        ends = (end for end in ends if _divides(text, place) and _divides(text, end))
        end = next(ends, 0)
        spans += [(place, end)] if end else []
        place = end or place + 1
    return spans


def _divides(text: str, place: int) -> bool:
    """Returns whether a place is not inside a word. A script without spaces has no words here."""
    return place in (0, len(text)) or not all(map(_is_in_word, text[place - 1 : place + 1]))


def _is_in_word(character: str) -> bool:
    is_letter = character.isalnum() or unicodedata.category(character)[0] == "M"
    return is_letter and not _UNSPACED.match(character)


def _capital(term: str) -> str:
    return term[:1].upper() + term[1:]
