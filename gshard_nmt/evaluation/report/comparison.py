"""Other systems beside the main run: what can mislead, which differences are significant, and seeds."""

import dataclasses
import html
from collections.abc import Iterator
from typing import Any

from gshard_nmt.data.sets.manifest import VOCABULARIES
from gshard_nmt.evaluation.metrics import significance
from gshard_nmt.evaluation.report import web_page
from gshard_nmt.evaluation.report.report import Caution, Evaluation, Section, bounds
from gshard_nmt.evaluation.report.studies import COMPARISON_HEADS, RATE, comparison_cells
from gshard_nmt.evaluation.systems.systems import (
    Published,
    System,
    Systems,
    common_directions,
    mean,
    rounded,
)
from gshard_nmt.evaluation.texts.corpora import Pairs, fingerprints_of, origin
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.values import read_run_config


def cautions(systems: Systems, pairs: Pairs, bleu_signature: str) -> Iterator[Caution]:
    """Yields what a reader must know before comparing systems with the main run."""
    for system in systems.others:
        if system.published:
            yield from _cautions_of_scores(system.name, system.published, bleu_signature)
        elif system.run and systems.main.run:
            yield from _cautions_of_run(systems.main.run, system.name, system.run, pairs)


def other_vocabularies(run: RunFolder, other: RunFolder) -> list[str]:
    own, of_other = run.identity(), other.identity()
    return [name for name in VOCABULARIES if own[name] != of_other[name]]


def _cautions_of_run(
    run: RunFolder, name: str, other: RunFolder, pairs: Pairs
) -> Iterator[Caution]:
    if changed := other_vocabularies(run, other):
        yield Caution(
            f"vocabulary of {name}",
            f"{name} has other vocabularies than the main run ({', '.join(changed)}). BLEU can be "
            "compared; cross-entropies and numbers of tokens cannot.",
            is_alarm=True,
        )
    if fingerprints_of(run) == fingerprints_of(other):
        return
    # The fingerprint depends on the languages too. The same corpus may have been used all the same.
    origins = [origin(each, pairs) for each in (run, other)]
    verdicts, missing = ([o.is_same for o in origins], [o.missing for o in origins])
    if verdicts == [True, True] and not any(missing):
        return
    known = None not in verdicts and (False in verdicts or missing[0] != missing[1])
    yield Caution(
        f"training text of {name}",
        f"{name} was {'' if known else 'perhaps '}trained on other text than the main run: the "
        f"fingerprints of the corpora are {_fingerprints(other)} and "
        f"{_fingerprints(run)}. The scores compare the models together with their text.",
        is_alarm=True,
    )


def _fingerprints(run: RunFolder) -> str:
    """Returns the fingerprint of the main corpus of a run, and in brackets those of its subsets."""
    main, *subsets = (f"{name} {digits}".strip() for name, digits in fingerprints_of(run).items())
    return f"{main} ({', '.join(subsets)})" if subsets else main


def _cautions_of_scores(name: str, scores: Published, bleu_signature: str) -> Iterator[Caution]:
    if not scores.text_digests:
        but = " but the number of sentences" if scores.sentences else ""
        yield Caution(
            f"test text of {name}",
            f"{scores.file} does not say on which text its scores were measured; nothing could be "
            f"checked{but}.",
        )
    if scores.signature and scores.signature != bleu_signature:
        yield Caution(
            f"signature of {name}",
            f"the BLEU of {name} has the signature {scores.signature}, and that of the main "
            f"run has {bleu_signature}. The scores may differ for this reason alone.",
            is_alarm=True,
        )


def differences_section(evaluation: Evaluation) -> Section | None:
    """Returns the section that compares each later run with the main run; None if there is none.

    Published scores have no translations, so their differences have no p-values.
    """
    main, *others = evaluation.systems.compared
    compared = [system for system in others if any(r.comparison for r in system.results)]
    if not compared:
        return None
    parts = [
        f"<p>Each run is compared with {html.escape(main.name)} by {significance.METHOD} with "
        f"{significance.RESAMPLES:,} draws; the intervals come from the paired bootstrap. The p-values "
        f"of the directions of a run are adjusted together: at most {RATE:.0%} of the differences that "
        "are called significant are expected to be chance (Benjamini and Hochberg).</p>"
    ]
    heads = ("direction", "difference in BLEU", *COMPARISON_HEADS)
    notes, data = [], {}
    for system in compared:
        found = [
            r.difference for r in system.results if r.comparison and (r.adjusted_p or 0) <= RATE
        ]
        better, worse = sum(d > 0 for d in found), sum(d < 0 for d in found)
        data[system.name] = {
            "directions": len(system.results),
            "better": better,
            "worse": worse,
            "false_discovery_rate": RATE,
        }
        average = system.average()
        notes.append(
            f"{system.name}: {average['difference']:+.1f} BLEU"
            f"{bounds(average['difference_ci95'], '+.1f')} on average compared with {main.name}; "
            f"significantly better in {better} of {len(system.results)} directions, and significantly "
            f"worse in {worse} ({significance.METHOD}, false discovery rate {RATE:.0%})."
        )
        rows = [
            [r.test.direction_name, *comparison_cells(r.comparison, r.adjusted_p)]
            for r in system.ordered()
        ]
        name, note = html.escape(system.name), html.escape(notes[-1])
        parts.append(f"<h3>{name}</h3>\n<p>{note}</p>\n{web_page.table(heads, rows)}")
    title = "Which differences between systems are significant"
    return Section("differences", title, "\n".join(parts), data, notes=tuple(notes))


def seeds_section(evaluation: Evaluation) -> Section | None:
    """Returns what the seed changes, if later runs have all settings of the main run but the seeds."""
    main = evaluation.systems.main
    settings, seeds = _settings_and_seeds(main)
    twins = [main]
    for system in evaluation.systems.others:
        if system.run:
            own, own_seeds = _settings_and_seeds(system)
            twins += [system] if own == settings and own_seeds != seeds else []
    if len(twins) == 1:
        return None
    everywhere = common_directions(twins)
    averages = [system.average(everywhere) for system in twins]
    data: dict[str, Any] = {"runs": [system.name for system in twins]}
    words = []
    for key, title, form in (("bleu", "BLEU", ".1f"), ("delta_bleu", "gain", "+.1f")):
        values = [average[key] for average in averages]
        if None in values:
            continue
        interval = significance.interval_of_mean(values)
        data |= rounded({key: mean(values), f"{key}_ci95": interval})
        each = ", ".join(f"{value:{form}}" for value in values)
        words.append(f"{title} {each}, on average {mean(values):{form}}{bounds(interval, form)}")
    note = (
        f"{len(twins)} runs differ only in their seeds: {'; '.join(words)}. An interval here covers the "
        "seeds alone, and three runs are the fewest that have one."
    )
    return Section("seeds", "Seeds", f"<p>{html.escape(note)}</p>", data, notes=(note,))


def _settings_and_seeds(system: System) -> tuple[Any, Any]:
    """Returns everything else that decides what a run becomes, and the seeds."""
    assert system.run is not None
    config = read_run_config(system.run.config)
    data, train = (dataclasses.replace(part, seed=0) for part in (config.data, config.train))
    settings = config.model, config.optimizer, data, train, fingerprints_of(system.run)
    return settings, (config.data.seed, config.train.seed)
