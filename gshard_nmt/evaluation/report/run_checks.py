"""Looks for faults of the systems of an evaluation: starved baselines, experts without tokens."""

import json
import types
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gshard_nmt.run.baselines import read_record
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.log.monitor import FIGURE, LINES
from gshard_nmt.settings.values import read_run_config

_STARVED = 0.5
"""A baseline that saw a smaller share of the multilingual model's tokens of its language is starved."""
_OTHER_TEXT = 0.1
"""A baseline whose number of training pairs differs by more than this part was trained on other text.
If it has vocabularies of its own the number differs a little, because other pairs are too long."""
_USED_EXPERTS = 0.6
"""Balanced routers log 0.85 to 1.0 of E as effective experts."""


def alarms(
    run: RunFolder,
    languages: Sequence[str],
    baselines: Mapping[str, RunFolder],
    scores: Mapping[str, float] = types.MappingProxyType({}),
    starved: Container[str] = (),
) -> Iterator[str]:
    """Yields a sentence for each fault of the run, and then of its baselines.

    Args:
      run: the run that is evaluated.
      languages: the languages of the evaluation.
      baselines: the run folder of the baseline of each language; {} if there are none.
      scores: known scores of baselines by language.
      starved: the languages of baselines that are not converged, as the headline says.
    """
    yield from _idle_experts(run)
    compared = {*baselines, *scores}
    if compared and (missing := [tag for tag in languages if tag not in compared]):
        yield f"There is no baseline of {', '.join(missing)}; the mean gain is over the other languages."
    known = [tag for tag in languages if tag in baselines]
    unknown = {tag: baselines[tag] for tag in known if tag not in starved}
    tokens = run.budget().get("tokens_by_language", {})
    fewer = [
        f"{tag} ({own:,} of {tokens[tag]:,})"
        for tag, baseline in unknown.items()
        if tokens.get(tag)
        and (own := baseline.budget().get("tokens_by_language", {}).get(tag)) is not None
        and own < _STARVED * tokens[tag]
    ]
    if fewer:
        yield (
            "Baselines saw less than half of the training tokens that the multilingual model saw of "
            f"their language: {', '.join(fewer)}. Their gains are no fair comparison."
        )
    pairs = {tag: (_train_pairs(baselines[tag], tag), _train_pairs(run, tag)) for tag in known}
    others = [
        f"{tag} ({own:,} and {of_run:,})"
        for tag, (own, of_run) in pairs.items()
        if abs(own - of_run) > _OTHER_TEXT * max(own, of_run)
    ]
    if others:
        yield (
            "Baselines were trained on another number of pairs of their language than the multilingual "
            f"model: {', '.join(others)}. Their gains compare the models together with their text."
        )
    improving = [tag for tag, baseline in unknown.items() if _was_improving(baseline, tag)]
    if improving:
        yield (
            f"{len(improving)} baselines were still improving on dev text when they ended: "
            f"{', '.join(improving)}. More training would make their gains smaller."
        )


def _train_pairs(run: RunFolder, language: str) -> int:
    """Returns the training pairs of a language, in all its directions."""
    pairs = run.data["pairs"]
    return sum(pair["train_pairs"] for pair in pairs if pair["language"] == language)


def _was_improving(run: RunFolder, language: str) -> bool:
    """Returns whether the best score on dev text is the last of three or more."""
    if read_record(run.path):  # it says by itself whether the baseline is converged
        return False
    metric = read_run_config(run.config).train.metric.split("/")[0]
    scores = [row[f"{metric}/{language}"] for row in _log(run) if f"{metric}/{language}" in row]
    best = max(scores, default=0) if metric == "dev_bleu" else min(scores, default=0)
    return len(scores) >= 3 and scores[-1] == best and scores.count(best) == 1


def _idle_experts(run: RunFolder) -> Iterator[str]:
    """Yields a sentence for each layer that uses few of its experts at the end of the log."""
    model = read_run_config(run.config).model
    values: dict[str, list[float]] = {}
    for row in _log(run):
        for name, value in row.items():
            if name.startswith(f"{FIGURE}/"):
                values.setdefault(name.removeprefix(f"{FIGURE}/"), []).append(value)
    for layer, figures in values.items():
        mean = float(np.mean(figures[-LINES:]))
        if model.experts and mean < _USED_EXPERTS * model.experts:
            yield (
                f"Layer {layer} works as if it had {mean:.1f} experts, and it has {model.experts}: some "
                "experts get few tokens or none."
            )


def _log(run: RunFolder) -> list[dict[str, Any]]:
    """Returns the lines of metrics.jsonl; [] if it cannot be read. Damaged lines are left out."""
    try:
        lines = run.metrics.read_bytes().decode(errors="replace").splitlines()
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append({k: v for k, v in row.items() if isinstance(v, int | float)})
    return rows
