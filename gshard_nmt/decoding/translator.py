"""A trained model on its devices, ready to translate.

`Translator` translates token ids, and `TextTranslator` translates text with it. Sentences are sorted
by length and put into batches of a few fixed shapes. Each batch is one call of a compiled program: the
encoder, then flat beam search in one loop.
"""

import copy
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from gshard_nmt.data.vocabulary import EOS
from gshard_nmt.decoding import beam_search, fitting
from gshard_nmt.decoding.calls import follow, leading
from gshard_nmt.decoding.pieces import Translation, join, separator, split
from gshard_nmt.decoding.weights import Chosen, load_weights
from gshard_nmt.errors import UserError
from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run.arrays import step_functions, weight_specs
from gshard_nmt.run.checkpoint import Checkpoints
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.retention import Retention
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.divides import check_decode_rows
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpec, LoweredFunction, lower
from gshard_nmt.spmd.processes import ALONE, Processes


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """A translation.

    Attributes:
      text: the detokenised translation. It has no character that ends a line or a column.
      score: log-probability in nats, divided by the length norm.
      pieces: the number of pieces that the source was translated in; above 1 if it was too long.
    """

    text: str
    score: float
    pieces: int = 1


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
        """The largest number of source tokens that is translated whole, end of sentence included."""
        return max(self._config.decode.source_lengths)

    def length_norms(self, longest: int) -> np.ndarray:
        """Returns the divisor of scores for each number of tokens from 0 to `longest`: float32[n + 1]."""
        decode = self._config.decode
        search = beam_search.BeamSearch(
            max_steps=longest, length_norm=decode.length_norm, alpha=decode.alpha
        )
        return search.norms()

    def translate_ids(
        self, sources: Sequence[Sequence[int]]
    ) -> list[list[tuple[list[int], float]]]:
        """Returns for each source its n-best translations, best first, as (target ids, score).

        A source has no translation if the weights have values that are not finite: then no hypothesis
        has a score.

        Args:
          sources: ids of each sentence, end of sentence included.
        """
        translations: list[list[tuple[list[int], float]]] = [[] for _ in sources]
        for shape, indices in self._batches([len(ids) for ids in sources]):
            arrays = self._pad([sources[i] for i in indices], shape)
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
        return translations

    def warm_up(self) -> None:
        """Compiles the program of each shape of batch, and runs it once."""
        for length in self._config.decode.source_lengths:
            self.translate_ids([[EOS] * length])

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
        letters = {"ids": "BKL", "scores": "BK", "lengths": "BK"}
        inputs = [weight_specs(self._functions), batch]
        return lower(self.search(shape), inputs, [letters], mesh)

    def _batches(self, lengths: Sequence[int]) -> Iterator[tuple[BatchShape, list[int]]]:
        """Yields a shape and the indices of its sentences for each batch.

        Sentences of similar length share a batch, because the search goes on until its longest
        translation has ended.
        """
        decode = self._config.decode
        allowed = sorted(decode.source_lengths)
        by_length: dict[int, list[int]] = {}
        for index in sorted(range(len(lengths)), key=lambda i: lengths[i]):
            long_enough = [length for length in allowed if lengths[index] <= length]
            by_length.setdefault(long_enough[0] if long_enough else allowed[-1], []).append(index)
        for source_length, indices in by_length.items():
            shape = batch_shape(self._config, source_length)
            for start in range(0, len(indices), decode.rows):
                yield shape, indices[start : start + decode.rows]

    def _program(self, shape: BatchShape) -> runtime.Program:
        if shape not in self._programs:
            decode, functions = repr(self._config.decode), repr(self._functions)
            key = json.dumps(["decode", functions, decode, dataclasses.astuple(shape), self._nbest])
            self._programs[shape] = self._devices.compile(key, lambda: self.lower(shape))
        return self._programs[shape]

    def search(self, shape: BatchShape, rows: int | None = None) -> Callable:
        """Returns the function to lower: from weights and a batch to the n-best of each row.

        Args:
          shape: the shape of the batch.
          rows: B; None means `Decode.rows`.
        """
        from gshard_nmt.model import decoder_step, decoding_weights
        from gshard_nmt.spmd.sharding import annotate

        decode, model = self._config.decode, self._functions.model
        search = beam_search.BeamSearch(
            beam=decode.beam,
            max_steps=shape.max_steps,
            nbest=self._nbest,
            length_norm=decode.length_norm,
            alpha=decode.alpha,
        )

        def translate(p, batch):
            batch = {
                name: annotate(array, "BL"[: array.shape.rank]) for name, array in batch.items()
            }
            p = decoding_weights.prepare(p, decode.precision)
            cache = decoder_step.start(model, p, batch, decode.beam, shape.max_steps)

            def next_token(ids, positions, mask, i, cache):
                del positions  # every hypothesis starts at step 0, so all positions are i
                return decoder_step.step(model, p, ids, mask, i, cache)

            hypotheses = beam_search.flat_beam_search(
                next_token,
                cache,
                rows or decode.rows,
                search,
                live=batch["source_segments"][:, 0] > 0,
                max_lengths=batch["max_lengths"],
            )
            return [
                {
                    "ids": hypotheses.ids,
                    "scores": hypotheses.scores,
                    "lengths": hypotheses.lengths,
                }
            ]

        return translate

    def _pad(self, sources: Sequence[Sequence[int]], shape: BatchShape) -> dict[str, np.ndarray]:
        """Returns a batch with one sentence in each row.

        A sentence that is too long keeps its beginning and its end-of-sentence token.
        """
        decode, length = self._config.decode, shape.source_length
        ids = np.zeros((decode.rows, length), np.int32)
        segments = np.zeros((decode.rows, length), np.int32)
        limits = np.ones((decode.rows,), np.int32)
        for row, source in enumerate(sources):
            fitting = source if len(source) <= length else [*source[: length - 1], source[-1]]
            ids[row, : len(fitting)] = fitting
            segments[row, : len(fitting)] = 1
            longest = int(decode.length_ratio * len(fitting)) + decode.length_margin
            limits[row] = min(shape.max_steps, longest)
        positions = np.where(segments > 0, np.arange(length, dtype=np.int32), 0)
        return {
            "source_ids": ids,
            "source_segments": segments,
            "source_positions": positions.astype(np.int32),
            "max_lengths": limits,
        }


