"""Which claims of GShard hold for a family of models: tables as Markdown.

All comparisons are paired over languages: the same test strings, translated by two models. The interval
of a mean over languages covers which languages and which strings were taken; strings that languages share
are drawn together (`significance.interval_of_mean`). It does not cover the seed: a model that is trained
again would be a little better or worse in all languages at once. Differences between two groups of
languages, and in nats, have Student's interval, which takes the strings of the languages as independent.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit

from gshard_nmt.evaluation.significance import interval_of_mean

Scores = Mapping[str, float]
"""BLEU of each language."""

Curve = Sequence[tuple[int, float]]
"""(tokens of all languages, cross-entropy on dev text in nats a token) at each validation."""


@dataclasses.dataclass(frozen=True)
class Member:
    """A trained model of the family, or the baselines together, which have scores alone.

    The layers are those of the encoder; the decoder has as many. `drawn` has float64[draw] of each
    language: BLEU on test strings that are drawn with replacement; {} if they are not at hand.
    """

    name: str
    bleu: Scores
    drawn: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    weights: int = 0
    experts: int = 0
    layers: int = 0
    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0
    curves: Mapping[str, Curve] = dataclasses.field(default_factory=dict)
    seed: int = 1

    @property
    def curve(self) -> Curve:
        points = zip(*self.curves.values(), strict=True)
        return [(of[0][0], float(np.mean([loss for _, loss in of]))) for of in points]

    @property
    def losses(self) -> Scores:
        """The cross-entropy of each language at the validation with the best mean."""
        means = [loss for _, loss in self.curve]
        best = means.index(min(means)) if means else 0
        return {language: curve[best][1] for language, curve in self.curves.items()}


@dataclasses.dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval: infinite if there is one value, NaN if there is none."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, *samples: Sequence[float]) -> "Interval":
        """Returns the interval of a mean, or of the difference of two means (Welch)."""
        sizes = [len(sample) for sample in samples]
        if not all(sizes):
            return cls(math.nan, math.nan, math.nan)
        first, *others = (float(np.mean(sample)) for sample in samples)
        mean = first - sum(others)
        if min(sizes) == 1:
            return cls(mean, -math.inf, math.inf)
        errors = [float(np.var(sample, ddof=1)) / len(sample) for sample in samples]
        total = sum(errors)
        if not total:
            return cls(mean, mean, mean)
        freedom = total**2 / sum(e**2 / (n - 1) for e, n in zip(errors, sizes, strict=True))
        half = float(stdtrit(freedom, 0.975)) * math.sqrt(total)
        return cls(mean, mean - half, mean + half)

    def verdict(self) -> str:
        if self.low > 0:
            return "for it"
        return "against it" if self.high < 0 else "not decided"

    def text(self, digits: int = 1) -> str:
        if math.isnan(self.mean):
            return "-"
        mean, low, high = (f"{value:+.{digits}f}" for value in (self.mean, self.low, self.high))
        return f"{mean} ({low} to {high})" if math.isfinite(self.low) else mean


def difference(better: Member, worse: Member, *groups: Sequence[str]) -> Interval:
    """Returns the mean over languages of better - worse; of two groups, the first minus the second."""
    names = [[n for n in group if n in better.bleu and n in worse.bleu] for group in groups]
    gains = [[better.bleu[n] - worse.bleu[n] for n in group] for group in names]
    if (
        len(groups) == 1
        and names[0]
        and all(n in member.drawn for member in (better, worse) for n in names[0])
    ):
        rows = np.array([better.drawn[n] - worse.drawn[n] for n in names[0]])
        if bounds := interval_of_mean(gains[0], rows):
            return Interval(float(np.mean(gains[0])), *bounds)
    return Interval.of(*gains)


def nats(better: Member, worse: Member, *groups: Sequence[str]) -> Interval:
    """Returns how much lower the cross-entropy of `better` is, as `difference` does for BLEU."""
    first, second = better.losses, worse.losses
    return Interval.of(
        *([second[n] - first[n] for n in group if n in first and n in second] for group in groups)
    )


def thirds(train_pairs: Mapping[str, int]) -> dict[str, list[str]]:
    """Returns the languages by their training text, in three groups."""
    ordered = sorted(train_pairs, key=lambda language: (-train_pairs[language], language))
    third = len(ordered) // 3
    cuts = [0, len(ordered) - 2 * third, len(ordered) - third, len(ordered)]
    return {
        name: ordered[cuts[i] : cuts[i + 1]] for i, name in enumerate(("high", "middle", "low"))
    }


def curves_of(lines: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Returns the curve of each language, from the lines of metrics.jsonl."""
    curves: dict[str, list[tuple[int, float]]] = {}
    tokens = 0
    for line in lines:
        tokens = int(line.get("tokens", tokens))
        for name, value in line.items():
            if name.startswith("dev_nll/"):
                curves.setdefault(name.removeprefix("dev_nll/"), []).append((tokens, value))
    return curves


