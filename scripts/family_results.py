"""The results of a family of models as Markdown: tables, and which claims of GShard hold at this size.

All comparisons are paired over languages: the same test strings, translated by two models. An interval is
the 95 % interval of a mean over languages, from a bootstrap that draws languages. It says how far the
result depends on the choice of languages, and nothing about other seeds of the training.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

RESAMPLES = 10_000
SEED = 1

Scores = Mapping[str, float]
"""BLEU of each language."""


@dataclasses.dataclass(frozen=True)
class Member:
    """A trained model of the family.

    Attributes:
      name: its name in the tables.
      weights, experts, layers: its size. The layers are those of the encoder; the decoder has as many.
      seconds, tokens: the time and the text of its training.
      bleu: BLEU of each language.
      curve: (tokens, dev cross-entropy) at each validation, in nats a token, mean over languages.
    """

    name: str
    weights: int
    experts: int
    layers: int
    seconds: float
    tokens: int
    bleu: Scores
    curve: Sequence[tuple[int, float]] = ()


@dataclasses.dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval; NaN if nothing can be compared."""

    mean: float
    low: float
    high: float

    def verdict(self) -> str:
        """Returns what the interval says of the claim that the mean is above zero."""
        if self.low > 0:
            return "holds here"
        return "the opposite holds here" if self.high < 0 else "not decided"

    def text(self) -> str:
        """Returns mean and interval, as in "+1.2 (+0.4 to +2.1)", or "-" if there is none."""
        if math.isnan(self.mean):
            return "-"
        return f"{self.mean:+.1f} ({self.low:+.1f} to {self.high:+.1f})"


def difference(better: Scores, worse: Scores, languages: Iterable[str]) -> Interval:
    """Returns the mean over languages of better - worse, without languages that one of them lacks."""
    common = [language for language in languages if language in better and language in worse]
    if not common:
        return Interval(math.nan, math.nan, math.nan)
    gains = np.array([better[language] - worse[language] for language in common])
    means = gains[_draws(len(gains))].mean(axis=1)
    return Interval(float(gains.mean()), *map(float, np.percentile(means, [2.5, 97.5])))


def contrast(
    better: Scores, worse: Scores, first: Iterable[str], second: Iterable[str]
) -> Interval:
    """Returns how much larger the mean gain is over the first languages than over the second."""
    sides = [
        np.array([better[language] - worse[language] for language in languages])
        for languages in (first, second)
    ]
    means = [side[_draws(len(side), number)].mean(axis=1) for number, side in enumerate(sides)]
    low, high = np.percentile(means[0] - means[1], [2.5, 97.5])
    return Interval(float(sides[0].mean() - sides[1].mean()), float(low), float(high))


def _draws(size: int, number: int = 0) -> np.ndarray:
    return np.random.default_rng([SEED, number]).integers(0, size, (RESAMPLES, size))


def thirds(train_pairs: Mapping[str, int]) -> dict[str, list[str]]:
    """Returns the languages with most, middle and least text. The first third takes what remains."""
    ordered = sorted(train_pairs, key=lambda language: (-train_pairs[language], language))
    third = len(ordered) // 3
    cuts = [0, len(ordered) - 2 * third, len(ordered) - third, len(ordered)]
    names = ("high", "middle", "low")
    return {name: ordered[cuts[i] : cuts[i + 1]] for i, name in enumerate(names)}


