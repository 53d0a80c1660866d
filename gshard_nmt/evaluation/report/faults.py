"""Faults of an evaluation: outputs that are empty, copied, repeated, shifted, or in another language.

The references go through the same checks as the outputs. A system is suspicious only if it has a fault
clearly more often than its references. `gshard-data check` looks at the test sets themselves.
"""

import collections
import dataclasses
import html
import itertools
from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gshard_nmt.data.cleaning.scan import surely_above
from gshard_nmt.data.text import normal_form
from gshard_nmt.data.text.language_profiles import LanguageProfiles
from gshard_nmt.data.text.scripts import script_of, scripts_of
from gshard_nmt.evaluation.report import baselines, web_page
from gshard_nmt.evaluation.report.convergence import read_log
from gshard_nmt.evaluation.report.report import Evaluation, Section
from gshard_nmt.evaluation.texts.translations import TestSet
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.monitor import FIGURE, LINES
from gshard_nmt.settings.values import read_run_config

BASELINE = "baseline"
"""The name of the baselines among the systems that are checked. That of the main run is ""."""
LEAST_LINES = 20
"""An alarm needs at least this number of lines."""
_LANGUAGE_MARGIN = 0.5
"""In nats per triple of characters. At 0.5, 0 to 1 % of clean lines seem to be in another language, and
90 % of English lines are recognized among 16 languages. Nynorsk beside Bokmål and Danish has 8 %."""
_LOOP_TIMES = 4
_LENGTH_SLACK = 15
"""Characters that are added before lengths are compared, so short lines may differ more."""
_LENGTH_RATIOS = (0.6, 1.6)
"""Lengths of all outputs against those of all references between which nothing is suspicious."""
_USED_EXPERTS = 0.6
"""Balanced routers log 0.85 to 1.0 of E as effective experts."""


class Kind(NamedTuple):
    """A kind of fault, with an alarm above `limit`, a share of the lines that could have the fault."""

    name: str
    plural: str
    limit: float


KINDS = (
    Kind("empty", "outputs are empty", 0.01),
    Kind("copy", "outputs are copies of their source", 0.05),
    Kind("loop", "outputs repeat words in a loop", 0.01),
    Kind("same_output", "outputs are given for three or more different sources", 0.03),
    Kind("wrong_language", "outputs look like another language", 0.05),
    Kind("length", "outputs are three times as long or as short as their reference", 0.05),
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
    def length_ratio(self) -> float:
        """Characters of all outputs for each character of the references."""
        return sum(map(len, self.outputs)) / max(sum(map(len, self.test.references)), 1)

    @property
    def name(self) -> str:
        direction = self.test.direction_name
        return f"{direction} ({self.system})" if self.system else direction


def outputs_section(evaluation: Evaluation) -> Section:
    """Returns the number of outputs with each fault, with examples; an alarm for each frequent fault."""
    systems = evaluation.translated
    text: dict[str, list[str]] = collections.defaultdict(list)
    for test in systems.main.tests:
        text[test.source] += test.sources
        text[test.target] += test.references
    profiles = LanguageProfiles(text)
    of_baselines = {k: v for each in systems.baselines for k, v in each.lines.items()}
    outputs = {"": systems.main.lines, BASELINE: of_baselines}
    outputs |= {system.name: system.lines for system in systems.others}
    checked = [
        check_direction(test, own[test.source, test.target], profiles, name)
        for test in systems.main.tests
        for name, own in outputs.items()
        if (test.source, test.target) in own
    ]
    alarms = tuple(output_alarms(checked, baselines.not_converged(systems.baselines)))
    rows, examples, data = [], [], []
    for part in checked:
        shown = {fault.kind.name: list(_examples(part, fault)) for fault in part.faults}
        numbers = ((f"{len(fault.lines):,}", fault.is_alarming) for fault in part.faults)
        cells = (web_page.Markup(f"<b>{text}</b>") if bold else text for text, bold in numbers)
        rows.append((part.name, *cells, f"{part.length_ratio:.2f}"))
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
                "length_ratio": round(part.length_ratio, 3),
                "faults": faults,
            }
        )
    heads = ["direction", *(kind.name.replace("_", " ") for kind in KINDS), "length ratio"]
    content = (
        "<p>Number of outputs with each fault. Bold numbers are above the limit of an alarm.</p>\n"
        f"{web_page.table(heads, rows)}\n{''.join(examples)}"
    )
    return Section("output_checks", "Faults in the outputs", content, data, alarms)