def tokens_to_reach(curve: Curve, target: float) -> float | None:
    """Returns the tokens at which a curve first falls to `target`; None if it does not.

    Between two validations the cross-entropy is taken to fall linearly.
    """
    for (t0, loss0), (t1, loss1) in itertools.pairwise(curve):
        if loss0 > target >= loss1:
            return t0 + (t1 - t0) * (loss0 - target) / (loss0 - loss1)
    return float(curve[0][0]) if curve and curve[0][1] <= target else None


def token_ratio(curves: Mapping[str, Curve], others: Mapping[str, Curve]) -> Interval:
    """Returns the logarithm of tokens / tokens of the others, to the lowest value that both reach.

    Each language has its own value, and the mean is over languages.
    """
    logarithms = []
    for language in curves.keys() & others.keys():
        pair = curves[language], others[language]
        target = max(min(loss for _, loss in curve) for curve in pair)
        first, second = (tokens_to_reach(curve, target) for curve in pair)
        if first and second:
            logarithms.append(math.log(first / second))
    return Interval.of(sorted(logarithms))


def page(members: Sequence[Member], train_pairs: Mapping[str, int], baselines: Member) -> str:
    """Returns all tables and claims as Markdown, of models and baselines."""
    groups = thirds(train_pairs)
    heads = ("model", "weights", "experts", "layers", "steps/s", "hours", "BLEU", "gain")
    rows = [(*heads, *(f"gain, {name}" for name in groups))]
    chosen = [list(itertools.chain(*groups.values())), *groups.values()]
    for member in members:
        rows.append(
            (
                member.name,
                f"{member.weights / 1e6:.1f} M",
                str(member.experts or "dense"),
                f"{member.layers} + {member.layers}",
                f"{member.steps / member.seconds:.1f}",
                f"{member.seconds / 3600:.2f}",
                f"{np.mean(list(member.bleu.values())):.1f}",
                *(difference(member, baselines, names).text() for names in chosen),
            )
        )
    sizes = "; ".join(f"{name}: {' '.join(languages)}" for name, languages in groups.items())
    text = (
        f"Size and cost, as Table 3 of the paper, and gain over the baselines in BLEU. {sizes}.\n\n"
        f"{table(rows)}\n"
    )
    if all(member.curves for member in members):
        last = max(min(loss for _, loss in member.curve) for member in members)
        wanted = [math.ceil(10 * last) / 10 + 0.2 * n for n in (2, 1, 0)]
        rows = [("model", *(f"{target:.1f} nats" for target in wanted))]
        for member in members:
            reached = [tokens_to_reach(member.curve, target) for target in wanted]
            cells = ["not reached" if n is None else f"{n / 1e6:.2f} M" for n in reached]
            rows.append((member.name, *cells))
        text += (
            "Tokens until the cross-entropy on dev text, a mean over languages, falls to these values, "
            f"as Table 2:\n\n{table(rows)}\n"
        )
    return text + _claims(members, groups, baselines)


