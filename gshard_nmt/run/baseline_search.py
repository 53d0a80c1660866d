"""The search for the best bilingual baseline of a language: model sizes, dropout, vocabulary.

GShard section 4.2 (footnote 9) tunes its baselines "in a Transformer-Big or Transformer-Base layout, for
high or low-resourced languages respectively", and tunes dropout. The paper names no limit between the
two. Ours are `SearchSpace.sizes`, and below Base we have a third size for the least text.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from gshard_nmt.errors import UserError, did_you_mean
from gshard_nmt.settings.config import Config

AS_CONFIG = "config"
"""The name of the size that the config has."""


def _shape(
    layers: int, model_dim: int, hidden_dim: int, heads: int, head_dim: int
) -> dict[str, int]:
    """Returns the settings of `Model` for a dense model with as many encoder as decoder layers."""
    return {
        "encoder_layers": layers,
        "decoder_layers": layers,
        "model_dim": model_dim,
        "hidden_dim": hidden_dim,
        "heads": heads,
        "head_dim": head_dim,
        "experts": 0,
    }


SIZES: Mapping[str, Mapping[str, int]] = {
    "small": _shape(2, 128, 512, 4, 32),
    "base": _shape(6, 512, 2048, 8, 64),
    "big": _shape(6, 1024, 8192, 16, 64),
}
"""The settings of `Model` of each size. "base" is Transformer-Base (Vaswani et al. 2017). "big" has the
H of GShard's own models, as in configs/experiments/bilingual_big.gin."""

NEAR = 2.0
"""A language tries the next size too, if its training pairs are within this factor of a limit."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A bilingual model that the search may train.

    Attributes:
      size: a key of SIZES, or AS_CONFIG.
      dropout: the rate of all three dropouts of the model; None leaves those of the config.
      vocabulary: "shared" if the vocabularies were learned from several languages, "own" if from this
        language and English alone.
    """

    size: str
    dropout: float | None
    vocabulary: str

    @property
    def name(self) -> str:
        """A name for files and messages, such as "small-dropout0.1-shared"."""
        dropout = "" if self.dropout is None else f"-dropout{self.dropout:g}"
        return f"{self.size}{dropout}-{self.vocabulary}"

    def applied_to(self, config: Config) -> Config:
        """Returns the config with the size and the dropout of this candidate."""
        model: dict[str, object] = {}
        if self.size != AS_CONFIG:
            model |= SIZES[self.size]
        if self.dropout is not None:
            names = ("input_dropout", "residual_dropout", "attention_dropout")
            model |= dict.fromkeys(names, self.dropout)
        return config.replace(model=model)


