"""Looks for faults in single translations: empty, copied, repeated, in a wrong language, and so on.

The references go through the same checks. A system is suspicious only if it has a fault clearly more
often than its references.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Container, Iterator, Sequence

from gshard_nmt.data.text import normal_form
from gshard_nmt.data.text.language_profiles import LanguageProfiles
from gshard_nmt.data.text.scripts import script_of, scripts_of
from gshard_nmt.evaluation.texts.translations import TestSet

LEAST_LINES = 20
"""An alarm needs at least this number of lines."""
_CERTAINTY = 3.0
"""Standard deviations: the share of faulty lines must be above its limit with this certainty."""
_LANGUAGE_MARGIN = 0.5
"""In nats per triple of characters. At 0.5, 0 to 1 % of clean lines seem to be in another language, and
90 % of English lines are recognized among 16 languages. Nynorsk beside Bokmål and Danish has 8 %."""
_LOOP_TIMES = 4
_LOOP_WORDS = 6
_SAME_OUTPUT_SOURCES = 3
_LENGTH_FACTOR = 3.0
_LENGTH_RATIOS = (0.6, 1.6)
"""Lengths of all outputs against those of all references between which nothing is suspicious."""
_LENGTH_SLACK = 15
"""Characters that are added before lengths are compared, so short lines may differ more."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
      name: its key in bleu.json.
      plural: the faulty outputs in words, as the subject of a sentence.
      limit: an alarm is raised above this share of the lines that could have the fault.
    """

    name: str
    plural: str
    limit: float


BASELINE = "baseline"
"""The name of a baseline among the systems that are checked."""

KINDS = (
    Kind("empty", "outputs are empty", 0.01),
    Kind("copy", "outputs are copies of their source", 0.05),
    Kind("loop", "outputs repeat words in a loop", 0.01),
    Kind("same_output", "outputs are given for three or more different sources", 0.03),
    Kind("wrong_script", "outputs are in a script that the references do not use", 0.02),
    Kind("wrong_language", "outputs look like another language", 0.05),
    Kind("length", "outputs are three times as long or as short as their reference", 0.05),
    Kind("placeholders", "outputs whose source has a placeholder or an address lack it", 0.15),
    Kind("numbers", "outputs whose source has a number lack it", 0.15),
)
"""All kinds. Human translations stay below each limit; docs/evaluation.md has the measurements."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """The lines of one direction that have one kind of fault.

    Attributes:
      kind: the kind.
      lines: the numbers of the faulty lines, from 0.
      possible: number of lines that could have the fault.
      usual: the share of references that have the fault.
    """

    kind: Kind
    lines: list[int]
    possible: int
    usual: float

    @property
    def share(self) -> float:
        """The share of faulty lines, 0 to 1."""
        return len(self.lines) / max(self.possible, 1)

    @property
    def is_alarming(self) -> bool:
        """Whether the share is surely above its limit: the lower end of its Wilson interval is."""
        n, z2, share = self.possible, _CERTAINTY**2, self.share
        if n < LEAST_LINES:
            return False
        center, spread = (
            share + z2 / (2 * n),
            math.sqrt(z2 * (share * (1 - share) + z2 / (4 * n)) / n),
        )
        return (center - spread) / (1 + z2 / n) > max(self.kind.limit, 2 * self.usual)


@dataclasses.dataclass(frozen=True)
class Checked:
    """The checks of one system in one direction.

    Attributes:
      system: "" for the run, "baseline" for a baseline.
      test: the test set.
      outputs: the translations.
      faults: one for each kind that can be checked.
      length_ratio: characters of all outputs for each character of the references.
    """

    system: str
    test: TestSet
    outputs: Sequence[str]
    faults: list[Fault]
    length_ratio: float

    @property
    def has_usual_length(self) -> bool:
        """Whether the length ratio is one that translations have."""
        return _LENGTH_RATIOS[0] < self.length_ratio < _LENGTH_RATIOS[1]

    @property
    def name(self) -> str:
        """The direction, with the system if it is not the run."""
        direction = f"{self.test.source}-{self.test.target}"
        return f"{direction} ({self.system})" if self.system else direction


def alarms(checked: Sequence[Checked], starved: Container[str] = ()) -> Iterator[str]:
    """Yields a sentence for each kind of fault that is too frequent, over all directions.

    Args:
      checked: the checks of all systems.
      starved: the languages of baselines that are not converged, and of which faults are no news.
    """
    yield from _alarms([part for part in checked if part.system != BASELINE])
    of_baselines = [part for part in checked if part.system == BASELINE]
    faulty = [p for p in of_baselines if p.test.language not in starved and any(_alarms([p]))]
    if faulty:
        names = ", ".join(part.name for part in faulty[:5])
        more = f" and {len(faulty) - 5} more" if len(faulty) > 5 else ""
        yield f"The outputs of {names}{more} have faults, see “Faults in the outputs”."


def _alarms(checked: Sequence[Checked]) -> Iterator[str]:
    for kind in KINDS:
        faults = [
            (part, fault)
            for part in checked
            for fault in part.faults
            if fault.kind == kind and fault.is_alarming
        ]
        if faults:
            part, fault = faults[0]
            yield (
                f"{part.name}: {len(fault.lines):,} of {fault.possible:,} {kind.plural} "
                f"({100 * fault.share:.0f} %; references {100 * fault.usual:.0f} %)"
                f"{_and_others([part for part, _ in faults[1:]])}."
            )
    odd = [
        part for part in checked if len(part.outputs) >= LEAST_LINES and not part.has_usual_length
    ]
    if odd:
        low, high = _LENGTH_RATIOS
        yield (
            f"{odd[0].name}: the outputs have {odd[0].length_ratio:.2f} times the length of the "
            f"references; between {low} and {high} is usual{_and_others(odd[1:])}."
        )


def _and_others(others: Sequence[Checked]) -> str:
    """Returns the end of an alarm that names other directions with the same fault; "" without any."""
    if not others:
        return ""
    rest = f" and {len(others) - 5} more" if len(others) > 5 else ""
    return f"; the same fault in {', '.join(part.name for part in others[:5])}{rest}"


def profiles_of(tests: Sequence[TestSet]) -> LanguageProfiles:
    """Returns the profiles of the languages of all test sets."""
    text: dict[str, list[str]] = collections.defaultdict(list)
    for test in tests:
        text[test.source] += test.sources
        text[test.target] += test.references
    return LanguageProfiles(text)


def check_direction(
    test: TestSet, outputs: Sequence[str], profiles: LanguageProfiles, system: str = ""
) -> Checked:
    """Checks the translations of one direction.

    Args:
      test: the test set.
      outputs: the translations, one for each source.
      profiles: the languages of the evaluation.
      system: the name of the system in alarms.
    """
    checks = _checks(test, profiles)
    faults = []
    for kind in KINDS:
        if (find := checks.get(kind.name)) is None:
            continue
        lines, possible = find(outputs)
        usual_lines, usual_possible = find(test.references)
        faults.append(Fault(kind, lines, possible, len(usual_lines) / max(usual_possible, 1)))
    lengths = [sum(map(len, lines)) for lines in (outputs, test.references)]
    return Checked(system, test, outputs, faults, lengths[0] / max(lengths[1], 1))


_Find = Callable[[Sequence[str]], tuple[list[int], int]]
"""Takes outputs; returns the numbers of the faulty lines, and the number of lines that could have it."""


def _checks(test: TestSet, profiles: LanguageProfiles) -> dict[str, _Find]:
    """Returns the check of each kind that this test set allows."""
    rows = list(zip(test.sources, test.references, strict=True))

    def by_line(is_faulty: Callable[[str, str, str], bool | None]) -> _Find:
        """Makes a check of (source, reference, output); None if the line cannot have the fault."""

        def find(outputs: Sequence[str]) -> tuple[list[int], int]:
            results = [is_faulty(*row, out) for row, out in zip(rows, outputs, strict=True)]
            lines = [number for number, result in enumerate(results) if result]
            return lines, sum(result is not None for result in results)

        return find

    scripts = _usual_scripts(test.references)
    checks: dict[str, _Find] = {
        "empty": by_line(_is_empty),
        "copy": by_line(_is_copy),
        "loop": by_line(lambda _, reference, out: loops(out) > loops(reference)),
        "same_output": functools.partial(_same_outputs, rows),
        "wrong_script": by_line(
            lambda _, reference, out: _is_other_script(out, scripts | scripts_of(reference))
        ),
        "length": by_line(_is_of_odd_length),
        "placeholders": by_line(functools.partial(_lacks, normal_form.placeholders)),
        "numbers": by_line(functools.partial(_lacks, normal_form.numbers)),
    }
    if test.target in profiles.languages and len(profiles.languages) > 1:
        checks["wrong_language"] = by_line(
            lambda *texts: bool(profiles.other_language(texts[2], test.target, _LANGUAGE_MARGIN))
        )
    return checks


def _is_empty(_: str, reference: str, output: str) -> bool | None:
    return not output.strip() if reference.strip() else None


def _is_copy(source: str, reference: str, output: str) -> bool | None:
    plain = [" ".join(text.casefold().split()) for text in (source, reference, output)]
    if plain[0] == plain[1] or not any(c.isalpha() for c in source):
        return None
    return plain[2] == plain[0]


def loops(text: str) -> int:
    """Returns the number of words of the longest loop: 1 to 6 words, 4 times or more in a row.

    A text without spaces has characters for words. No loop gives 0.
    """
    words = text.casefold().split()
    if len(words) < _LOOP_TIMES:
        words = normal_form.words(text)
    if len(set(words)) > len(words) - _LOOP_TIMES + 1:
        return 0
    longest = 0
    for size in range(1, min(_LOOP_WORDS, len(words) // _LOOP_TIMES) + 1):
        run = 0
        for i in range(size, len(words)):
            run = run + 1 if words[i] == words[i - size] else 0
            if run >= size * (_LOOP_TIMES - 1):
                longest = max(longest, run + size)
    return longest


def _same_outputs(rows: Sequence[tuple[str, str]], outputs: Sequence[str]) -> tuple[list[int], int]:
    """Finds outputs that three or more different sources with different references share."""
    lines: dict[str, list[int]] = collections.defaultdict(list)
    for number, output in enumerate(outputs):
        if form := normal_form.sentence_form(output):
            lines[form].append(number)
    result = []
    for numbers in lines.values():
        forms = [{normal_form.sentence_form(rows[n][side]) for n in numbers} for side in (0, 1)]
        if min(map(len, forms)) >= _SAME_OUTPUT_SOURCES:
            result += [n for n in numbers if outputs[n] != rows[n][1]]
    return sorted(result), len(outputs)


def _usual_scripts(references: Sequence[str]) -> set[str]:
    """Returns the scripts that have at least 1 % of the letters of the references."""
    counts: collections.Counter[str] = collections.Counter()
    for line in references:
        for character, number in collections.Counter(line).items():
            counts[script_of(character)] += number
    del counts[""]
    return {script for script, number in counts.items() if number >= 0.01 * counts.total()}


def _is_other_script(output: str, scripts: set[str]) -> bool | None:
    """Returns whether most letters of an output are in other scripts; None without letters."""
    letters = [script for c in output if (script := script_of(c))]
    if not letters or not scripts:
        return None
    return 2 * sum(script not in scripts for script in letters) > len(letters)


def _is_of_odd_length(_: str, reference: str, output: str) -> bool | None:
    if not output.strip() or not reference.strip():
        return None
    ratio = (len(output) + _LENGTH_SLACK) / (len(reference) + _LENGTH_SLACK)
    return not 1 / _LENGTH_FACTOR < ratio < _LENGTH_FACTOR


def _lacks(
    parts_of: Callable[[str], list[str]], source: str, reference: str, output: str
) -> bool | None:
    """Returns whether an output lacks a part that the source and the reference have; None without one."""
    counts = [collections.Counter(parts_of(text)) for text in (source, reference)]
    needed = counts[0] & counts[1]
    if not needed or not output.strip():
        return None
    return bool(needed - collections.Counter(parts_of(output)))
