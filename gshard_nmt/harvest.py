"""gshard-data harvest: the message catalogues of this machine become a parallel corpus."""

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from gshard_nmt.data.catalogues import finding
from gshard_nmt.data.corpus import SPLITS, find_pairs, fingerprint
from gshard_nmt.errors import UserError

REPORT = "corpus.json"


def harvest(
    out: Path, roots: Sequence[Path] = (), system: bool = True, minimum_pairs: int = 1
) -> None:
    """Reads every catalogue below the roots and writes one corpus of all languages to English.

    The corpus is complete or it is not there: it is made in a folder beside OUT and renamed.

    Args:
      out: the corpus folder; one that an earlier harvest made is replaced.
      roots: folders to search.
      system: whether to search the system's locale folders and this Python's packages as well.
      minimum_pairs: languages with fewer training pairs are left out.

    Raises:
      UserError: there are no catalogues, a root is missing, or OUT holds something else.
    """
    console = Console(stderr=True, highlight=False)
    for root in roots:
        if not root.is_dir():
            raise UserError(f"--root {root}: there is no such folder.")
    if out.exists() and any(out.iterdir()) and not (out / REPORT).exists():
        raise UserError(
            f"--out {out} is not empty and not a harvested corpus; choose another folder."
        )
    searched = [*roots, *(finding.default_roots() if system else [])]
    found = finding.find_catalogues(searched)
    if not found:
        raise UserError(
            f"no message catalogues (.mo, .po) below {', '.join(map(str, searched)) or 'no folder'}. "
            "Give a folder that has some with --root DIR, or install a package that carries them: "
            "pip install django, or on Debian any language pack."
        )
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"reading {len(found)} catalogues", total=len(found))
        harvested = finding.harvest(
            found, progress=lambda done: progress.update(task, completed=done)
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
        made = Path(temporary) / "corpus"
        written = finding.write_corpus(harvested, made, minimum_pairs)
        if not written:
            raise UserError(
                f"no language has {minimum_pairs} training pairs; lower --minimum_pairs."
            )
        report = {
            "roots": [str(root) for root in searched],
            "catalogues": harvested.catalogues,
            "unreadable": harvested.unreadable,
            "fingerprint": fingerprint(find_pairs(made)),
            "languages": {
                language: {s: harvested.count(language, s) for s in (*SPLITS, "names")}
                for language in written
            },
            "dropped": dict(sorted(harvested.dropped.items(), key=lambda item: -item[1])),
            "lists_of_names": list(harvested.list_domains),
        }
        (made / REPORT).write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
        if out.exists():
            shutil.rmtree(out)
        made.replace(out)
    _show(harvested, written)


def _show(harvested: finding.Harvest, written: Sequence[str]) -> None:
    table = Table(title=f"{len(written)} languages to English")
    for column in ("language", *SPLITS, "names"):
        table.add_column(column, justify="left" if column == "language" else "right")
    for language in written:
        counts = [harvested.count(language, split) for split in (*SPLITS, "names")]
        table.add_row(language, *(f"{n:,}" for n in counts))
    totals = [sum(harvested.count(tag, s) for tag in written) for s in (*SPLITS, "names")]
    table.add_section()
    table.add_row("all", *(f"{n:,}" for n in totals))
    console = Console(highlight=False)
    console.print(table)
    reasons = sorted(harvested.dropped.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{reason} {number:,}" for reason, number in reasons if number) or "nothing"
    console.print(
        f"{harvested.catalogues:,} catalogues read, {harvested.unreadable} damaged; dropped: {shown}."
    )
    if harvested.list_domains:
        console.print(f"Lists of names, kept apart: {', '.join(harvested.list_domains)}.")
