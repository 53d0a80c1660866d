"""Faults of translations: outputs that are empty, copied, repeated, or in another language.

The references go through the same checks as the outputs. A system is suspicious only if it has a fault
clearly more often than its references. `gshard-data check` looks at the test sets themselves.
"""

import collections
import dataclasses
import html
from collections.abc import Callable, Container, Iterator, Sequence
from typing import NamedTuple

from gshard_nmt.data.cleaning.scan import surely_above
from gshard_nmt.data.reading.rows import listed
from gshard_nmt.data.text import normal_form
from gshard_nmt.data.text.language_profiles import LanguageProfiles
from gshard_nmt.data.text.scripts import script_of
from gshard_nmt.evaluation.report import web_page
from gshard_nmt.evaluation.report.report import Section
from gshard_nmt.evaluation.systems import Systems
from gshard_nmt.evaluation.translations import TestSet

LEAST_LINES = 20
"""An alarm needs at least this number of lines."""
_LANGUAGE_MARGIN = 0.5
"""In nats per triple of characters. At 0.5, 0 to 1 % of clean lines seem to be in another language, and
90 % of English lines are recognized among 16 languages. Nynorsk beside Bokmål and Danish has 8 %."""
_LOOP_TIMES = 4


class Kind(NamedTuple):
    """A kind of fault, with an alarm above `limit`, a share of the lines that could have the fault."""

    name: str
    plural: str
    limit: float


KINDS = (
    Kind("empty", "outputs are empty", 0.01),
    Kind("copy", "outputs are copies of their source", 0.05),
    Kind("loop", "outputs repeat words in a loop", 0.01),
    Kind("wrong_language", "outputs look like another language", 0.05),
)
"""All kinds. Human translations stay below each limit."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """The lines of one direction, from 0, that have one kind of fault.

    `possible` is the number of lines that could have it. `usual` is the share of references that do.
    """

    kind: Kind
    lines: list[int]
    possible: int
    usual: float

    @property
    def share(self) -> float:
        return len(self.lines) / max(self.possible, 1)

    @property
    def is_alarming(self) -> bool:
        limit = max(self.kind.limit, 2 * self.usual)
        is_enough = self.possible >= LEAST_LINES
        return is_enough and surely_above(len(self.lines), self.possible, limit)


@dataclasses.dataclass(frozen=True)
class Checked:
    """The checks of one system in one direction. `system` is "" for the main run."""

    system: str
    test: TestSet
    outputs: Sequence[str]
    faults: list[Fault]

    @property
    def name(self) -> str:
        direction = self.test.direction_name
        return f"{direction} ({self.system})" if self.system else direction


def outputs_section(systems: Systems, not_converged: Container[str] = ()) -> Section:
    """Returns the number of outputs with each fault, with examples; an alarm for each frequent fault.

    Faults of baselines of the languages that are `not_converged` are no news.
    """
    text: dict[str, list[str]] = collections.defaultdict(list)
    for test in systems.main.tests:
        text[test.source] += test.sources
        text[test.target] += test.references
    profiles = LanguageProfiles(text)
    of_baselines = {k: v for each in systems.baselines for k, v in each.lines.items()}
    outputs = [("", systems.main.lines, ()), ("baseline", of_baselines, not_converged)]
    outputs += [(system.name, system.lines, ()) for system in systems.others]
    checked, news = [], []
    for test in systems.main.tests:
        for name, own, unfinished in outputs:
            if (lines := own.get((test.source, test.target))) is not None:
                checked.append(check_direction(test, lines, profiles, name))
                if test.language not in unfinished:
                    news.append(checked[-1])
    rows, examples, data = [], [], []
    for part in checked:
        sides = (part.outputs, part.test.references)
        written, expected = (sum(map(len, lines)) for lines in sides)
        ratio = written / max(expected, 1)
        shown = {fault.kind.name: list(_examples(part, fault)) for fault in part.faults}
        numbers = ((f"{len(fault.lines):,}", fault.is_alarming) for fault in part.faults)
        cells = (web_page.Markup(f"<b>{text}</b>") if bold else text for text, bold in numbers)
        rows.append((part.name, *cells, f"{ratio:.2f}"))
        tables = "".join(
            web_page.texts({name.replace("_", " "): f"line {line}", **texts}.items())
            for name, lines in shown.items()
            for line, texts in lines
        )
        examples += [web_page.folded(part.name, tables)] if tables else []
        faults = {
            fault.kind.name: {
                "count": len(fault.lines),
                "possible": fault.possible,
                "share": round(fault.share, 4),
                "share_of_references": round(fault.usual, 4),
                "examples": [{"line": line, **texts} for line, texts in shown[fault.kind.name]],
            }
            for fault in part.faults
        }
        data.append(
            {
                "source": part.test.source,
                "target": part.test.target,
                "system": part.system,
                "sentences": len(part.outputs),
                "length_ratio": round(ratio, 3),
                "faults": faults,
            }
        )
    heads = ["direction", *(kind.name.replace("_", " ") for kind in KINDS), "length ratio"]
    content = (
        "<p>Number of outputs with each fault. Bold numbers are above the limit of an alarm. The length "
        "ratio has the characters of all outputs for each character of the references.</p>\n"
        f"{web_page.table(heads, rows)}\n{''.join(examples)}"
    )
    return Section("output_checks", "Faults in the outputs", content, data, tuple(_alarms(news)))


def _examples(part: Checked, fault: Fault) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the number of a faulty line, from 1, and its texts, three times at most."""
    texts = {"source": part.test.sources, "reference": part.test.references, "output": part.outputs}
    for n in fault.lines[:3]:
        yield n + 1, {name: lines[n] for name, lines in texts.items()}