_TOGETHER = ("translate_ids", "score_ids")
"""The methods of a translator of ids that all processes call together: they run programs."""


class TextTranslator:
    """Translates text between the languages that a run was trained on."""

    def __init__(
        self,
        run: RunFolder,
        translator: Translator,
        step: int,
        checkpoint: str = "",
        origin: str = "",
        processes: Processes = ALONE,
    ) -> None:
        """Adds the vocabularies of a run to a translator of token ids.

        Args:
          run: the run folder.
          translator: translates token ids.
          step: the training step of its weights; of an average, the newest one.
          checkpoint: the label of the weights, see `weights.Loaded`.
          origin: the weights in words; "" gives "step 500" or the like.
          processes: the processes that decode together.
        """
        self._processes = processes
        self._translator = translator
        self._source, self._target = run.vocabularies()
        self.step = step
        self.checkpoint = checkpoint
        self.origin = origin or f"step {step}"
        self.longest_source = translator.longest_source

    @property
    def of_ids(self) -> Translator:
        """The translator of token ids, which has the weights and the search."""
        return self._translator

    def warm_up(self) -> None:
        """Compiles all programs and runs them once, so that no translation waits for a compiler."""
        self._translator.warm_up()

    def lead(self) -> "TextTranslator":
        """Returns a translator for process 0 alone. The other processes must `follow` it."""
        translator = copy.copy(self)
        translator._translator = leading(self._translator, self._processes, _TOGETHER)
        return translator

    def follow(self) -> None:
        """Translates together with process 0, until it ends the calls (`calls.ending`)."""
        follow(self._translator, self._processes)

    def translate(
        self, lines: Sequence[str], source: str, target: str, chunk_size: int = 4096
    ) -> Iterator[list[Hypothesis]]:
        """Yields the n-best translations of each line, best first. The lines keep their order.

        The translation of an empty line is empty. A line that is too long is translated in pieces, and
        the n-th best translations of all pieces are joined. Its score is the sum of their
        log-probabilities, divided by the length norm of the sum of their lengths.

        Args:
          lines: source text.
          source, target: BCP 47 tags of a direction that the run was trained on.
          chunk_size: the number of lines that are sorted by length and translated together.

        Raises:
          UserError: a line has no translation, because the weights have values that are not finite.
        """
        for start in range(0, len(lines), chunk_size):
            chunk = lines[start : start + chunk_size]
            sources = self._encode(chunk, source, target)
            ids = [piece for pieces in sources for piece in pieces]
            translations = iter(self._translator.translate_ids(ids))
            for line, pieces in zip(chunk, sources, strict=True):
                parts = [self._decode(line, next(translations)) for _ in pieces]
                if len(parts) > 1:
                    joined = join(parts, separator(target), self._translator.length_norms)
                    yield [Hypothesis(text, score, len(parts)) for text, score in joined]
                else:
                    (nbest,) = parts or [[Translation("", 0.0, 0)]]
                    yield [Hypothesis(best.text, best.score) for best in nbest]

    def _encode(self, lines: Sequence[str], source: str, target: str) -> list[list[list[int]]]:
        """Returns the ids of the pieces of each line: mostly one piece, none if the line is empty."""

        def encode(texts: Sequence[str]) -> list[list[int]]:
            return self._source.encode_source(texts, source, target)

        def measure(texts: Sequence[str]) -> list[int]:
            return [len(ids) for ids in encode(texts)]

        (without_text,) = measure([""])
        longest = self._translator.longest_source
        sources = []
        for line, ids in zip(lines, encode(lines), strict=True):
            pieces = [ids] if len(ids) <= longest else encode(split(line, measure, longest))
            # Also a line of characters that the vocabulary ignores is empty.
            filled = [piece for piece in pieces if len(piece) > without_text]
            sources.append(filled if line.strip() else [])
        return sources

    def _decode(self, line: str, nbest: Sequence[tuple[list[int], float]]) -> list[Translation]:
        """Returns the texts of the translations of a piece of a line."""
        if not nbest:
            raise UserError(
                f"the checkpoint of {self.origin} has no translation for {line[:80]!r}: its weights have "
                "values that are not finite. Use another checkpoint of the run."
            )
        texts = self._target.decode([ids for ids, _ in nbest])
        return [
            Translation(text, score, len(ids) + 1)
            for text, (ids, score) in zip(texts, nbest, strict=True)
        ]


