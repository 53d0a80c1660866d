"""gshard-decode --check: shows that a translation does not depend on its company.

The same sentences are translated again in other batches, in other orders, beside very long sentences,
with other numbers of rows, and on other numbers of devices. Ids and scores must be the same bit for bit.
A mesh that splits the sum of a product over devices adds in another order, and an accelerator may do so
for another number of rows. They cannot keep the bits, so there the ids must be the same, and the scores
must agree within TOLERANCE.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.mesh import Mesh

TOLERANCE = 1e-5
"""The largest difference of two scores, in nats per unit of length, if their bits may differ."""

DEVICES = (1, 2, 8)
"""The numbers of devices to compare on a CPU, which has as many virtual devices as one asks for."""

Translations = list[list[tuple[list[int], float]]]
Translate = Callable[[Sequence[Sequence[int]]], Translations]
"""Translates ids as `Translator.translate_ids` does."""
NewTranslator = Callable[[Mesh, int], Translate]
"""(mesh, rows of a batch) -> a translator."""


class Arrangement(NamedTuple):
    """One way to put the sentences into batches."""

    name: str  # what is different, for the user
    mesh: Mesh
    rows: int  # of a batch
    # draws an order and groups of 1 to 2 * rows sentences that are translated together; 0 keeps the
    # order, in one group
    seed: int = 0
    # whether every group gets the longest sentences that a batch can hold
    long_neighbors: bool = False


@dataclasses.dataclass(frozen=True)
class Subject:
    """What is translated, and by what."""

    sources: Sequence[Sequence[int]]  # the ids of each sentence, end of sentence included
    # the number of the input line of each sentence, from 1. A long line has several sentences.
    lines: Sequence[int]
    lengths: Sequence[int]  # the source lengths of the batches, in tokens
    # the letters of each array of weights that the program reads, by name
    weights: Mapping[str, str] = dataclasses.field(default_factory=dict)
    is_cpu: bool = True  # whether the devices are CPU devices


class Outcome(NamedTuple):
    """What an arrangement gave, compared with the first one."""

    arrangement: Arrangement
    text: str  # one line for the user
    is_right: bool  # whether it gave what it must
    is_exact: bool  # whether all scores of the same translations are the same, bit for bit


_SUMMED = "MHNDVT"
"""The letters that products sum over. T is the length of the keys, over which attention sums."""


def split_sums(mesh: Mesh, weights: Mapping[str, str]) -> str:
    """Returns the letters of the sums of products that a mesh splits over devices.

    An entry of `Mesh.overrides` may split arrays of weights in another way than the rules.
    """
    by_rules = [("", letter) for letter in _SUMMED]
    split = {
        letter
        for name, letters in [*by_rules, *weights.items()]
        for letter, axes in zip(letters, mesh.partition(letters, name), strict=True)
        if mesh.axis_size(axes) > 1
    }
    return "".join(letter for letter in _SUMMED if letter in split)


def arrangements(
    mesh: Mesh, rows: int, least: int, experts: int, is_cpu: bool
) -> list[Arrangement]:
    """Returns the arrangements to compare. The first is the usual one.

    A device has at least `least` rows; `rows` is a multiple of this for all devices. There can be any
    number of CPU devices. A dense model has 0 experts.
    """
    unit = least * mesh.axis_size(mesh.partition("B")[0])
    fewer = max(unit, rows // 4 // unit * unit)
    plans = [
        Arrangement(f"{rows} rows a batch, in the order of the input", mesh, rows),
        Arrangement("in random groups", mesh, rows, seed=1),
        Arrangement("in random groups beside very long sentences", mesh, rows, 2, True),
    ]
    for number in sorted([2 * rows, 3 * rows if fewer == rows else fewer]):
        name = f"{number} rows a batch, in random groups"
        plans.append(Arrangement(name, mesh, number, seed=number))
    for devices in DEVICES if is_cpu else ():
        if devices != mesh.num_devices and not experts % devices:
            number = -(-rows // (least * devices)) * least * devices
            places = f"{devices} device{'s' if devices > 1 else ''}"
            name = f"on {places} with {number} rows a batch, in random groups"
            plans.append(Arrangement(name, Mesh(shape=(devices,)), number, seed=4 + devices))
    return plans


def compare(
    subject: Subject, plans: Sequence[Arrangement], new_translator: NewTranslator
) -> Iterator[Outcome]:
    """Translates sentences in each arrangement, and compares with the first one."""
    expected: Translations = []
    for plan in plans:
        translate = new_translator(plan.mesh, plan.rows)
        results = _translate(subject, plan, translate)
        expected = expected or results
        if not any(results):
            raise UserError(
                "no sentence has a translation: the weights have values that are not finite. Use another "
                "--checkpoint."
            )
        other_ids, gaps = [], []
        for line, ours, others in zip(subject.lines, expected, results, strict=True):
            if [ids for ids, _ in ours] != [ids for ids, _ in others]:
                other_ids.append(line)
                continue
            gap = max((abs(a - b) for (_, a), (_, b) in zip(ours, others, strict=True)), default=0)
            gaps += [gap] if gap else []
        excuse = "" if subject.is_cpu else "an accelerator may add in another order"
        for mesh, owner in ((plans[0].mesh, "the mesh of the first line"), (plan.mesh, "the mesh")):
            if letters := split_sums(mesh, subject.weights):
                excuse = f"{owner} splits the sums over {', '.join(letters)}"
        is_right = not other_ids and max(gaps, default=0) <= (TOLERANCE if excuse else 0)
        text = "same translations and scores, bit for bit"
        if other_ids:
            lines = ", ".join(map(str, list(dict.fromkeys(other_ids))[:3]))
            text = f"{len(other_ids)} translations, such as of line {lines}"
        elif gaps:
            text = f"same translations; {len(gaps)} scores differ, by at most {max(gaps):.1e}"
        text = f"{plan.name}: {'' if is_right else 'DIFFERENT: '}{text}"
        text += f" ({excuse})" if excuse else ""
        yield Outcome(plan, text, is_right, not gaps)


def _translate(subject: Subject, plan: Arrangement, translate: Translate) -> Translations:
    """Translates all sentences, in random groups if the plan has a seed."""
    sources = subject.sources
    if not plan.seed:
        return translate(sources)
    rng = np.random.default_rng(plan.seed)
    order = rng.permutation(len(sources)).tolist()
    results: Translations = [[] for _ in sources]
    while order:
        size = int(rng.integers(1, 2 * plan.rows + 1))
        group, order = order[:size], order[size:]
        company = [sources[index] for index in group]
        if plan.long_neighbors:
            # A sentence that fills a row for each length of batches, made of the ids of these.
            end = company[0][-1]
            ids = [token for source in company for token in source[:-1]] or [end]
            company[:0] = [
                [*(ids[i % len(ids)] for i in range(length - 1)), end]
                for length in subject.lengths
                if length > 1
            ]
        translated = translate(company)[-len(group) :]
        for index, translations in zip(group, translated, strict=True):
            results[index] = translations
    return results


def show(outcomes: Iterator[Outcome], sentences: int) -> None:
    """Prints each outcome, then what they show; raises UserError if an arrangement is not right."""
    all_outcomes: list[Outcome] = []
    for outcome in outcomes:
        sys.stdout.write(f"{outcome.text}\n" if all_outcomes else f"{outcome.arrangement.name}\n")
        sys.stdout.flush()
        all_outcomes.append(outcome)
    wrong = [outcome for outcome in all_outcomes if not outcome.is_right]
    if wrong:
        raise UserError(
            f"{len(wrong)} of {len(all_outcomes)} arrangements of {sentences} sentences gave other "
            f"translations or scores; the first is: {wrong[0].text}. This is a bug of gshard-nmt on this "
            "machine; please report it with this output."
        )
    exact = sum(outcome.is_exact for outcome in all_outcomes)
    sys.stdout.write(
        f"{sentences} sentences have the same translations in {len(all_outcomes)} arrangements, and "
        f"the same scores, bit for bit, in {exact} of them\n"
    )