def _alarms(checked: Sequence[Checked]) -> Iterator[str]:
    """Yields a sentence for each kind of fault that is too frequent, over all directions."""
    found = [(part, fault) for part in checked for fault in part.faults if fault.is_alarming]
    for kind in KINDS:
        if of_kind := [(part, fault) for part, fault in found if fault.kind == kind]:
            part, fault = of_kind[0]
            names = [part.name for part, _ in of_kind[1:]]
            others = f"; the same fault in {listed(names, 5)}" if names else ""
            yield (
                f"{part.name}: {len(fault.lines):,} of {fault.possible:,} {kind.plural} "
                f"({100 * fault.share:.0f} %; references {100 * fault.usual:.0f} %){others}."
            )


def check_direction(
    test: TestSet, outputs: Sequence[str], profiles: LanguageProfiles, system: str = ""
) -> Checked:
    """Checks the translations of one direction."""
    letters = collections.Counter(script_of(c) for line in test.references for c in line)
    del letters[""]
    scripts = {script for script, n in letters.items() if n >= 0.01 * letters.total()}

    # Each returns whether an output has a fault; None if the line cannot have it.
    def is_empty(_source: str, reference: str, output: str) -> bool | None:
        return not output.strip() if reference.strip() else None

    def is_copy(source: str, reference: str, output: str) -> bool | None:
        plain = [" ".join(text.casefold().split()) for text in (source, reference, output)]
        if plain[0] == plain[1] or not any(c.isalpha() for c in source):
            return None
        return plain[2] == plain[0]

    def is_loop(_source: str, reference: str, output: str) -> bool:
        return loops(output) > loops(reference)

    def is_of_another_language(_source: str, reference: str, output: str) -> bool:
        own = (scripts | set(map(script_of, reference))) - {""}
        found = [script for c in output if (script := script_of(c))]
        is_other = bool(own) and 2 * sum(script not in own for script in found) > len(found)
        return is_other or bool(profiles.other_language(output, test.target, _LANGUAGE_MARGIN))

    def find(
        is_faulty: Callable[[str, str, str], bool | None], lines: Sequence[str]
    ) -> tuple[list[int], int]:
        """Returns the numbers of the faulty lines, and the number of lines that could have the fault."""
        results = list(map(is_faulty, test.sources, test.references, lines))
        return [n for n, result in enumerate(results) if result], len(lines) - results.count(None)

    faults = []
    checks = (is_empty, is_copy, is_loop, is_of_another_language)
    for kind, check in zip(KINDS, checks, strict=True):
        usual, possible = find(check, test.references)
        faults.append(Fault(kind, *find(check, outputs), len(usual) / max(possible, 1)))
    return Checked(system, test, outputs, faults)


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
    for size in range(1, min(6, len(words) // _LOOP_TIMES) + 1):
        run = 0
        for i in range(size, len(words)):
            run = run + 1 if words[i] == words[i - size] else 0
            if run >= size * (_LOOP_TIMES - 1):
                longest = max(longest, run + size)
    return longest


def checks_section(tests: Sequence[TestSet], alarms: Sequence[str]) -> Section:
    """Returns what is wrong with the test sets and the systems."""
    empty = {test.direction_name: sum(not r.strip() for r in test.references) for test in tests}
    found = (*alarms, *(f"{name}: {n:,} references are empty." for name, n in empty.items() if n))
    items = "".join(f"<li>{html.escape(alarm)}</li>" for alarm in found)
    content = f"<ul>{items}</ul>" if found else "<p>Nothing looks wrong.</p>"
    title = "Checks of the test sets and the systems"
    return Section("checks", title, content, list(found), found)