@dataclasses.dataclass(frozen=True)
class SearchSpace:
    """What the search may try.

    Attributes:
      sizes: (name of a size, the number of training pairs from which a language gets it). The numbers
        rise, and the first is 0.
      dropouts: the rates of dropout to try; empty leaves those of the config.
    """

    sizes: Sequence[tuple[str, int]] = (("small", 0), ("base", 100_000), ("big", 2_000_000))
    dropouts: Sequence[float] = (0.1, 0.3)

    @classmethod
    def parse(cls, sizes: str, dropouts: str) -> "SearchSpace":
        """Reads the texts of --sizes and --dropouts, such as "small:0,base:100000" and "0.1,0.3".

        Raises:
          UserError: a text has another form, or a value is out of its range.
        """
        return cls(_parse_sizes(sizes), _parse_dropouts(dropouts))

    def size_of(self, train_pairs: int) -> str:
        """Returns the size for a language with this number of training pairs."""
        return next(name for name, least in reversed(self.sizes) if train_pairs >= least)

    def next_size(self, train_pairs: int) -> str | None:
        """Returns the size on the other side of a limit that is near; None if no limit is near."""
        for (below, _), (above, limit) in zip(self.sizes, self.sizes[1:], strict=False):
            if limit / NEAR <= train_pairs < limit:
                return above
            if limit <= train_pairs < limit * NEAR:
                return below
        return None

    def proposal(
        self,
        train_pairs: int,
        vocabularies: Sequence[str],
        scores: Mapping[Candidate, float | None],
    ) -> Candidate | None:
        """Returns the next candidate to train; None if the search is over.

        First it tries each dropout with the size of the rule. Then it takes the best dropout, and tries
        the next size if the limit is near. Last it tries the second vocabulary with the best of these.

        Args:
          train_pairs: the number of training pairs of the language.
          vocabularies: the vocabularies that there are, the first one first.
          scores: dev BLEU of each candidate that has been trained; None if it has no score.
        """
        size, first = self.size_of(train_pairs), vocabularies[0]
        planned = [Candidate(size, dropout, first) for dropout in self.dropouts or (None,)]
        if missing := _first_missing(planned, scores):
            return missing
        if other := self.next_size(train_pairs):
            planned.append(dataclasses.replace(best(planned, scores), size=other))
        if missing := _first_missing(planned, scores):
            return missing
        winner = best(planned, scores)
        planned += [dataclasses.replace(winner, vocabulary=v) for v in vocabularies[1:]]
        return _first_missing(planned, scores)

    def length(self, train_pairs: int, vocabularies: Sequence[str]) -> int:
        """Returns the number of candidates of a search."""
        has_next = self.next_size(train_pairs) is not None
        return max(len(self.dropouts), 1) + has_next + len(vocabularies) - 1


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user asks of the baselines.

    Attributes:
      until: "converged" or "budget".
      space: what the search may try.
      languages: the languages to train; empty means all of the multilingual run.
      shard: (i, n) trains the i-th part of the languages out of n, from 1.
      max_tokens: the tokens after which a model ends; 0 means no limit. It applies to each candidate.
      max_minutes: the minutes of training after which a model ends; 0 means no limit.
      own_data: a folder of prepared data DIR/LANGUAGE, with vocabularies of this language alone.
    """

    until: str = "converged"
    space: SearchSpace = dataclasses.field(default_factory=SearchSpace)
    languages: Sequence[str] = ()
    shard: tuple[int, int] = (1, 1)
    max_tokens: int = 0
    max_minutes: float = 0.0
    own_data: Path | None = None

    @property
    def searches(self) -> bool:
        """Whether each language has a search."""
        return self.until == "converged"

    def languages_of(self, tokens: Mapping[str, int]) -> list[str]:
        """Returns the languages to train, the one with the most tokens first.

        Args:
          tokens: the tokens that the multilingual run saw of each of its languages.

        Raises:
          UserError: the multilingual run does not have a language.
        """
        for language in self.languages:
            if language not in tokens:
                raise UserError(
                    f"--languages: the multilingual run has no language {language!r}"
                    f"{did_you_mean(language, tokens)} It has {', '.join(sorted(tokens))}; choose some "
                    "of these."
                )
        chosen = self.languages or tokens
        ordered = sorted(chosen, key=lambda language: (-tokens[language], language))
        part, parts = self.shard
        return ordered[part - 1 :: parts]


def best(candidates: Sequence[Candidate], scores: Mapping[Candidate, float | None]) -> Candidate:
    """Returns the candidate with the highest dev BLEU; the first of those that are equal.

    A candidate without a score comes after all others.
    """

    def rank(candidate: Candidate) -> float:
        score = scores[candidate]
        return -1.0 if score is None else score

    return max(candidates, key=rank)


def _first_missing(
    candidates: Sequence[Candidate], scores: Mapping[Candidate, float | None]
) -> Candidate | None:
    return next((candidate for candidate in candidates if candidate not in scores), None)


def _parse_sizes(text: str) -> tuple[tuple[str, int], ...]:
    sizes = []
    for entry in text.split(","):
        name, _, least = entry.strip().partition(":")
        names = (*SIZES, AS_CONFIG)
        if name not in names:
            raise UserError(
                f"--sizes {text}: there is no size {name!r}{did_you_mean(name, names)} The sizes are "
                f"{', '.join(names)}; choose some of these."
            )
        if least and not least.isdecimal():
            raise UserError(
                f"--sizes {text}: {least!r} is not a number of training pairs. {_SIZES}"
            )
        sizes.append((name, int(least or 0)))
    limits = [limit for _, limit in sizes]
    if limits[0] or limits != sorted(set(limits)) or len({name for name, _ in sizes}) < len(sizes):
        raise UserError(
            f"--sizes {text}: the numbers of training pairs must begin with 0 and rise, and each size "
            f"has one number. {_SIZES}"
        )
    return tuple(sizes)


_SIZES = "Give the sizes as in small:0,base:100000,big:2000000, or one size for all languages."


def _parse_dropouts(text: str) -> tuple[float, ...]:
    try:
        rates = tuple(float(entry) for entry in text.split(",")) if text.strip() else ()
    except ValueError:
        rates = (-1.0,)
    if not all(0 <= rate < 1 for rate in rates) or len(set(rates)) < len(rates):
        raise UserError(
            f"--dropouts {text}: the rates must be different numbers from 0 to below 1. Give them as in "
            "0.1,0.3."
        )
    return rates
