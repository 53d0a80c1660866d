"""A trained model on its devices, ready to translate token ids.

Sentences are sorted by length and put into batches of a few fixed shapes. Each batch is one call of a
compiled program: the encoder, then flat beam search or sampling in one loop.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gshard_nmt.data.text.vocabulary import EOS
from gshard_nmt.decoding import beam_search, expert_use, sampling
from gshard_nmt.decoding.fitting import BatchShape, batch_rows, batch_shape, least_rows
from gshard_nmt.model import decoder_step, decoding_weights
from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run.arrays import letters_of, weight_specs
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.config import Config
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpec, LoweredFunction, lower
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.program import DECODING, Program
from gshard_nmt.spmd.sharding import annotate


def restrictions(run: RunFolder) -> dict[str, Any]:
    """Returns the arguments `never` and `tags` of a `Translator` for the model of a run.

    An imported model never writes what its folder says. Any other model never writes an id without text:
    PAD, UNK, BOS, tags and reserved symbols.
    """
    _, vocabulary = run.vocabularies()
    never = run.data.get("never")
    if never is None:
        kinds = enumerate(kind for kind, _ in vocabulary.keys())  # noqa: SIM118
        never = [i for i, kind in kinds if kind in ("special", "control") and i != EOS]
    tags = any(vocabulary.first(pair["target"]) for pair in run.data["pairs"])
    return {"never": never, "tags": int(tags)}


class Translator:
    """Translates token ids."""

    def __init__(
        self,
        config: Config,
        functions: StepFunctions,
        devices: runtime.Runtime,
        parameters: Mapping[str, object],
        nbest: int = 1,
        never: Sequence[int] = (),
        tags: int = 0,
    ) -> None:
        """Compiles nothing yet: each shape of batch is compiled when it first occurs.

        `parameters` are on the devices. `never` are the ids that a translation has only if its prefix has
        them; `tags` is the number of tags that each prefix begins with, which do not count in scores.
        """
        self._config, self._functions, self._devices = config, functions, devices
        self._nbest, self._never, self._tags = nbest, tuple(never), tags
        self.least_rows = least_rows(config, devices.is_cpu, nbest)
        self.rows = batch_rows(config.replace(mesh=devices.mesh), devices.is_cpu, nbest)
        self._programs: dict[BatchShape, Program] = {}
        # The arrays that the search reads; none if it reads the weights as they are. An accelerator cuts
        # weights out of a stack while it multiplies, and copies would fill it.
        self._pieces: dict[str, decoding_weights.Piece] = {}
        if devices.is_cpu or config.decode.precision != "model":
            declared = functions.declare_parameters()
            self._pieces = decoding_weights.plan(functions.model, declared, self._precision)
        self._specs = {
            name: ArraySpec(piece.shape, np.dtype(piece.dtype), piece.letters)
            for name, piece in self._pieces.items()
        } or weight_specs(functions)
        self.mesh, self.is_on_cpu = devices.mesh, devices.is_cpu
        self.longest_source = max(config.decode.source_lengths)
        """The largest number of tokens of a source that is translated whole, EOS included."""
        self.longest_target = batch_shape(config, self.longest_source).max_steps
        """The largest number of tokens of a translation, EOS included."""
        self.parameters = parameters

    @property
    def parameters(self) -> Mapping[str, object]:
        """The weights of the model, on the devices."""
        return self._parameters

    @parameters.setter
    def parameters(self, parameters: Mapping[str, object]) -> None:
        self._parameters = parameters
        self._weights = None if self._pieces else parameters

    @property
    def letters(self) -> dict[str, str]:
        """The letters of each array of weights that the search reads, by name."""
        return letters_of(self._specs)

    def length_norms(self, longest: int) -> np.ndarray:
        """Returns the divisor of scores for each number of tokens from 0 to `longest`: float32[n + 1]."""
        norm, alpha = self._config.decode.length_norm, self._config.decode.alpha
        search = beam_search.BeamSearch(max_steps=longest, length_norm=norm, alpha=alpha)
        return search.norms()

    def translate_ids(
        self, sources: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]] | None = None
    ) -> list[list[tuple[list[int], float]]]:
        """Returns for each source, EOS included, its translations as (target ids, score).

        The n-best of a search are in order, best first. Samples are in the order of their numbers. A
        source has no translation if the weights have values that are not finite. A translation begins
        with its prefix, which fits into `longest_target` tokens together with EOS. If a prefix ends with
        EOS, it is the only translation of its source. Raises UserError if a batch needs too much memory.
        """
        prefixes = [()] * len(sources) if prefixes is None else prefixes
        translations: list[list[tuple[list[int], float]]] = [[] for _ in sources]
        batches = self._batches(sources, prefixes)
        self._compile(shape for shape, _ in batches)
        for shape, indices in batches:
            program = self._programs[shape]
            arrays = self._pad([(sources[i], prefixes[i]) for i in indices], shape)
            placed = self._devices.put(arrays, program.signature.inputs[1])
            (hypotheses,) = program(self.prepared_weights(), placed)
            hypotheses = self._devices.fetch(hypotheses)
            ids, scores, lengths = (hypotheses[name] for name in ("ids", "scores", "lengths"))
            for row, index in enumerate(indices):
                translations[index] = [
                    (ids[row, n, : lengths[row, n] - 1].tolist(), float(scores[row, n]))
                    for n in range(ids.shape[1])
                    if lengths[row, n] > 0 and np.isfinite(scores[row, n])
                ]
        return translations

    def compile(self, sources: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]]) -> None:
        """Compiles the programs of the same sentences; raises UserError if one needs too much memory."""
        self._compile(shape for shape, _ in self._batches(sources, prefixes))

    def warm_up(self) -> None:
        """Compiles the program of each shape of batch, and runs it once: no translation waits for it."""
        self.translate_ids([[EOS] * length for length in self._config.decode.source_lengths])

    def score_ids(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[float]:
        """Returns the score of a given translation of each source, without EOS.

        The same program that translates computes it. A translation that this translator found gets the
        score that was reported with it, but not its last bits: it was in another place of the beam. In
        our tests they differ by 2e-6 of the score at most. It is NaN if the weights are not finite.
        """
        forced = self.translate_ids(sources, [[*ids, EOS] for ids in targets])
        return [nbest[0][1] if nbest else math.nan for nbest in forced]

    def count_experts(
        self, texts: Sequence[Sequence[tuple[Sequence[int], Sequence[int]]]]
    ) -> expert_use.ExpertUse:
        """Counts which experts the model uses for the sentence pairs of each direction, as ids."""
        return expert_use.count(
            self._config, self._functions, self._devices, self.parameters, texts
        )

    def moved(self, mesh: Mesh, rows: int) -> "Translator":
        """Returns a translator with the same weights on a mesh of this process, with `Decode.rows`."""
        config = self._config.replace(mesh=mesh, decode={"rows": rows})
        devices = runtime.start(mesh, self._devices.cache)
        weights = devices.put(self._devices.fetch(self.parameters), weight_specs(self._functions))
        return Translator(
            config, self._functions, devices, weights, self._nbest, self._never, self._tags
        )

    def lower(self, shape: BatchShape) -> LoweredFunction:
        """Lowers the search of one shape of batch: (weights, batch) -> (ids, scores, lengths).

        The weights are those that `prepared_weights` returns.
        """
        rows, mesh = self.rows, self._devices.mesh
        tokens = ArraySpec((rows, shape.source_length), np.dtype(np.int32), "BL")
        batch = dict.fromkeys(("source_ids", "source_segments", "source_positions"), tokens)
        batch["max_lengths"] = ArraySpec((rows,), np.dtype(np.int32), "B")
        batch["prefix"] = ArraySpec((rows, shape.max_steps), np.dtype(np.int32), "BL")
        if self._config.decode.method == "sample":
            words = ArraySpec((rows,), np.dtype(np.uint32), "B")
            batch |= {"random0": words, "random1": words}
        letters = {"ids": "BKL", "scores": "BK", "lengths": "BK"}
        return lower(self.search(shape), [self._specs, batch], [letters], mesh)

    @property
    def _precision(self) -> str:
        """The precision of products with weights: on a CPU, a model decodes as it was trained."""
        wanted = self._config.decode.precision
        rounds = self._functions.model.matmul_precision == "bfloat16"
        return "bfloat16" if wanted == "model" and rounds and self._devices.is_cpu else wanted

    def prepared_weights(self) -> Mapping[str, object]:
        """Returns the weights that the search reads. They are computed when they are first needed."""
        if self._weights is None:
            (self._weights,) = self._preparation(self.parameters)
        return self._weights

    @functools.cached_property
    def _preparation(self) -> Program:
        """(weights) -> (prepared weights)."""
        pieces, specs = self._pieces, weight_specs(self._functions)

        def prepare(weights):
            return [decoding_weights.prepare(pieces, weights)]

        def lowered():
            letters = {name: piece.letters for name, piece in pieces.items()}
            return lower(prepare, [specs], [letters], self._devices.mesh)

        key = json.dumps(["decoding weights", repr(self._functions), self._precision])
        return self._devices.compile(key, lowered, independent_rows=True)

    def _batches(
        self, sources: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]]
    ) -> list[tuple[BatchShape, list[int]]]:
        """Returns a shape and the indices of its sentences for each batch.

        Sentences of similar length share a batch, because the search goes on until its longest
        translation has ended.
        """
        allowed = sorted(self._config.decode.source_lengths)
        most_steps = {length: batch_shape(self._config, length).max_steps for length in allowed}
        by_length: dict[int, list[int]] = {}
        for index in sorted(range(len(sources)), key=lambda i: len(sources[i])):
            tokens, steps = len(sources[index]), _steps(prefixes[index])
            long_enough = (n for n in allowed if tokens <= n and steps <= most_steps[n])
            by_length.setdefault(next(long_enough, allowed[-1]), []).append(index)
        return [
            (batch_shape(self._config, length), indices[start : start + self.rows])
            for length, indices in by_length.items()
            for start in range(0, len(indices), self.rows)
        ]

    def _compile(self, shapes: Iterable[BatchShape]) -> None:
        """Compiles the program of each new shape of batch, two at a time.

        While XLA compiles one of the two, TensorFlow lowers the other, and XLA begins with it. Beside the
        last is the program of `prepared_weights`. More at a time would need more memory of the host, and
        XLA has most cores for one already.
        """
        missing = iter([shape for shape in dict.fromkeys(shapes) if shape not in self._programs])
        for shape in missing:
            beside = functools.partial(self._compile_beside, next(missing, None))
            self._programs[shape] = self._program(shape, meanwhile=beside)

    def _compile_beside(self, shape: BatchShape | None) -> None:
        if shape is not None:
            self._programs[shape] = self._program(shape)
        elif self._pieces:
            _ = self._preparation

    def _program(self, shape: BatchShape, meanwhile: Callable[[], object] | None = None) -> Program:
        # The seed is in the batches, so all seeds share a program.
        settings = [repr(self._functions), repr(dataclasses.replace(self._config.decode, seed=0))]
        sizes = [*dataclasses.astuple(shape), self._nbest, self.rows]
        key = json.dumps(["decode", *settings, sizes, self._never, self._tags])
        program = self._devices.compile(
            key, lambda: self.lower(shape), independent_rows=True, meanwhile=meanwhile
        )
        # The weights as they were trained stay on the devices beside the prepared ones.
        held = self.parameters if self._pieces else {}
        self._devices.check_fits(program, DECODING, held)
        return program

    def search(self, shape: BatchShape) -> Callable:
        """Returns the search: (prepared weights, batch of any number of rows) -> its n-best.

        `prefix` may be missing in the batch.
        """
        decode, model, pieces = self._config.decode, self._functions.model, self._pieces
        samples = decode.method == "sample"
        search = beam_search.BeamSearch(
            beam=self._nbest if samples else decode.beam,
            max_steps=shape.max_steps,
            nbest=self._nbest,
            length_norm=decode.length_norm,
            alpha=decode.alpha,
            expansion=decode.expansion,
            never=self._never,
            tags=self._tags,
        )

        def translate(weights, batch):
            p = decoding_weights.read(pieces, weights) if pieces else weights
            batch = {name: annotate(x, "BL"[: x.shape.rank]) for name, x in batch.items()}
            cache = decoder_step.start(model, p, batch, search.beam, shape.max_steps)

            next_token = functools.partial(decoder_step.step, model, p)
            limits = {name: batch.get(name) for name in ("max_lengths", "prefix")}
            limits["live"] = batch["source_segments"][:, 0] > 0
            if samples:
                words = (batch["random0"], batch["random1"])
                hypotheses = sampling.sample(next_token, cache, words, search, decode, **limits)
            else:
                hypotheses = beam_search.flat_beam_search(next_token, cache, search, **limits)
            return [{name: getattr(hypotheses, name) for name in ("ids", "scores", "lengths")}]

        return translate

    def _pad(
        self, sentences: Sequence[tuple[Sequence[int], Sequence[int]]], shape: BatchShape
    ) -> dict[str, np.ndarray]:
        """Returns a batch with one sentence, a source and a prefix of its translation, in each row.

        A source that is too long keeps its beginning and its end-of-sentence token.
        """
        decode, length = self._config.decode, shape.source_length
        ids = np.zeros((self.rows, length), np.int32)
        segments = np.zeros((self.rows, length), np.int32)
        limits = np.ones((self.rows,), np.int32)
        prefixes = np.zeros((self.rows, shape.max_steps), np.int32)
        random = np.zeros((2, self.rows), np.uint32)
        for row, (source, prefix) in enumerate(sentences):
            fitting = source if len(source) <= length else [*source[: length - 1], source[-1]]
            ids[row, : len(fitting)] = fitting
            segments[row, : len(fitting)] = 1
            longest = int(decode.length_ratio * len(fitting)) + decode.length_margin
            limits[row] = min(shape.max_steps, max(longest, _steps(prefix)))
            prefixes[row, : len(prefix)] = prefix
            random[:, row] = sampling.random_words(source, decode.seed)
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
