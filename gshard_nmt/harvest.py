"""gshard-data harvest: makes a parallel corpus from the message catalogues of this machine."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from gshard_nmt import json_shape, outputs
from gshard_nmt.data.catalogues import finding
from gshard_nmt.data.preparation.inputs import fingerprint
from gshard_nmt.data.reading.rows import listed, note
from gshard_nmt.data.sets.corpus import ENGLISH, SPLITS, find_pairs
from gshard_nmt.errors import UserError
from gshard_nmt.json_shape import anything, fields, mapping_of

REPORT = "corpus.json"

_REPORT = fields({"languages": mapping_of(anything())})


def harvest(
    out: Path, roots: Sequence[Path] = (), system: bool = True, minimum_pairs: int = 1
) -> None:
    """Reads all catalogues below the roots and writes a corpus of each language paired with English.

    The corpus is written to a temporary folder beside `out` and then renamed, so `out` is always
    complete.

    Args:
      out: the corpus folder. A corpus of an earlier harvest is replaced.
      roots: folders to search.
      system: whether to search the system's locale folders and the packages of this Python as well.
      minimum_pairs: languages with fewer training pairs are left out.

    Raises:
      UserError: there are no catalogues, a root does not exist, or `out` has other files in it.
    """
    console = Console(stderr=True, highlight=False, markup=False)
    for root in roots:
        if not root.is_dir():
            raise UserError(f"--root {root}: there is no such folder.")
    _check_is_a_harvest(out)
    outputs.check_folder("--out", out, replaced=True)
    searched = [*roots, *(finding.default_roots() if system else [])]
    catalogues = finding.find_catalogues(searched)
    if not catalogues:
        raise UserError(
            f"no message catalogues (.mo, .po) below {', '.join(map(str, searched)) or 'no folder'}. "
            "Name a folder that has some with --root DIR, or install a package that has some: "
            "pip install django, or on Debian any language pack."
        )
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"reading {len(catalogues)} catalogues", total=len(catalogues))
        harvested = finding.read_and_split(
            catalogues, progress=lambda done: progress.update(task, completed=done)
        )
    for problem, files in (
        ("damaged and left out", harvested.unreadable),
        ("without a right Plural-Forms, so plurals may be paired wrongly", harvested.unclear),
    ):
        if files:
            count = "1 catalogue is" if len(files) == 1 else f"{len(files):,} catalogues are"
            note(f"{count} {problem}: {listed(files)}")
    with outputs.new_folder(out) as corpus:
        languages = finding.write_corpus(harvested, corpus, minimum_pairs)
        if not languages:
            raise UserError(
                f"no language has {minimum_pairs} or more training pairs in the {len(catalogues)} "
                f"catalogues below {', '.join(map(str, searched))}. Name more folders with --root DIR."
            )
        report = _report(harvested, languages, searched, corpus)
        # An odd name of a folder may have bytes that are not UTF-8, so all other characters are escaped.
        (corpus / REPORT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    _show(harvested, languages)


def _check_is_a_harvest(out: Path) -> None:
    """Raises UserError if a folder has anything in it that an earlier harvest did not write."""
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


def _report(
    harvested: finding.Harvest, languages: Sequence[str], roots: Sequence[Path], corpus: Path
) -> dict[str, Any]:
    """Returns the content of `corpus.json`."""
    return {
        "roots": [str(root) for root in roots],
        "catalogues": harvested.catalogues,
        "unreadable": len(harvested.unreadable),
        "fingerprint": fingerprint(find_pairs(corpus)),
        "languages": {
            language: {s: harvested.count(language, s) for s in (*SPLITS, "names")}
            for language in languages
        },
        "dropped": dict(sorted(harvested.dropped.items(), key=lambda item: -item[1])),
        "lists_of_names": list(harvested.list_domains),
    }


def _show(harvested: finding.Harvest, languages: Sequence[str]) -> None:
    table = Table(title=f"{len(languages)} languages to English")
    for column in ("language", *SPLITS, "names"):
        table.add_column(column, justify="left" if column == "language" else "right")
    for language in languages:
        counts = [harvested.count(language, split) for split in (*SPLITS, "names")]
        table.add_row(language, *(f"{n:,}" for n in counts))
    totals = [sum(harvested.count(tag, s) for tag in languages) for s in (*SPLITS, "names")]
    table.add_section()
    table.add_row("all", *(f"{n:,}" for n in totals))
    console = Console(highlight=False, markup=False)
    console.print(table)
    reasons = sorted(harvested.dropped.items(), key=lambda item: -item[1])
    dropped = ", ".join(f"{reason} {number:,}" for reason, number in reasons if number) or "none"
    console.print(
        f"Read {harvested.catalogues:,} catalogues; {len(harvested.unreadable)} of them are damaged. "
        f"Messages left out: {dropped}."
    )
    if harvested.list_domains:
        console.print(
            "Catalogues that list names of countries, languages and so on were written to names/, not "
            f"to train, dev or test: {', '.join(harvested.list_domains)}."
        )
