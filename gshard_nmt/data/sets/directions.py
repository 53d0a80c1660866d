"""Which language pairs of a corpus are used, and in which directions.

`Data.direction` says it: "xx-en", "en-xx" and "many-to-many" use the pairs with English. "all" uses every
pair in both directions. "as-named" uses every pair from the first to the second language of its folder.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gshard_nmt.data.config import Data
from gshard_nmt.data.reading.rows import listed
from gshard_nmt.data.sets.corpus import ENGLISH, CorpusPair, Listing
from gshard_nmt.data.sets.shards import unknown_languages
from gshard_nmt.errors import UserError


def candidates(config: Data, pairs: Sequence[CorpusPair]) -> Listing:
    """Returns the pairs that have the right languages, whatever the size of their text.

    Two folders with the same languages become one pair, in the order of the first one. dev and test of a
    language come from the first corpus that has them, so that no sentence is counted twice. The pairs of
    the corpus without a name come first.

    Raises:
      UserError: a language of the config is in no pair, or there is no pair with English and the
        direction needs it.
    """
    notes: list[str] = []
    usable = joined(config.direction, pairs, notes)
    if not _takes_any_pair(config.direction):
        without = [pair.folder.name for pair in usable if ENGLISH not in pair.languages]
        usable = [pair for pair in usable if ENGLISH in pair.languages]
        if not usable:
            names = ", ".join(pair.folder.name for pair in pairs[:5])
            raise UserError(
                f"the corpus has no language pair with English (en), only {names}. Add a folder such as "
                f"{pairs[0].source}-en with the translations into English, or set Data.direction = "
                "'all'.",
                ["Data.direction"],
            )
        if without:
            notes.append(
                f"{_listed('pair', without)} left out: no English; Data.direction = 'all' or 'as-named' "
                "takes them"
            )
    for error in unknown_languages(config, usable, "the corpus"):
        raise error
    usable = [pair for pair in usable if config.uses(pair.source, pair.target, pair.language)]
    return Listing(with_one_test_set(usable, notes), notes)


def joined(direction: str, pairs: Sequence[CorpusPair], notes: list[str]) -> list[CorpusPair]:
    """Returns the pairs with one pair for each two languages of a subset, in one order.

    With the direction "as-named", each order is a pair.
    """
    by_key: dict[tuple[str, str, str], CorpusPair] = {}
    for pair in pairs:
        # The same two languages have the same order in all corpora.
        orders = {(source, target) for _, source, target in by_key}
        is_new = (pair.source, pair.target) not in orders
        if direction != "as-named" and (
            (pair.target, pair.source) in orders or (pair.source == ENGLISH and is_new)
        ):
            pair = pair.reversed()
        key = (pair.subset, pair.source, pair.target)
        first = by_key.setdefault(key, pair)
        if first is not pair:
            problems = {**pair.problems, **first.problems}
            texts = first.texts + pair.texts
            by_key[key] = dataclasses.replace(first, texts=texts, problems=problems)
            notes.append(
                f"{pair.folder} has the languages of {first.folder}; the text of both is used as "
                f"{first.language}"
            )
    return labelled(direction, list(by_key.values()))


def labelled(direction: str, pairs: Sequence[CorpusPair]) -> list[CorpusPair]:
    """Returns the pairs. With "as-named", fr-en and en-fr are two languages with these names."""
    names = {(pair.source, pair.target) for pair in pairs}
    return [
        dataclasses.replace(pair, label=f"{pair.source}-{pair.target}")
        if direction == "as-named" and (pair.target, pair.source) in names
        else pair
        for pair in pairs
    ]


def choose(
    config: Data, pairs: Sequence[CorpusPair], rows: Callable[[CorpusPair], int], notes: list[str]
) -> list[CorpusPair]:
    """Returns the candidates that have enough text, from the largest language to the smallest.

    If the config names languages, all candidates are taken, in the order of these names. `rows` returns
    the number of training pairs of a candidate.
    """
    if config.languages:
        return sorted(pairs, key=lambda pair: _place(config, pair))
    sizes: dict[str, int] = {}
    for pair in pairs:
        sizes[pair.language] = sizes.get(pair.language, 0) + rows(pair)
    ranked = sorted(sizes, key=lambda language: (-sizes[language], language))
    enough = [language for language in ranked if sizes[language] >= config.minimum_pairs]
    if not enough:
        largest = ", ".join(f"{language} {sizes[language]:,}" for language in ranked[:5]) or "none"
        raise UserError(
            f"no language has {config.minimum_pairs:,} training pairs or more; the largest are "
            f"{largest}. Lower Data.minimum_pairs, or add lines to the train files."
        )
    small = [language for language in ranked if language not in enough]
    if small:
        notes.append(
            f"{_listed('language', small)} left out: fewer than {config.minimum_pairs:,} training pairs "
            "(Data.minimum_pairs)"
        )
    if config.maximum_languages and len(enough) > config.maximum_languages:
        places = np.linspace(0, len(enough) - 1, config.maximum_languages)
        kept = [enough[round(place)] for place in places]
        cut = [language for language in enough if language not in kept]
        limit = f"Data.maximum_languages is {config.maximum_languages}"
        notes.append(f"{_listed('language', cut)} left out: {limit}")
        enough = kept
    used = [pair for pair in pairs if pair.language in enough]
    return sorted(used, key=lambda pair: enough.index(pair.language))


def directions_of(direction: str, source: str, target: str) -> Iterator[tuple[str, str]]:
    """Yields the (source, target) languages in which a pair is used; none if it is not used."""
    if _takes_any_pair(direction):
        yield source, target
        if direction == "all":
            yield target, source
    elif ENGLISH in (source, target):
        other = target if source == ENGLISH else source
        if direction != "en-xx":
            yield other, ENGLISH
        if direction != "xx-en":
            yield ENGLISH, other


def _takes_any_pair(direction: str) -> bool:
    return direction in ("all", "as-named")


def _place(config: Data, pair: CorpusPair) -> tuple[int, ...]:
    own = config.place_of(pair.language)
    places = [own] if own is not None else map(config.place_of, (pair.source, pair.target))
    return tuple(sorted(place for place in places if place is not None))


def with_one_test_set(pairs: Sequence[CorpusPair], notes: list[str]) -> list[CorpusPair]:
    """Returns the pairs with dev and test in one corpus only: the first one that has them."""
    owners: dict[tuple[str, str, str], str] = {}
    result = []
    for pair in pairs:
        for split in ("dev", "test"):
            if split not in pair.problems and not any(t.split == split for t in pair.texts):
                continue
            if owners.setdefault((pair.source, pair.target, split), pair.subset) != pair.subset:
                notes.append(f"{split} of {pair.folder} is not used; an earlier corpus goes first")
                texts = tuple(text for text in pair.texts if text.split != split)
                problems = {k: v for k, v in pair.problems.items() if k != split}
                pair = dataclasses.replace(pair, texts=texts, problems=problems)
        result.append(pair)
    return result


def _listed(noun: str, names: Sequence[str]) -> str:
    """Returns a number of things with the first names: "2 pairs (fr-de, it-de) are"."""
    noun, verb = (noun, "is") if len(names) == 1 else (f"{noun}s", "are")
    return f"{len(names)} {noun} ({listed(names, 5)}) {verb}"