def curve_of(lines: Iterable[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """Returns (tokens, mean dev cross-entropy over languages) from the lines of metrics.jsonl."""
    curve, tokens = [], 0
    for line in lines:
        tokens = int(line.get("tokens", tokens))
        losses = [value for name, value in line.items() if name.startswith("dev_nll/")]
        if losses:
            curve.append((tokens, float(np.mean(losses))))
    return curve


def tokens_to_reach(curve: Sequence[tuple[int, float]], target: float) -> float | None:
    """Returns the tokens at which a curve first falls to `target`; None if it does not.

    Between two validations the cross-entropy is taken to fall linearly.
    """
    for (t0, loss0), (t1, loss1) in itertools.pairwise(curve):
        if loss0 > target >= loss1:
            return t0 + (t1 - t0) * (loss0 - target) / (loss0 - loss1)
    return float(curve[0][0]) if curve and curve[0][1] <= target else None


def targets(members: Sequence[Member]) -> list[float]:
    """Returns three cross-entropies that every member passed: round numbers near its end, as Table 2."""
    last = max(min(loss for _, loss in member.curve) for member in members if member.curve)
    lowest = float(np.ceil(10 * last) / 10)
    return [round(lowest + 0.2 * n, 1) for n in (2, 1, 0)]


def page(members: Sequence[Member], train_pairs: Mapping[str, int], baselines: Scores) -> str:
    """Returns all tables and claims as Markdown.

    Args:
      members: the models, dense ones with 0 experts.
      train_pairs: the training pairs of each language.
      baselines: BLEU of the bilingual baseline of each language.
    """
    groups = thirds(train_pairs)
    parts = [_sizes(members, groups, baselines), _by_language(members, train_pairs, baselines)]
    if all(member.curve for member in members):
        parts.append(_tokens_table(members))
    parts.append(_claims(members, groups, baselines))
    return "\n".join(parts)


def _sizes(
    members: Sequence[Member], groups: Mapping[str, Sequence[str]], baselines: Scores
) -> str:
    rows = [
        (
            *("model", "weights", "experts", "layers", "minutes", "BLEU", "gain"),
            *(f"gain, {name}" for name in groups),
        )
    ]
    for member in members:
        everything = [language for languages in groups.values() for language in languages]
        gains = [difference(member.bleu, baselines, everything)]
        gains += [difference(member.bleu, baselines, languages) for languages in groups.values()]
        rows.append(
            (
                member.name,
                f"{member.weights / 1e6:.1f} M",
                str(member.experts or "dense"),
                f"{member.layers} + {member.layers}",
                f"{member.seconds / 60:.0f}",
                f"{np.mean(list(member.bleu.values())):.1f}",
                *(gain.text() for gain in gains),
            )
        )
    sizes = ", ".join(f"{name}: {' '.join(languages)}" for name, languages in groups.items())
    return f"{table(rows)}\nGain over the bilingual baselines. {sizes}.\n"


def _by_language(
    members: Sequence[Member], train_pairs: Mapping[str, int], baselines: Scores
) -> str:
    rows = [("language", "pairs", "baseline", *(member.name for member in members))]
    for language in sorted(train_pairs, key=lambda name: (-train_pairs[name], name)):
        scores = [baselines.get(language), *(member.bleu.get(language) for member in members)]
        cells = ["-" if score is None else f"{score:.1f}" for score in scores]
        rows.append((language, f"{train_pairs[language]:,}", *cells))
    return table(rows)


def _tokens_table(members: Sequence[Member]) -> str:
    wanted = targets(members)
    rows = [("model", *(f"{target:.1f} nats" for target in wanted))]
    for member in members:
        reached = [tokens_to_reach(member.curve, target) for target in wanted]
        cells = ["not reached" if n is None else f"{n / 1e6:.2f} M" for n in reached]
        rows.append((member.name, *cells))
    about = (
        "Tokens until the cross-entropy on dev text, a mean over languages, falls to these values."
    )
    return f"{table(rows)}\n{about}\n"


def _claims(
    members: Sequence[Member], groups: Mapping[str, Sequence[str]], baselines: Scores
) -> str:
    by_name = {member.name: member for member in members}
    everything = [language for languages in groups.values() for language in languages]
    shallow = sorted(
        (m for m in members if m.experts and m.layers == min(x.layers for x in members)),
        key=lambda member: member.experts,
    )
    dense = sorted((m for m in members if not m.experts), key=lambda member: member.layers)
    rows = [("claim of GShard (sections 4.4 and 4.5)", "seen here", "")]

    def add(claim: str, interval: Interval) -> None:
        rows.append((claim, interval.text(), interval.verdict()))

    if dense and shallow:
        most = shallow[-1]
        add(
            f"{most.experts} experts are better than a dense model of the same depth",
            difference(most.bleu, dense[0].bleu, everything),
        )
    for fewer, more in itertools.pairwise(shallow):
        add(
            f"{more.experts} experts are better than {fewer.experts}",
            difference(more.bleu, fewer.bleu, everything),
        )
    if len(shallow) > 1:
        few, many = shallow[0], shallow[-1]
        add(
            f"from {few.experts} to {many.experts} experts, the largest languages gain more than the "
            "smallest",
            contrast(many.bleu, few.bleu, groups["high"], groups["low"]),
        )
    for member in members:
        shallower = [m for m in members if m.experts == member.experts and m.layers < member.layers]
        if member.experts and shallower:
            add(
                f"{member.layers} layers are better than {shallower[0].layers}, with "
                f"{member.experts} experts",
                difference(member.bleu, shallower[0].bleu, everything),
            )
            if member.curve and shallower[0].curve:
                rows.append(_depth(member, shallower[0], targets(list(by_name.values()))[-1]))
    if len(dense) > 1:
        add(
            f"the deep dense model ({dense[-1].layers} layers) helps the smallest languages, compared "
            f"with {dense[0].layers} layers",
            difference(dense[-1].bleu, dense[0].bleu, groups["low"]),
        )
        add(
            "the deep dense model gains on the smallest languages, compared with the baselines",
            difference(dense[-1].bleu, baselines, groups["low"]),
        )
    return table(rows)


def _depth(deep: Member, shallow: Member, target: float) -> tuple[str, str, str]:
    claim = f"{deep.layers} layers need fewer tokens than {shallow.layers} to {target:.1f} nats"
    first, second = (tokens_to_reach(m.curve, target) for m in (deep, shallow))
    if first is None or second is None:
        return claim, "not reached", "not decided"
    return claim, f"{first / second:.2f} times the tokens", "one run each, no interval"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows as a Markdown table. The first row is the head, the first column is text."""
    head, *body = rows
    rule = ["---", *("---:" for _ in head[1:])]
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, rule, *body])
