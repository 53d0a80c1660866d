"""A trained model on its devices, ready to translate.

`Translator` translates token ids, and `TextTranslator` translates text with it. Sentences are sorted
by length and put into batches of a few fixed shapes. Each batch is one call of a compiled program: the
encoder, then flat beam search in one loop.
"""

import dataclasses
import functools
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from gshard_nmt.data.vocabulary import EOS
from gshard_nmt.decoding.sampling import random_words
from gshard_nmt.errors import UserError
from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run.arrays import step_functions, weight_specs
from gshard_nmt.run.checkpoint import Checkpoints
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.retention import Retention
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.divides import check_decode_rows
from gshard_nmt.settings.values import read_run_config
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpec, LoweredFunction, lower


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """A translation.

    Attributes:
      text: the detokenised translation.
      score: log-probability in nats, divided by the length norm.
    """

    text: str
    score: float


@dataclasses.dataclass(frozen=True)
class BatchShape:
    """The shape of a batch of sentences to translate.

    Attributes:
      source_length: L, tokens of a row, end of sentence included.
      max_steps: I, the number of search steps. A translation has at most this number of tokens.
    """

    source_length: int
    max_steps: int


def batch_shape(config: Config, source_length: int) -> BatchShape:
    """Returns the shape of the batches whose rows have `source_length` tokens, end included."""
    decode = config.decode
    steps = int(decode.length_ratio * source_length) + decode.length_margin
    return BatchShape(source_length, min(config.data.target_length, steps))