def load_translator(
    config: Config,
    run: RunFolder,
    nbest: int = 1,
    checkpoint: str = "best",
    processes: Processes = ALONE,
    fits: bool = True,
) -> TextTranslator:
    """Loads weights of a run: by default its best checkpoint, or the last one if there is no best.

    Nothing is written to the run folder. A checkpoint that is damaged is named on stderr, and the next
    sound one is used, unless a step was asked for. If there are several processes, all of them call this
    function, and call the translator with the same lines. To call it from process 0 alone, use
    `TextTranslator.lead`.

    Args:
      config: the run's config; its search settings may differ from those in the run folder.
      run: the run folder.
      nbest: number of translations of each line.
      checkpoint: "best", "last", a step such as "500", or "average:N" for the mean of the last N.
      processes: the processes that decode together.
      fits: whether to choose another mesh if that of the config does not fit this machine.

    Raises:
      UserError: the folder is not a run folder, or has no such checkpoint that is sound; or a size does
        not divide over the mesh.
    """
    choice = Chosen.parse(checkpoint)
    functions = step_functions(config, run.data)
    if fits:
        config = fitting.fitted(config, functions, processes)
    fitting.check(config, functions)
    # Reading a checkpoint starts jax, so the devices must be set up before.
    cache = run.programs_to_decode
    devices = runtime.start(config.mesh, cache, processes, shares_cache=cache == run.programs)
    retention = Retention.of(config.train)
    checkpoints = Checkpoints(run.checkpoints, retention, run.identity(), processes)
    loaded = load_weights(checkpoints, choice, devices.abstract(weight_specs(functions)))
    for problem in loaded.passed_over if processes.is_first else ():
        sys.stderr.write(f"{problem}. Using the checkpoint of {loaded.origin} instead.\n")
    translator = Translator(config, functions, devices, loaded.weights, nbest)
    return TextTranslator(run, translator, loaded.step, loaded.label, loaded.origin, processes)