def _claims(
    members: Sequence[Member], groups: Mapping[str, Sequence[str]], baselines: Member
) -> str:
    everything = list(itertools.chain(*groups.values()))
    heads = ("claim of GShard (sections 4.4 and 4.5)", "BLEU on test text", "with BLEU")
    rows: list[tuple[str, ...]] = [(*heads, "nats on dev text, + is better", "with nats")]

    def add(claim: str, better: Member, worse: Member, *chosen: Sequence[str]) -> None:
        bleu, loss = difference(better, worse, *chosen), nats(better, worse, *chosen)
        rows.append((claim, bleu.text(), bleu.verdict(), loss.text(3), loss.verdict()))

    first = [member for member in members if member.seed == 1]
    least = min((member.layers for member in first), default=0)
    dense = sorted((m for m in first if not m.experts), key=lambda m: m.layers)
    shallow = [m for m in first if m.experts and m.layers == least]
    shallow.sort(key=lambda m: m.experts)
    if dense and shallow:
        claim = f"{shallow[-1].experts} experts are better than a dense model of the same depth"
        add(claim, shallow[-1], dense[0], everything)
    for fewer, more in itertools.pairwise(shallow):
        add(f"{more.experts} experts are better than {fewer.experts}", more, fewer, everything)
    if len(shallow) > 1:
        few, many = shallow[0], shallow[-1]
        claim = (
            f"from {few.experts} to {many.experts} experts, the largest languages gain more than"
        )
        add(f"{claim} the smallest", many, few, groups["high"], groups["low"])
    for deep, flat in itertools.product(first, first):
        if deep.experts and flat.experts == deep.experts and flat.layers < deep.layers:
            claim = (
                f"{deep.layers} layers are better than {flat.layers}, with {deep.experts} experts"
            )
            add(claim, deep, flat, everything)
            rows.append(_depth(deep, flat))
    if len(dense) > 1:
        claim = f"the deep dense model ({dense[-1].layers} layers) helps the smallest languages"
        add(f"{claim}, compared with {dense[0].layers} layers", dense[-1], dense[0], groups["low"])
        gain = difference(dense[-1], baselines, groups["low"])
        claim = "the deep dense model gains on the smallest languages, compared with the baselines"
        rows.append((claim, gain.text(), gain.verdict(), "-", "-"))
    return f"{table(rows)}\n{_caution(members, everything, len(rows) - 1)}\n"


def _depth(deep: Member, shallow: Member) -> tuple[str, ...]:
    claim = (
        f"{deep.layers} layers need fewer tokens than {shallow.layers} to the same cross-entropy"
    )
    ratio = token_ratio(deep.curves, shallow.curves)
    if math.isnan(ratio.mean):
        return claim, "-", "-", "-", "not decided"
    times, low, high = (math.exp(min(x, 99.0)) for x in (ratio.mean, ratio.low, ratio.high))
    fewer = Interval(-ratio.mean, -ratio.high, -ratio.low)
    text = f"{times:.2f} times the tokens ({low:.2f} to {high:.2f})"
    return claim, "-", "-", text, fewer.verdict()


def _caution(members: Sequence[Member], languages: Sequence[str], claims: int) -> str:
    text = (
        "The means over languages have 95 % intervals, which cover which languages and which strings "
        "were taken. They do not cover the seed: training again would move all languages a little, up or "
        "down. "
    )
    if claims > 1:
        text += f"There are {claims} claims, and one interval in twenty misses by chance. "
    for again, twin in itertools.product(members, members):
        if (twin.experts, twin.layers) == (again.experts, again.layers) and twin.seed < again.seed:
            text += (
                f"{again.name} is {twin.name} with another seed: "
                f"{difference(again, twin, languages).text()} BLEU, "
                f"{nats(again, twin, languages).text(3)} nats. A difference "
                "of this size between two models means nothing. "
            )
    return text.strip()


def table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    rule = ["---", *("---:" for _ in head[1:])]
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, rule, *body])