class Translator:
    """Translates token ids."""

    def __init__(
        self,
        config: Config,
        functions: StepFunctions,
        devices: runtime.Runtime,
        parameters: Mapping[str, object],
        nbest: int = 1,
    ) -> None:
        """Compiles nothing yet: each shape of batch is compiled when it first occurs.

        Args:
          config: the run, with the settings of the search.
          functions: the functions of the run, which know the model and the vocabulary sizes.
          devices: the devices to translate on.
          parameters: the weights, on the devices.
          nbest: number of translations of each sentence.
        """
        self._config = config
        self._functions = functions
        self._devices = devices
        self._nbest = nbest
        self._programs: dict[BatchShape, runtime.Program] = {}
        self.parameters = parameters

    @property
    def longest_source(self) -> int:
        """The largest number of tokens of a source that is translated whole, EOS included."""
        return max(self._config.decode.source_lengths)

    @property
    def longest_target(self) -> int:
        """The largest number of tokens of a translation, EOS included."""
        return batch_shape(self._config, self.longest_source).max_steps

    def translate_ids(
        self, sources: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]] | None = None
    ) -> list[list[tuple[list[int], float]]]:
        """Returns for each source its n-best translations, best first, as (target ids, score).

        A source has no translation if the weights have values that are not finite: then no hypothesis
        has a score.

        Args:
          sources: ids of each sentence, end of sentence included.
          prefixes: for each source, the ids that its translations begin with. They fit into
            `longest_target` tokens together with EOS. If a prefix ends with EOS, it is the only
            translation of its source. None means that no prefix has any ids.
        """
        prefixes = [()] * len(sources) if prefixes is None else prefixes
        translations: list[list[tuple[list[int], float]]] = [[] for _ in sources]
        needs = [(len(ids), _steps(start)) for ids, start in zip(sources, prefixes, strict=True)]
        for shape, indices in self._batches(needs):
            arrays = self._pad([(sources[i], prefixes[i]) for i in indices], shape)
            program = self._program(shape)
            placed = self._devices.put(arrays, program.signature.inputs[1])
            (hypotheses,) = program(self.parameters, placed)
            hypotheses = self._devices.fetch(hypotheses)
            ids, scores, lengths = (hypotheses[name] for name in ("ids", "scores", "lengths"))
            for row, index in enumerate(indices):
                translations[index] = [
                    (ids[row, n, : lengths[row, n] - 1].tolist(), float(scores[row, n]))
                    for n in range(ids.shape[1])
                    if lengths[row, n] > 0 and np.isfinite(scores[row, n])
                ]
                # The search gives the best first; sampling gives samples in the order of their numbers.
                translations[index].sort(key=lambda hypothesis: -hypothesis[1])
        return translations

    def score_ids(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[float]:
        """Returns the score of a given translation of each source.

        The same program that translates computes it. So a translation that this translator found gets
        the score that was reported with it. The score is NaN if the weights have values that are not
        finite.

        Args:
          sources: ids of each sentence, end of sentence included.
          targets: ids of each translation without EOS, at most `longest_target` - 1.
        """
        forced = self.translate_ids(sources, [[*ids, EOS] for ids in targets])
        return [nbest[0][1] if nbest else math.nan for nbest in forced]

    def lower(self, shape: BatchShape) -> LoweredFunction:
        """Lowers the search of one shape of batch: (weights, batch) -> (ids, scores, lengths).

        Raises:
          UserError: the rows of a batch do not divide over the mesh.
        """
        check_decode_rows(self._config)
        rows, mesh = self._config.decode.rows, self._devices.mesh
        tokens = ArraySpec((rows, shape.source_length), np.dtype(np.int32), "BL")
        batch = dict.fromkeys(("source_ids", "source_segments", "source_positions"), tokens)
        batch["max_lengths"] = ArraySpec((rows,), np.dtype(np.int32), "B")
        batch["prefix"] = ArraySpec((rows, shape.max_steps), np.dtype(np.int32), "BL")
        if self._config.decode.method == "sample":
            words = ArraySpec((rows,), np.dtype(np.uint32), "B")
            batch |= {"random0": words, "random1": words}
        letters = {"ids": "BKL", "scores": "BK", "lengths": "BK"}
        inputs = [weight_specs(self._functions), batch]
        return lower(self._search(shape), inputs, [letters], mesh)

    def _batches(self, needs: Sequence[tuple[int, int]]) -> Iterator[tuple[BatchShape, list[int]]]:
        """Yields a shape and the indices of its sentences for each batch.

        Sentences of similar length share a batch, because the search goes on until its longest
        translation has ended.

        Args:
          needs: the number of tokens of each sentence, and the search steps that it needs at least.
        """
        decode = self._config.decode
        allowed = sorted(decode.source_lengths)
        most_steps = {length: batch_shape(self._config, length).max_steps for length in allowed}
        by_length: dict[int, list[int]] = {}
        for index in sorted(range(len(needs)), key=lambda i: needs[i][0]):
            tokens, steps = needs[index]
            long_enough = [
                length for length in allowed if tokens <= length and steps <= most_steps[length]
            ]
            by_length.setdefault(long_enough[0] if long_enough else allowed[-1], []).append(index)
        for source_length, indices in by_length.items():
            shape = batch_shape(self._config, source_length)
            for start in range(0, len(indices), decode.rows):
                yield shape, indices[start : start + decode.rows]

    def _program(self, shape: BatchShape) -> runtime.Program:
        if shape not in self._programs:
            # The seed is in the batches, so all seeds share a program.
            decode = repr(dataclasses.replace(self._config.decode, seed=0))
            functions = repr(self._functions)
            key = json.dumps(["decode", functions, decode, dataclasses.astuple(shape), self._nbest])
            self._programs[shape] = self._devices.compile(key, lambda: self.lower(shape))
        return self._programs[shape]

    def _search(self, shape: BatchShape) -> Callable:
        """Returns the function to lower: from weights and a batch to the n-best of each row."""
        from gshard_nmt.decoding import beam_search, sampling
        from gshard_nmt.model import decoder_step
        from gshard_nmt.spmd.sharding import annotate

        decode, model = self._config.decode, self._functions.model
        samples = decode.method == "sample"
        search = beam_search.BeamSearch(
            beam=self._nbest if samples else decode.beam,
            max_steps=shape.max_steps,
            nbest=self._nbest,
            length_norm=decode.length_norm,
            alpha=decode.alpha,
            expansion=decode.expansion,
        )

        def translate(p, batch):
            batch = {
                name: annotate(array, "BL"[: array.shape.rank]) for name, array in batch.items()
            }
            cache = decoder_step.start(model, p, batch, search.beam, shape.max_steps)

            def next_token(ids, positions, mask, i, cache):
                del positions  # every hypothesis starts at step 0, so all positions are i
                return decoder_step.step(model, p, ids, mask, i, cache)

            rows = {
                "live": batch["source_segments"][:, 0] > 0,
                "max_lengths": batch["max_lengths"],
                "prefix": batch["prefix"],
            }
            if samples:
                drawing = sampling.Sampling(decode.temperature, decode.top_k, decode.top_p)
                words = (batch["random0"], batch["random1"])
                hypotheses = sampling.sample(next_token, cache, words, search, drawing, **rows)
            else:
                hypotheses = beam_search.flat_beam_search(
                    next_token, cache, decode.rows, search, **rows
                )
            return [
                {
                    "ids": hypotheses.ids,
                    "scores": hypotheses.scores,
                    "lengths": hypotheses.lengths,
                }
            ]

        return translate

    def _pad(
        self, sentences: Sequence[tuple[Sequence[int], Sequence[int]]], shape: BatchShape
    ) -> dict[str, np.ndarray]:
        """Returns a batch with one sentence, a source and a prefix of its translation, in each row.

        A source that is too long keeps its beginning and its end-of-sentence token.
        """
        decode, length = self._config.decode, shape.source_length
        ids = np.zeros((decode.rows, length), np.int32)
        segments = np.zeros((decode.rows, length), np.int32)
        limits = np.ones((decode.rows,), np.int32)
        prefixes = np.zeros((decode.rows, shape.max_steps), np.int32)
        random = np.zeros((2, decode.rows), np.uint32)
        for row, (source, prefix) in enumerate(sentences):
            fitting = source if len(source) <= length else [*source[: length - 1], source[-1]]
            ids[row, : len(fitting)] = fitting
            segments[row, : len(fitting)] = 1
            longest = int(decode.length_ratio * len(fitting)) + decode.length_margin
            limits[row] = min(shape.max_steps, max(longest, _steps(prefix)))
            prefixes[row, : len(prefix)] = prefix
            random[:, row] = random_words(source, decode.seed)
        positions = np.where(segments > 0, np.arange(length, dtype=np.int32), 0)
        batch = {
            "source_ids": ids,
            "source_segments": segments,
            "source_positions": positions.astype(np.int32),
            "max_lengths": limits,
            "prefix": prefixes,
        }
        if decode.method == "sample":
            batch |= {"random0": random[0], "random1": random[1]}
        return batch


def _steps(prefix: Sequence[int]) -> int:
    """Returns the number of search steps that a translation with this prefix needs at least."""
    return len(prefix) + (not prefix or prefix[-1] != EOS)


class TextTranslator:
    """Translates text between the languages that a run was trained on."""

    def __init__(
        self, run: RunFolder, translator: Translator, step: int, checkpoint: str = ""
    ) -> None:
        """Adds the vocabularies of a run to a translator of token ids.

        Args:
          run: the run folder.
          translator: translates token ids.
          step: the training step of its weights.
          checkpoint: the label of the checkpoint that the weights come from, see `Manifest.label`.
        """
        self._translator = translator
        self._source, self._target = run.vocabularies()
        self.step = step
        self.checkpoint = checkpoint

    def translate(
        self,
        lines: Sequence[str],
        source: str,
        target: str,
        chunk_size: int = 4096,
        prefixes: Sequence[str] | None = None,
        first_line: int = 1,
    ) -> Iterator[list[Hypothesis]]:
        """Yields the n-best translations of each line, best first. The lines keep their order.

        The translation of an empty line is empty, unless it has a prefix.

        Args:
          lines: source text.
          source, target: BCP 47 tags of a direction that the run was trained on.
          chunk_size: the number of lines that are sorted by length and translated together.
          prefixes: the text that the translations of each line begin with, "" for any beginning.
          first_line: the number of the first line, for error messages.

        Raises:
          UserError: a line has no translation, because the weights have values that are not finite. Or
            a prefix, or a line that has one, is too long.
        """
        starts = [""] * len(lines) if prefixes is None else prefixes
        for first in range(0, len(lines), chunk_size):
            chunk = lines[first : first + chunk_size]
            chunk_starts = starts[first : first + chunk_size]
            filled = [i for i, line in enumerate(chunk) if line.strip() or chunk_starts[i].strip()]
            sources = self._source.encode_source([chunk[i] for i in filled], source, target)
            forced = None
            if prefixes is not None:
                forced = self._target.encode([chunk_starts[i] for i in filled])
            for i, ids, start in zip(filled, sources, forced or [], strict=False):
                if start:
                    self._check_lengths(first_line + first + i, "prefix", ids, start)
            translations = self._translator.translate_ids(sources, forced)
            results = [[Hypothesis("", 0.0)] for _ in chunk]
            for i, nbest in zip(filled, translations, strict=True):
                if not nbest:
                    raise self._not_finite(chunk[i])
                texts = self._target.decode([ids for ids, _ in nbest])
                scores = [score for _, score in nbest]
                results[i] = [Hypothesis(*pair) for pair in zip(texts, scores, strict=True)]
            yield from results

    def score(
        self, pairs: Iterable[tuple[str, str]], source: str, target: str, chunk_size: int = 4096
    ) -> Iterator[float]:
        """Yields the score of each given translation, in order.

        It is the score that `translate` reports for the same ids with the same settings. An empty
        translation of an empty line has score 0, as in `translate`.

        Args:
          pairs: a source line and its translation.
          source, target: BCP 47 tags of a direction that the run was trained on.
          chunk_size: the number of pairs that are sorted by length and scored together.

        Raises:
          UserError: a line or its translation is too long, or the weights have values that are not
            finite.
        """
        remaining, first = iter(pairs), 1
        while chunk := list(itertools.islice(remaining, chunk_size)):
            filled = [i for i, (line, text) in enumerate(chunk) if line.strip() or text.strip()]
            sources = self._source.encode_source([chunk[i][0] for i in filled], source, target)
            targets = self._target.encode([chunk[i][1] for i in filled])
            for i, ids, translation in zip(filled, sources, targets, strict=True):
                self._check_lengths(first + i, "translation", ids, translation)
            scores = [0.0] * len(chunk)
            values = self._translator.score_ids(sources, targets)
            for i, value in zip(filled, values, strict=True):
                if math.isnan(value):
                    raise self._not_finite(chunk[i][0])
                scores[i] = value
            yield from scores
            first += len(chunk)

    def _check_lengths(
        self, number: int, forced: str, source: Sequence[int], target: Sequence[int]
    ) -> None:
        """Raises UserError if a line or the text that is forced on it has too many tokens.

        Args:
          number: the number of the line, from 1.
          forced: what the text is: "translation" or "prefix".
          source: ids of the line, EOS included.
          target: ids of the text without EOS.
        """
        longest_source = self._translator.longest_source
        longest_target = self._translator.longest_target
        if len(source) > longest_source:
            raise UserError(
                f"line {number} has {len(source)} tokens; a line with a given {forced} can have at most "
                f"{longest_source} (Decode.source_lengths). Split the line, or leave it out.",
                ["Decode.source_lengths"],
            )
        if len(target) >= longest_target:
            raise UserError(
                f"line {number}: the {forced} has {len(target)} tokens; this model can write at most "
                f"{longest_target - 1}. Shorten the {forced}, or leave the line out.",
            )

    def _not_finite(self, line: str) -> UserError:
        return UserError(
            f"the checkpoint of step {self.step} has no translation for {line[:80]!r}: "
            "its weights have values that are not finite. Use another checkpoint of the run."
        )


def load_translator(config: Config, run: RunFolder, nbest: int = 1) -> TextTranslator:
    """Loads the best checkpoint of a run, or the last one if there is no best.

    Nothing is written to the run folder. A checkpoint that is damaged is named on stderr, and the next
    best sound one is used.

    Args:
      config: the run's config; its search settings may differ from those in the run folder.
      run: the run folder.
      nbest: number of translations of each line.

    Raises:
      UserError: the folder is not a run folder, or has no sound checkpoint.
    """
    functions = step_functions(config, run.data)
    # Reading a checkpoint starts jax, so the devices must be set up before.
    devices = runtime.start(config.mesh, run.programs_to_decode)
    checkpoints = Checkpoints(run.checkpoints, Retention.of(config.train), run.identity())
    specs = devices.abstract(weight_specs(functions))
    restored = checkpoints.restore_best({"parameters": specs})
    manifest = restored.manifest
    for problem in restored.passed_over:
        sys.stderr.write(f"{problem}. Using the checkpoint of step {manifest.step} instead.\n")
    weights = restored.groups["parameters"]
    translator = Translator(config, functions, devices, weights, nbest)
    return TextTranslator(run, translator, manifest.step, manifest.label)


def translate_run(
    workdir: Path, source: str, target: str, lines: Sequence[str], trust_programs: bool = False
) -> tuple[list[str], str, str]:
    """Translates lines with the model of a run folder. `RunFolder` explains `trust_programs`.

    Returns:
      The best translation of each line, a text that names the training step and the search, and the
      label of the checkpoint.
    """
    translator, search = _cached_translator(workdir, trust_programs)
    best = [nbest[0].text for nbest in translator.translate(lines, source, target)]
    return best, f"step {translator.step}, {search}", translator.checkpoint


@functools.lru_cache(maxsize=2)
def _cached_translator(workdir: Path, trust_programs: bool) -> tuple[TextTranslator, str]:
    """Loads the translator of a run folder. Two stay in memory, for a run and its baseline."""
    run = RunFolder(workdir, trust_programs)
    config = read_run_config(run.config)
    return load_translator(config, run), config.decode.settings()
