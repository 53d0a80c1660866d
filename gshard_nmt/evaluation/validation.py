"""Validation: scores a model on dev text while it trains, and keeps the best checkpoint."""

import math
from collections.abc import Mapping
from typing import Any

from gshard_nmt.data.batches import dev_batches, dev_examples
from gshard_nmt.data.shards import PreparedData
from gshard_nmt.decoding.translator import Translator
from gshard_nmt.evaluation import bleu
from gshard_nmt.run.arrays import weights_of
from gshard_nmt.run.checkpoint import BEST, Checkpoints
from gshard_nmt.run.compiled_steps import CompiledSteps
from gshard_nmt.run.counters import RunCounters
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.progress import MetricsLog


class Validation:
    """Scores each language on dev text, and saves the weights with the best score so far.

    The score is dev BLEU if Train.bleu_sentences is set, otherwise minus `dev_nll`.
    """

    def __init__(
        self, run: RunFolder, programs: CompiledSteps, data: PreparedData, checkpoints: Checkpoints
    ) -> None:
        """Reads the score to beat from the best checkpoint, if there is one. Compiles nothing yet."""
        self._run, self._programs, self._data = run, programs, data
        self._checkpoints = checkpoints
        self._best_score = -math.inf
        if checkpoints.latest(BEST) is not None:
            self._best_score = checkpoints.metadata(BEST)["score"]
        self._translator: Translator | None = None

    def run(self, counters: RunCounters, state: Mapping[str, Any], log: MetricsLog) -> str:
        """Scores the weights of a state, logs the scores, and saves the weights if they are the best.

        Returns:
          A line to show.
        """
        sentences = self._programs.config.train.bleu_sentences
        weights = weights_of(state)
        nll = self._nll(weights)
        values = {f"dev_nll/{language}": value for language, value in nll.items()}
        values["dev_nll"] = mean_nll = _mean(nll)
        score, line = -mean_nll, f"step {counters.step}: dev nll {mean_nll:.3f}"
        if sentences:
            scores = self._bleu(weights)
            values |= {f"dev_bleu/{language}": value for language, value in scores.items()}
            values["dev_bleu"] = score = _mean(scores)
            line += f", dev BLEU {score:.1f} on {sentences} sentences a language"
        log.write(counters.step, values)
        if score > self._best_score:
            self._best_score = score
            metadata = {"step": counters.step, "score": score}
            self._checkpoints.save(BEST, counters.step, {"parameters": weights}, metadata)
        return line

    def _languages(self) -> list[str]:
        return self._data.languages(self._programs.config.data)

    def _nll(self, weights: Mapping[str, Any]) -> dict[str, float]:
        """Returns nats per target token, for each language that has dev text."""
        config, nll = self._programs.config, {}
        for language in self._languages():
            total = tokens = 0.0
            batches = dev_batches(self._data, config.data, language, config.train.dev_batches)
            for batch in batches:
                placed = self._programs.devices.put(batch, self._programs.batch_specs)
                (sums,) = self._programs.eval_step(weights, placed)
                total, tokens = total + float(sums["nll_sum"]), tokens + float(sums["tokens"])
            if tokens:
                nll[language] = total / tokens
        return nll

    def _bleu(self, weights: Mapping[str, Any]) -> dict[str, float]:
        """Returns BLEU on the first dev sentences of each language. All are decoded together."""
        config = self._programs.config
        if self._translator is None:
            self._translator = Translator(
                config, self._programs.functions, self._programs.devices, weights
            )
        self._translator.parameters = weights
        _, vocabulary = self._run.vocabularies()
        examples = {
            language: dev_examples(self._data, config.data, language, config.train.bleu_sentences)
            for language in self._languages()
        }
        sources = [pair.source.tolist() for pairs in examples.values() for pair in pairs]
        translations = iter(self._translator.translate_ids(sources))
        scores = {}
        for language, pairs in examples.items():
            if pairs:
                # A model with values that are not finite has no translation; it is scored as "".
                best = [next(translations)[:1] for _ in pairs]
                hypotheses = vocabulary.decode([nbest[0][0] if nbest else [] for nbest in best])
                references = vocabulary.decode([pair.target.tolist() for pair in pairs])
                scores[language] = bleu.score(hypotheses, references).bleu
        return scores


def _mean(by_language: Mapping[str, float]) -> float:
    return sum(by_language.values()) / max(len(by_language), 1)
