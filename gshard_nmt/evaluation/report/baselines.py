"""The bilingual baselines of a report: how large each was, why its training ended, and what is wrong.

A gain over a baseline says little without this. `run/baselines.py` says what the records have.
"""

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gshard_nmt.evaluation.report import web_page
from gshard_nmt.evaluation.report.report import Evaluation, Section
from gshard_nmt.evaluation.systems.systems import System, Systems
from gshard_nmt.quantities import duration_text
from gshard_nmt.run.baselines import read_record
from gshard_nmt.run.folder import RunFolder

_ENDINGS = {
    "patience": "dev BLEU did not improve",
    "tokens": "limit of tokens",
    "steps": "limit of steps",
    "minutes": "limit of minutes",
}
_STARVED = 0.5
"""A baseline that saw a smaller share of the multilingual model's tokens of its language is starved."""
_OTHER_TEXT = 0.1
"""A baseline whose number of training pairs differs by more than this part was trained on other text.
If it has vocabularies of its own the number differs a little, because other pairs are too long."""
# fmt: off
_COLUMNS = (
    "language", "size", "weights", "dropout", "vocabulary", "tokens", "steps", "training", "dev BLEU",
    "ended by",
)
_IN_JSON = (
    "language", "kind", "size", "weights", "dropout", "vocabulary", "tokens", "steps", "seconds",
    "dev_bleu", "ended",
)
# fmt: on


def records_of(baselines: Sequence[System]) -> dict[str, dict[str, Any]]:
    records = {each.name: read_record(each.run.path) for each in baselines if each.run}
    return {language: record for language, record in records.items() if record}


def kind_text(records: Mapping[str, Mapping[str, Any]], languages: int) -> str:
    """Returns a sentence that says what kind of baselines these are; `languages` is their number."""
    if not records:
        return "It is not recorded how the baselines were trained."
    parts = []
    searched = [record for record in records.values() if record["kind"] == "converged"]
    if searched:
        ended = sum(record["ended"] == "patience" for record in searched)
        parts.append(
            f"{ended} of {languages} baselines were trained until dev BLEU did not improve"
        )
        if ended < len(searched):
            parts.append(f"{len(searched) - ended} ended at a limit before")
    if budgets := len(records) - len(searched):
        parts.append(
            f"{budgets} of {languages} baselines saw the same number of tokens of their language as the "
            "multilingual model, and are not converged"
        )
    if missing := languages - len(records):
        parts.append(f"of {missing} it is not recorded how they were trained")
    return "; ".join(parts) + "."


def not_converged(baselines: Sequence[System]) -> list[str]:
    """Returns the languages whose baseline ended for another reason than that it did not improve."""
    return [name for name, record in records_of(baselines).items() if record["ended"] != "patience"]


def caution(baselines: Sequence[System]) -> str:
    """Returns a sentence for the headline about baselines that are not converged; "" without any."""
    languages = not_converged(baselines)
    if not languages:
        return ""
    return (
        f"{len(languages)} of {len(baselines)} baselines are not converged, so the gains over them are "
        "larger than over well-trained ones."
    )


def budget_facts(systems: Systems) -> Iterator[tuple[str, str]]:
    def tokens(budget: Mapping[str, Any]) -> int:
        return sum(budget["tokens_by_language"].values())

    if systems.main.run and (budget := systems.main.run.budget()):
        yield (
            "multilingual model",
            f"{budget['parameters']:,} parameters, {budget['steps']:,} steps, "
            f"{tokens(budget):,} tokens, {budget['seconds']:.0f} s",
        )
    runs = [each.run for each in systems.baselines if each.run]
    budgets = [budget for run in runs if (budget := run.budget())]
    if budgets:
        sizes = sorted({budget["parameters"] for budget in budgets})
        size = " to ".join(f"{parameters:,}" for parameters in dict.fromkeys((sizes[0], sizes[-1])))
        yield (
            "baselines",
            f"{len(budgets)} bilingual models of {size} parameters each; "
            f"{sum(map(tokens, budgets)):,} tokens in total; "
            f"{sum(b['seconds'] for b in budgets):.0f} s in total. "
            + kind_text(records_of(systems.baselines), len(runs)),
        )
    if systems.baselines and (without := _without(systems)):
        yield "without a baseline", ", ".join(without)


def _without(systems: Systems) -> list[str]:
    known = {test.direction_name for each in systems.baselines for test in each.tests}
    names = [test.direction_name for test in systems.main.tests]
    return [name for name in names if name not in known]


def baselines_section(evaluation: Evaluation) -> Section | None:
    """Returns the table of the baselines; None if none has a record."""
    baselines = evaluation.systems.baselines
    records = records_of(baselines)
    if not records:
        return None
    kind = kind_text(records, len(baselines))
    rows = [_row(language, record) for language, record in records.items()]
    content = (
        f"<p>{html.escape(kind)} A model with the vocabulary “shared” uses the vocabularies that were "
        f"learned from several languages.</p>\n{web_page.table(_COLUMNS, rows)}"
    )
    languages = [{name: record.get(name) for name in _IN_JSON} for record in records.values()]
    return Section("baselines", "Baselines", content, {"kind": kind, "languages": languages})


def _row(language: str, record: Mapping[str, Any]) -> Sequence[str]:
    dropout, score = record.get("dropout"), record.get("dev_bleu")
    return [
        language,
        record["size"],
        f"{record['weights']:,}",
        "of the config" if dropout is None else f"{dropout:g}",
        record["vocabulary"],
        f"{record['tokens']:,}",
        f"{record['steps']:,}",
        duration_text(record["seconds"]),
        "" if score is None else f"{score:.1f}",
        _ENDINGS.get(record["ended"], record["ended"]),
    ]


def alarms(systems: Systems) -> Iterator[str]:
    if systems.baselines and (missing := _without(systems)):
        yield (
            f"There is no baseline of {', '.join(missing)}; the mean gain is over the other directions."
        )
    main, runs = systems.main.run, {b.name: b.run for b in systems.baselines if b.run}
    if main is None:
        return
    starved = not_converged(systems.baselines)  # the headline names them
    tokens = main.budget().get("tokens_by_language", {})
    few, others = [], []
    for tag, run in runs.items():
        own = run.budget().get("tokens_by_language", {}).get(tag)
        if tag not in starved and own is not None and own < _STARVED * tokens.get(tag, 0):
            few.append(f"{tag} ({own:,} of {tokens[tag]:,})")
        pairs, of_main = _train_pairs(run, tag), _train_pairs(main, tag)
        if abs(pairs - of_main) > _OTHER_TEXT * max(pairs, of_main):
            others.append(f"{tag} ({pairs:,} and {of_main:,})")
    if few:
        yield (
            "Baselines saw less than half of the training tokens that the multilingual model saw of "
            f"their language: {', '.join(few)}. Their gains are no fair comparison."
        )
    if others:
        yield (
            "Baselines were trained on another number of pairs of their language than the multilingual "
            f"model: {', '.join(others)}. Their gains compare the models together with their text."
        )


def _train_pairs(run: RunFolder, language: str) -> int:
    pairs = run.data["pairs"]
    return sum(pair["train_pairs"] for pair in pairs if pair["language"] == language)
