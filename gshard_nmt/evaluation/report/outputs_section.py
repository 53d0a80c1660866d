"""The section of a report about faults in the outputs: counts, shares and examples."""

import html
from collections.abc import Container, Mapping, Sequence
from typing import Any

from gshard_nmt import web_page
from gshard_nmt.evaluation.report import output_checks
from gshard_nmt.evaluation.report.output_checks import Checked, Fault
from gshard_nmt.evaluation.report.report import Section
from gshard_nmt.evaluation.texts.translations import TestSet

EXAMPLES = 3
"""Lines of each fault that the report shows."""


def check(
    tests: Sequence[TestSet],
    outputs: Mapping[str, Mapping[tuple[str, str], Sequence[str]]],
    starved: Container[str] = (),
) -> Section:
    """Checks the translations of all systems and directions.

    Args:
      tests: the test sets of the evaluation.
      outputs: system -> (source language, target language) -> the translations, in the order of the test
        set. A system may lack directions.
      starved: the languages of baselines that are not converged.

    Returns:
      A section with the number and the share of each fault and with examples; an alarm for each fault
      that is too frequent.
    """
    profiles = output_checks.profiles_of(tests)
    checked = [
        output_checks.check_direction(
            test, outputs[system][test.source, test.target], profiles, system
        )
        for test in tests
        for system in outputs
        if (test.source, test.target) in outputs[system]
    ]
    return Section(
        "output_checks",
        "Faults in the outputs",
        _html(checked),
        [_as_json(part) for part in checked],
        tuple(output_checks.alarms(checked, starved)),
    )


def _as_json(part: Checked) -> dict[str, Any]:
    return {
        "source": part.test.source,
        "target": part.test.target,
        "system": part.system,
        "sentences": len(part.outputs),
        "length_ratio": round(part.length_ratio, 3),
        "faults": {
            fault.kind.name: {
                "count": len(fault.lines),
                "possible": fault.possible,
                "share": round(fault.share, 4),
                "share_of_references": round(fault.usual, 4),
                "examples": [
                    {
                        "line": n + 1,
                        "source": part.test.sources[n],
                        "reference": part.test.references[n],
                        "output": part.outputs[n],
                    }
                    for n in fault.lines[:EXAMPLES]
                ],
            }
            for fault in part.faults
        },
    }


def _html(checked: Sequence[Checked]) -> str:
    names = [kind.name.replace("_", " ") for kind in output_checks.KINDS]
    rows = []
    for part in checked:
        faults = {fault.kind.name: fault for fault in part.faults}
        cells = [_cell(faults.get(kind.name)) for kind in output_checks.KINDS]
        rows.append((part.name, *cells, f"{part.length_ratio:.2f}"))
    table = web_page.table(["direction", *names, "length ratio"], rows)
    return (
        "<p>Number of outputs with each fault. Bold numbers are above the limit of an alarm.</p>\n"
        f"{table}\n{''.join(map(_examples, checked))}"
    )


def _cell(fault: Fault | None) -> str:
    if fault is None:
        return "–"
    number = f"{len(fault.lines):,}"
    return web_page.Markup(f"<b>{number}</b>") if fault.is_alarming else number


def _examples(part: Checked) -> str:
    """Returns the examples of a direction, folded; "" if it has no fault."""
    tables = []
    for fault in part.faults:
        for n in fault.lines[:EXAMPLES]:
            lines = (
                (fault.kind.name.replace("_", " "), f"line {n + 1}"),
                ("source", part.test.sources[n]),
                ("reference", part.test.references[n]),
                ("output", part.outputs[n]),
            )
            rows = "".join(
                f'<tr><th>{name}</th><td dir="auto">{html.escape(text)}</td></tr>'
                for name, text in lines
            )
            tables.append(f"<table class='sample'>{rows}</table>")
    if not tables:
        return ""
    return f"<details><summary>{html.escape(part.name)}</summary>{''.join(tables)}</details>"
