"""Validation: scores a model on dev text while it trains."""

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gshard_nmt.data.batching.batches import dev_batches, dev_examples, dev_pairs
from gshard_nmt.data.sets.examples import Example
from gshard_nmt.data.sets.manifest import PreparedPair
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.data.text.vocabulary import Vocabulary
from gshard_nmt.decoding.translator import Translator, restrictions
from gshard_nmt.evaluation import metrics
from gshard_nmt.run.arrays import weights_to_decode
from gshard_nmt.run.checkpoint.manifest import Scores
from gshard_nmt.run.compiled_steps import CompiledSteps
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.training_state import RunCounters
from gshard_nmt.settings.config import Config
from gshard_nmt.spmd.program import Program


class Validation:
    """Scores each language on dev text."""

    def __init__(
        self,
        run: RunFolder,
        programs: CompiledSteps,
        data: PreparedData,
        stoppable: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Compiles nothing yet. `stoppable` makes the block in which a signal may stop the devices."""
        self._stoppable = stoppable
        self._run, self._programs, self._data = run, programs, data
        self._translator: Translator | None = None

    @property
    def warning(self) -> str:
        """The warning to show before training; "" if there is none."""
        config = self._programs.config
        pairs = self._data.pairs_of(config.data)
        if not config.train.dev_every or any(pair.splits["dev"].examples for pair in pairs):
            return ""
        return (
            "the prepared data has no dev text, so there are no scores and no best checkpoint; decoding "
            "will use the last one"
        )

    def run(
        self, counters: RunCounters, state: Mapping[str, Any]
    ) -> tuple[str, Scores, dict[str, float]]:
        """Scores the weights of a state, or their average.

        Returns a line to show, the scores, and the values for the log.
        """
        config = self._programs.config.train
        values = self._scored(weights_to_decode(state))
        if not values:
            text = f"step {counters.step}: no dev text fits into the rows, so no scores"
            return text, Scores(), {}
        line = f"step {counters.step}: dev nll {values['dev_nll']:.3f}"
        if config.bleu_sentences:
            number = config.bleu_sentences
            line += f", dev BLEU {values['dev_bleu']:.1f} on {number} sentences a direction"
        if config.ema:
            line += " (Train.ema)"
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        return line, Scores(finite, self._settings()), values

    def _scored(self, weights: Mapping[str, Any]) -> dict[str, float]:
        """Returns the scores of weights, none without dev text."""
        translator, outputs = None, []
        with self._stoppable():
            if self._programs.config.train.bleu_sentences:
                translator = self._translator = self._translator or self._new_translator(weights)
                translator.parameters = weights
            nll = self._nll(weights)
            if translator and nll:
                outputs = self._dev_text.translated(translator)
        values = by_language("dev_nll", nll) if nll else {}
        return values | by_language("dev_bleu", bleu_of_languages(outputs)) if outputs else values

    def _settings(self) -> dict[str, Any]:
        """Returns the settings that scores depend on. Scores with other settings are not compared."""
        train, decode = self._programs.config.train, self._programs.config.decode
        settings = {name: getattr(train, name) for name in ("dev_batches", "bleu_sentences")}
        if train.bleu_sentences:
            lengths = ("length_norm", "alpha", "length_ratio", "length_margin")
            search = ("beam", "expansion", "precision", *lengths)
            settings |= {name: getattr(decode, name) for name in search}
            settings["source_lengths"] = list(decode.source_lengths)
        return settings

    def _nll(self, weights: Mapping[str, Any]) -> dict[str, float]:
        """Returns nats per target token, for each language that has dev text."""
        config, nll = self._programs.config, {}
        for language in self._data.languages(config.data):
            total = tokens = 0.0
            batches = dev_batches(self._data, config.data, language, config.train.dev_batches)
            for batch in batches:
                placed = self._programs.devices.put(batch, self._programs.batch_specs)
                (sums,) = self._eval_step(weights, placed)
                total, tokens = total + float(sums["nll_sum"]), tokens + float(sums["tokens"])
            if tokens:
                nll[language] = total / tokens
        return nll

    @functools.cached_property
    def _eval_step(self) -> Program:
        """(weights, batch) -> (nll_sum, tokens)."""

        def compile_search() -> None:
            if self._translator is not None:
                self._translator.compile(*self._dev_text.requests())

        # The programs that translate are compiled while XLA compiles this one.
        return self._programs.compile_eval_step(meanwhile=compile_search)

    def _new_translator(self, weights: Mapping[str, Any]) -> Translator:
        # A score of random samples would choose the best checkpoint by chance.
        config = self._programs.config.replace(decode={"method": "beam"})
        functions, devices = self._programs.functions, self._programs.devices
        return Translator(config, functions, devices, weights, **restrictions(self._run))

    @functools.cached_property
    def _dev_text(self) -> "DevText":
        config = self._programs.config
        _, vocabulary = self._run.vocabularies()
        return DevText.read(vocabulary, self._data, config, self._data.languages(config.data))


@dataclasses.dataclass(frozen=True)
class DevOutput:
    """The translations and references of the dev text of a direction, such as "fr-en"."""

    direction: str
    language: str
    target: str
    hypotheses: list[str]
    references: list[str]


@dataclasses.dataclass(frozen=True)
class DevText:
    """The first dev sentences of some directions, and the vocabulary of the target."""

    vocabulary: Vocabulary
    parts: Sequence[tuple[PreparedPair, Sequence[Example]]]

    @classmethod
    def read(
        cls, vocabulary: Vocabulary, data: PreparedData, config: Config, languages: Sequence[str]
    ) -> "DevText":
        pairs = [pair for name in languages for pair in dev_pairs(data, config.data, name)]
        limit = config.train.bleu_sentences
        return cls(vocabulary, [(pair, dev_examples(data, pair, limit)) for pair in pairs])

    def translated(self, translator: Translator) -> list[DevOutput]:
        translations = iter(translator.translate_ids(*self.requests()))
        outputs = []
        for pair, examples in self.parts:
            # If the model has values that are not finite, it gives no translation; we score "".
            best = [next(translations)[:1] for _ in examples]
            hypotheses = self.vocabulary.decode([nbest[0][0] if nbest else [] for nbest in best])
            references = self.vocabulary.decode([example.target.tolist() for example in examples])
            outputs.append(
                DevOutput(pair.folder, pair.language, pair.target, hypotheses, references)
            )
        return outputs

    def requests(self) -> tuple[list[list[int]], list[list[int]]]:
        """Returns the ids of each source, and those that its translation begins with."""
        sources = [example.source.tolist() for _, examples in self.parts for example in examples]
        first = self.vocabulary.first
        prefixes = [first(pair.target) for pair, examples in self.parts for _ in examples]
        return sources, prefixes


def bleu_of_languages(outputs: Sequence[DevOutput]) -> dict[str, float]:
    """Returns BLEU of each language: the mean of its directions."""
    scores: dict[str, list[float]] = {}
    for output in outputs:
        score = metrics.bleu(output.hypotheses, output.references, output.target)
        scores.setdefault(output.language, []).append(score)
    return {language: statistics.fmean(values) for language, values in scores.items()}


def by_language(metric: str, values: Mapping[str, float]) -> dict[str, float]:
    """Returns the scores of languages as `metric/LANGUAGE`, and their mean as `metric`."""
    named = {f"{metric}/{language}": value for language, value in values.items()}
    return named | {metric: sum(values.values()) / max(len(values), 1)}
