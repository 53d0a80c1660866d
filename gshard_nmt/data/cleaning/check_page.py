"""The page of `gshard-data check`: each finding with its examples, and what was read."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from gshard_nmt import web_page
from gshard_nmt.data.cleaning.findings import Finding
from gshard_nmt.data.cleaning.safe_text import shown

_MOST_CHARACTERS = 300


def page(corpus: str, findings: Sequence[Finding], splits: Sequence[Mapping[str, Any]]) -> str:
    """Returns the whole page.

    Args:
      corpus: the path of the corpus, or the paths of several.
      findings: what looks wrong.
      splits: `pair`, `split`, `lines` and `sample` (number of lines) of each split that was read.
    """
    count = len(findings)
    headline = f"{count} thing{' looks' if count == 1 else 's look'} wrong" if count else ""
    body = [_finding(finding) for finding in findings] or ["<p>Nothing looks wrong.</p>"]
    rows = "".join(
        f"<tr><th>{_text(row['pair'])} {row['split']}</th><td>{row['lines']:,}</td>"
        f"<td>{row['sample']:,}</td></tr>"
        for row in splits
    )
    body.append(
        "<h2>What was read</h2><table><thead><tr><th>split</th><th>lines</th>"
        f"<th>lines in the sample</th></tr></thead><tbody>{rows}</tbody></table>"
        "<p>Languages were compared in the sample. All other checks saw all lines.</p>"
    )
    return web_page.page(f"Check of {corpus}", headline, "\n".join(body))


def _finding(finding: Finding) -> str:
    rows = "".join(
        f"<tr><th>line {example.line:,}</th><td dir='auto'>{_text(example.first)}</td>"
        f"<td dir='auto'>{_text(example.second)}</td></tr>"
        for example in finding.examples
    )
    table = f"<div class='wide'><table class='sample'>{rows}</table></div>" if rows else ""
    return (
        f"<h2>{_text(finding.place)}: {finding.kind.replace('_', ' ')}</h2>"
        f"<p>{_text(finding.what)} {_text(finding.advice)}</p>"
        f"<p>{_text(', '.join(finding.files))}</p>{table}"
    )


def _text(text: str) -> str:
    return html.escape(shown(text, _MOST_CHARACTERS))
