"""Evaluation on dev text while a run trains: likelihood, and BLEU of decoded sentences."""

import math
from typing import TYPE_CHECKING

from gshard_nmt.data.batches import dev_batches, dev_examples
from gshard_nmt.data.shards import PreparedData
from gshard_nmt.decode import Translator
from gshard_nmt.evaluation import bleu
from gshard_nmt.run.checkpoint import BEST, Checkpoints
from gshard_nmt.run.compiled_steps import Programs
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.progress import Ledger, MetricsLog

if TYPE_CHECKING:
    from collections.abc import Mapping


class DevEvaluation:
    """Scores each language on dev, and keeps the best checkpoint."""

    def __init__(
        self, run: RunFolder, programs: Programs, data: PreparedData, checkpoints: Checkpoints
    ) -> None:
        """Compiles nothing yet; reads the score to beat from the best checkpoint there is."""
        self._run, self._programs, self._data = run, programs, data
        self._checkpoints = checkpoints
        self._best = -math.inf
        if checkpoints.latest(BEST) is not None:
            self._best = checkpoints.metadata(BEST)["score"]
        self._translator: Translator | None = None

    def run(self, ledger: Ledger, state: "Mapping", log: MetricsLog) -> str:
        """Evaluates a state, logs it, saves it where it is the best so far; returns a line to show."""
        config = self._programs.config
        parameters = self._programs.parameters_of(dict(state))
        nll = self._nll(parameters)
        values = {f"dev_nll/{language}": value for language, value in nll.items()}
        values["dev_nll"] = score = sum(nll.values()) / max(len(nll), 1)
        shown = f"step {ledger.step}: dev nll {score:.3f}"
        score = -score
        if config.train.bleu_sentences:
            scores = self._bleu(parameters)
            values |= {f"dev_bleu/{language}": value for language, value in scores.items()}
            values["dev_bleu"] = score = sum(scores.values()) / max(len(scores), 1)
            shown += f", dev BLEU {score:.1f} on {config.train.bleu_sentences} sentences a language"
        log.write(ledger.step, values)
        if score > self._best:
            self._best = score
            metadata = {"step": ledger.step, "score": score}
            self._checkpoints.save(BEST, ledger.step, {"parameters": parameters}, metadata)
        return shown

    def _languages(self) -> list[str]:
        return self._data.languages(self._programs.config.data)

    def _nll(self, parameters: dict) -> dict[str, float]:
        """Nats a target token of each language that has dev text."""
        config, result = self._programs.config, {}
        for language in self._languages():
            total = tokens = 0.0
            batches = dev_batches(self._data, config.data, language, config.train.dev_batches)
            for batch in batches:
                placed = self._programs.devices.put(batch, self._programs.batch_specs)
                (sums,) = self._programs.evaluate(parameters, placed)
                total, tokens = total + float(sums["nll_sum"]), tokens + float(sums["tokens"])
            if tokens:
                result[language] = total / tokens
        return result

    def _bleu(self, parameters: dict) -> dict[str, float]:
        """BLEU of the first dev sentences of each language, decoded in one go."""
        config = self._programs.config
        if self._translator is None:
            self._translator = Translator(
                config, self._programs.steps, self._programs.devices, parameters
            )
        self._translator.parameters = parameters
        _, target_vocabulary = self._run.vocabularies()
        examples = {
            language: dev_examples(self._data, config.data, language, config.train.bleu_sentences)
            for language in self._languages()
        }
        sources = [one.source.tolist() for found in examples.values() for one in found]
        found = iter(self._translator.translate_ids(sources))
        result = {}
        for language, pairs in examples.items():
            if pairs:
                hypotheses = target_vocabulary.decode([next(found)[0][0] for _ in pairs])
                references = target_vocabulary.decode([one.target.tolist() for one in pairs])
                result[language] = bleu.score(hypotheses, references).bleu
        return result
