"""Fits the confidence of translations on dev text, and measures it on test text.

Whether a translation is good is a logistic regression on what the search knows of it. The offset of each
direction has a penalty, so a direction with little dev text stays near the others.
"""

import dataclasses
import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from gshard_nmt import files, outputs
from gshard_nmt.decoding.confidence import FILE, GOOD, Confidence, Evidence
from gshard_nmt.decoding.source_lines import Hypothesis
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation import corpora, metrics
from gshard_nmt.evaluation.report import web_page
from gshard_nmt.evaluation.report.report import Section
from gshard_nmt.evaluation.systems import System
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.terminal import Terminal, table

_PENALTY, _SMALL = 4.0, 1e-3
"""The L2 penalties of the offsets of directions and of losses, which are rare, and of other weights."""
_BINS = 10
_FEWEST = 10
"""The fewest good translations, and others, to fit a confidence on."""
_HEADS = ("predicted", "observed", "sentences")

Hypotheses = Callable[[str, str, str, Sequence[str], str], tuple[list[Hypothesis], str, str]]
"""(run folder, source, target, lines, --checkpoint) -> (best translations, description, checkpoint)."""


class Row(NamedTuple):
    """A translation: its direction, its score, and whether it is good."""

    evidence: Evidence
    direction: str
    score: float
    is_good: bool


def calibrate(
    run: RunFolder, folders: corpora.Folders, sentences: int, work: Hypotheses, checkpoint: str
) -> None:
    """Writes the confidence of a run, fitted on dev text, and prints how good it is on test text.

    `sentences` is the most of each direction; 0 means all. Raises UserError if there is too little text.
    """
    outputs.check_folder("--workdir", run.path)
    pairs = corpora.pairs_of(run, folders)
    rows: dict[str, list[Row]] = {}
    for split in ("dev", "test"):
        rows[split] = []
        tests, notes = corpora.test_sets(run, folders, pairs, split, sentences)
        for note in notes:
            Terminal(stderr=True).print(note)
        for test in tests:
            best, made_by, label = work(
                str(run.path), test.source, test.target, test.sources, checkpoint
            )
            chrf = metrics.sentence_chrf([each.text for each in best], test.references)
            rows[split] += [
                Row(each.evidence, test.direction_name, each.score, value >= GOOD)
                for each, value in zip(best, chrf, strict=True)
                if each.evidence and each.evidence.tokens
            ]
    confidence = Confidence(label, made_by, *fit(rows["dev"]))
    if len({row.is_good for row in rows["test"]}) < 2:
        raise UserError(f"no test translation has chrF {GOOD}, or all have. Give more test text.")
    measured = measure(confidence, rows["test"])
    confidence = dataclasses.replace(confidence, measured=measured)
    files.write_json(run.path / FILE, dataclasses.asdict(confidence))
    cells = [list(map(str, row)) for row in measured["bins"]]
    Terminal().print(table("", _HEADS, cells), f"\n{run.path / FILE}: {summary(measured)}")


def fit(rows: Sequence[Row]) -> tuple[float, list[float], dict[str, float]]:
    """Returns bias, weights and the offset of each direction, found by Newton's method."""
    good = np.array([row.is_good for row in rows], float)
    if min(good.sum(), len(good) - good.sum()) < _FEWEST:
        raise UserError(
            f"{int(good.sum())} of {len(good)} translations of dev text have a chrF of {GOOD} or more; "
            f"at least {_FEWEST} must have it, and {_FEWEST} not. Give more dev text, or train longer."
        )
    features = np.array([row.evidence.features for row in rows])
    mean, scale = features.mean(0), features.std(0) + 1e-9
    mean[-1], scale[-1] = 0.0, 1.0
    names = sorted({row.direction for row in rows})
    offsets = np.array([[name == row.direction for name in names] for row in rows])
    inputs = np.hstack([np.ones((len(rows), 1)), (features - mean) / scale, offsets])
    penalties = np.array([_SMALL] * len(mean) + [_PENALTY] * (1 + len(names)))
    weights = np.zeros(inputs.shape[1])
    for _ in range(100):
        predicted = 1 / (1 + np.exp(-inputs @ weights))
        slope = inputs.T @ (predicted - good) + penalties * weights
        curve = (inputs.T * (predicted * (1 - predicted))) @ inputs + np.diag(penalties)
        step = np.linalg.solve(curve, slope)
        weights -= step / max(1.0, np.abs(step).max())
    own, others = weights[1 : 1 + len(mean)] / scale, weights[1 + len(mean) :].tolist()
    own[-1] = min(own[-1], 0.0)  # a few good ones among those with a loss do not make it a merit
    return float(weights[0] - own @ mean), own.tolist(), dict(zip(names, others, strict=True))


def measure(confidence: Confidence, rows: Sequence[Row]) -> dict[str, Any]:
    """Returns how good a confidence is on text that it was not fitted on.

    `ece` is the expected calibration error: the mean of |predicted - observed| over bins of equal width,
    weighted by their sentences. `auc` is the area under the ROC curve, and `auc_of_score` that of the
    score.
    """
    predicted = np.array([confidence.of(row.evidence, row.direction) for row in rows])
    good = np.array([row.is_good for row in rows])
    places = np.minimum((predicted * _BINS).astype(int), _BINS - 1)
    masks = [places == place for place in sorted(set(places.tolist()))]
    bins = [
        [round(float(predicted[m].mean()), 4), round(float(good[m].mean()), 4), int(m.sum())]
        for m in masks
    ]
    return {
        "sentences": len(rows),
        "good": round(float(good.mean()), 4),
        "ece": round(sum(abs(p - o) * n for p, o, n in bins) / len(rows), 4),
        "auc": area(predicted, good),
        "auc_of_score": area(np.array([row.score for row in rows]), good),
        "bins": bins,
    }


def area(values: np.ndarray, good: np.ndarray) -> float:
    """Returns the area under the ROC curve: how often a good translation has more than another."""
    ranks, n = stats.rankdata(values)[good].sum(), good.sum()
    return round(float((ranks - n * (n + 1) / 2) / max(1, n * (len(good) - n))), 4)


def summary(measured: Mapping[str, Any]) -> str:
    return (
        f"{measured['good']:.0%} of {measured['sentences']:,} test sentences have chrF {GOOD} or more; "
        f"calibration error (ECE) {measured['ece']:.3f}, area under the ROC curve {measured['auc']:.3f}; "
        f"of the score {measured['auc_of_score']:.3f}."
    )


def section(system: System) -> Section | None:
    """Returns the reliability table of a run, if it has a confidence for these translations."""
    confidence = Confidence.read(system.run.path) if system.run else None
    if confidence is None or system.made_by != confidence.made_by:
        return None
    rows = [list(map(str, row)) for row in confidence.measured["bins"]]
    text = f"Fitted on dev text. Measured by --calibrate: {summary(confidence.measured)}"
    content = f"<p>{html.escape(text)}</p>\n{web_page.table(_HEADS, rows)}"
    return Section("confidence", "How sure a translation is", content, confidence.measured)