def _examples(part: Checked, fault: Fault) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the number of a faulty line, from 1, and its texts, three times at most."""
    texts = {"source": part.test.sources, "reference": part.test.references, "output": part.outputs}
    for n in fault.lines[:3]:
        yield n + 1, {name: lines[n] for name, lines in texts.items()}


def output_alarms(checked: Sequence[Checked], starved: Container[str] = ()) -> Iterator[str]:
    """Yields a sentence for each kind of fault that is too frequent, over all directions.

    Faults of the baselines of the `starved` languages, which are not converged, are no news.
    """
    yield from _alarms([part for part in checked if part.system != BASELINE])
    of_baselines = [part for part in checked if part.system == BASELINE]
    faulty = [p for p in of_baselines if p.test.language not in starved and any(_alarms([p]))]
    if faulty:
        yield f"The outputs of {_names(faulty)} have faults, see “Faults in the outputs”."


def _alarms(checked: Sequence[Checked]) -> Iterator[str]:
    for kind in KINDS:
        found = [(p, f) for p in checked for f in p.faults if f.kind == kind and f.is_alarming]
        if found:
            (part, fault), *others = found
            yield (
                f"{part.name}: {len(fault.lines):,} of {fault.possible:,} {kind.plural} "
                f"({100 * fault.share:.0f} %; references {100 * fault.usual:.0f} %)"
                f"{_and_others([part for part, _ in others])}."
            )
    low, high = _LENGTH_RATIOS
    odd = [p for p in checked if len(p.outputs) >= LEAST_LINES and not low < p.length_ratio < high]
    if odd:
        yield (
            f"{odd[0].name}: the outputs have {odd[0].length_ratio:.2f} times the length of the "
            f"references; between {low} and {high} is usual{_and_others(odd[1:])}."
        )


def _and_others(others: Sequence[Checked]) -> str:
    return f"; the same fault in {_names(others)}" if others else ""


def _names(parts: Sequence[Checked]) -> str:
    rest = f" and {len(parts) - 5} more" if len(parts) > 5 else ""
    return ", ".join(part.name for part in parts[:5]) + rest


def check_direction(
    test: TestSet, outputs: Sequence[str], profiles: LanguageProfiles, system: str = ""
) -> Checked:
    """Checks the translations of one direction."""
    letters = collections.Counter(script_of(c) for line in test.references for c in line)
    del letters[""]
    scripts = {script for script, n in letters.items() if n >= 0.01 * letters.total()}

    def is_faulty(kind: str, source: str, reference: str, output: str) -> bool | None:
        """Returns whether an output has a fault; None if the line cannot have it."""
        if kind == "empty":
            return not output.strip() if reference.strip() else None
        if kind == "copy":
            plain = [" ".join(text.casefold().split()) for text in (source, reference, output)]
            if plain[0] == plain[1] or not any(c.isalpha() for c in source):
                return None
            return plain[2] == plain[0]
        if kind == "loop":
            return loops(output) > loops(reference)
        if kind == "length":
            if not output.strip() or not reference.strip():
                return None
            ratio = (len(output) + _LENGTH_SLACK) / (len(reference) + _LENGTH_SLACK)
            return not 1 / 3 < ratio < 3
        own = scripts | scripts_of(reference)
        found = [script for c in output if (script := script_of(c))]
        is_other = bool(own) and 2 * sum(script not in own for script in found) > len(found)
        return is_other or bool(profiles.other_language(output, test.target, _LANGUAGE_MARGIN))

    def find(kind: str, lines: Sequence[str]) -> tuple[list[int], int]:
        """Returns the numbers of the faulty lines, and the number of lines that could have the fault."""
        rows = list(zip(test.sources, test.references, lines, strict=True))
        if kind == "same_output":
            return _same_outputs(rows), len(rows)
        results = [is_faulty(kind, *row) for row in rows]
        return [n for n, result in enumerate(results) if result], len(rows) - results.count(None)

    faults = []
    for kind in KINDS:
        usual, possible = find(kind.name, test.references)
        faults.append(Fault(kind, *find(kind.name, outputs), len(usual) / max(possible, 1)))
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


def _same_outputs(rows: Sequence[tuple[str, str, str]]) -> list[int]:
    """Finds outputs that three or more different sources with different references share."""
    lines: dict[str, list[int]] = collections.defaultdict(list)
    for number, (*_, output) in enumerate(rows):
        if form := normal_form.sentence_form(output):
            lines[form].append(number)
    result = []
    for numbers in lines.values():
        forms = [{normal_form.sentence_form(rows[n][side]) for n in numbers} for side in (0, 1)]
        if min(map(len, forms)) >= 3:
            result += [n for n in numbers if rows[n][2] != rows[n][1]]
    return sorted(result)


def checks_section(evaluation: Evaluation) -> Section:
    systems, main = evaluation.translated, evaluation.translated.main
    references = (
        _alarms_of_references(test, main.lines[test.source, test.target]) for test in main.tests
    )
    alarms = (
        *evaluation.alarms,
        *evaluation.training.problems,
        *itertools.chain.from_iterable(references),
        *(idle_experts(main.run) if main.run else ()),
        *baselines.alarms(systems),
    )
    items = "".join(f"<li>{html.escape(alarm)}</li>" for alarm in alarms)
    content = f"<ul>{items}</ul>" if alarms else "<p>Nothing looks wrong.</p>"
    title = "Checks of the test sets and the systems"
    return Section("checks", title, content, list(alarms), alarms)


def _alarms_of_references(test: TestSet, outputs: Sequence[str]) -> Iterator[str]:
    """Yields a sentence if references are empty, or shifted against the outputs in a block of lines."""
    if empty := sum(not line.strip() for line in test.references):
        yield f"{test.direction_name}: {empty:,} references are empty."
    count = len(outputs)
    words = [[set(normal_form.words(line)) for line in side] for side in (outputs, test.references)]
    # At most four blocks, of 25 neighboring lines or more.
    blocks = np.array_split(np.arange(count), max(1, min(4, count // 25)))
    for block in blocks if count >= LEAST_LINES else ():
        first, last = int(block[0]), int(block[-1]) + 1
        if shift := _best_shift(*(side[first:last] for side in words)):
            yield (
                f"{test.direction_name}: the references look shifted by {shift:+d} against the outputs "
                f"in lines {first + 1} to {last}."
            )
            return


def _best_shift(outputs: Sequence[set[str]], references: Sequence[set[str]]) -> int:
    """Returns the shift at which outputs agree clearly better with references; 0 if there is none."""

    def agreement(shift: int) -> float:
        shifted = ((n, n + shift) for n in range(len(outputs)))
        rows = [(outputs[n], references[m]) for n, m in shifted if 0 <= m < len(references)]
        values = [2 * len(a & b) / (len(a) + len(b)) for a, b in rows if b]
        return float(np.mean(values)) if values else 0.0

    best = max((-3, -2, -1, 1, 2, 3), key=agreement)
    return best if agreement(best) > max(1.5 * agreement(0) + 0.05, 0.15) else 0


def idle_experts(run: RunFolder) -> Iterator[str]:
    """Yields a sentence for each layer that uses few of its experts at the end of the log."""
    experts = read_run_config(run.config).model.experts
    values: dict[str, list[float]] = collections.defaultdict(list)
    for row in read_log(run):
        for name, value in row.items():
            if name.startswith(f"{FIGURE}/"):
                values[name.removeprefix(f"{FIGURE}/")].append(value)
    for layer, figures in values.items():
        mean = float(np.mean(figures[-LINES:]))
        if mean < _USED_EXPERTS * experts:
            yield (
                f"Layer {layer} works as if it had {mean:.1f} experts, and it has {experts}: some "
                "experts get few tokens or none."
            )
