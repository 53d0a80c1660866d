"""gshard-decode: translates text with a trained model.

Sentences are sorted by length, cut into batches of a few fixed shapes, and each batch is one call of a
compiled program: encoder, then flat beam search in one loop.
"""

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np

from gshard_nmt.decoding.beam_search import LENGTH_NORMS
from gshard_nmt.errors import UserError
from gshard_nmt.ranges import between, check, one_of, size
from gshard_nmt.run.checkpoint import BEST, LAST, Checkpoints
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.values import read_config
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpec, LoweredProgram, lower

if TYPE_CHECKING:
    from gshard_nmt.model.steps import StepFunctions
    from gshard_nmt.settings.config import Config


@dataclasses.dataclass(frozen=True)
class Decode:
    """Flat beam search and the shapes of its batches.

    Attributes:
      beam: K, hypotheses kept for each sentence.
      rows: B, sentences in a batch.
      source_lengths: the source lengths that programs are compiled for, in tokens, end included; a
        sentence takes the shortest that holds it, and one longer than all is cut.
      length_ratio, length_margin: a translation has at most ratio * source tokens + margin tokens,
        and never more than Data.target_length.
      length_norm: "gnmt", ((5 + length) / 6) ** alpha; "lingvo", ((4 + length) / 5) ** alpha, the
        authors' code, used with alpha 0.8; "none".
      alpha: the exponent of the length norm.
    """

    beam: int = 4
    rows: int = 64
    source_lengths: Sequence[int] = (16, 64)
    length_ratio: float = 2.0
    length_margin: int = 8
    length_norm: str = "gnmt"
    alpha: float = 0.6

    def __post_init__(self) -> None:
        check(
            self,
            size("beam", "rows", "source_lengths"),
            size("length_margin", least=0),
            between(0, 1000, "length_ratio"),
            one_of(LENGTH_NORMS, "length_norm"),
            between(0, 10, "alpha"),
        )
        if not self.source_lengths:
            raise UserError("Decode.source_lengths is []; it must name a length.")
        shortest = min(self.source_lengths)
        if int(self.length_ratio * shortest) + self.length_margin < 1:
            raise UserError(
                f"Decode.length_ratio is {self.length_ratio} and Decode.length_margin "
                f"{self.length_margin}; they leave no token to translate a source of {shortest} "
                "tokens to. Set the margin to 1 or more."
            )

    def settings(self) -> str:
        """What a translation depends on beside the model, in a few words."""
        return f"beam {self.beam}, {self.length_norm} length norm, alpha {self.alpha:g}"


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """A translation.

    Attributes:
      text: detokenised.
      score: length-normalised log-probability.
    """

    text: str
    score: float


@dataclasses.dataclass(frozen=True)
class Shape:
    """One shape of batch: source length and target steps."""

    source_length: int
    max_steps: int


class Translator:
    """A model on its devices, ready to translate."""

    def __init__(
        self,
        config: "Config",
        steps: "StepFunctions",
        devices: runtime.Runtime,
        parameters: Mapping[str, object],
        nbest: int = 1,
    ) -> None:
        """Compiles nothing yet: each shape of batch is compiled when it first occurs."""
        self._config = config
        self._steps = steps
        self._devices = devices
        self._nbest = nbest
        self._programs: dict[Shape, runtime.Program] = {}
        self.parameters = parameters

    def translate_ids(
        self, sources: Sequence[Sequence[int]]
    ) -> list[list[tuple[list[int], float]]]:
        """For each list of source ids (end included) its n-best (target ids, score), best first."""
        results: list[list[tuple[list[int], float]]] = [[] for _ in sources]
        for shape, indices in self._batches([len(ids) for ids in sources]):
            arrays = self._pad([sources[i] for i in indices], shape)
            program = self._program(shape)
            placed = self._devices.put(arrays, program.signature.inputs[1])
            (found,) = program(self.parameters, placed)
            found = self._devices.fetch(found)
            ids, scores, lengths = found["ids"], found["scores"], found["lengths"]
            for row, index in enumerate(indices):
                results[index] = [
                    (ids[row, n, : lengths[row, n] - 1].tolist(), float(scores[row, n]))
                    for n in range(ids.shape[1])
                    if lengths[row, n] > 0
                ]
        return results

    def _batches(self, lengths: Sequence[int]) -> Iterator[tuple[Shape, list[int]]]:
        """Sentences of like length together, so that the loop stops for all at about the same step."""
        decode = self._config.decode
        allowed = sorted(decode.source_lengths)
        order = sorted(range(len(lengths)), key=lambda i: lengths[i])
        by_length: dict[int, list[int]] = {}
        for i in order:
            fitting = [n for n in allowed if lengths[i] <= n]
            by_length.setdefault(fitting[0] if fitting else allowed[-1], []).append(i)
        for source_length, indices in by_length.items():
            shape = shape_of(self._config, source_length)
            for at in range(0, len(indices), decode.rows):
                yield shape, indices[at : at + decode.rows]

    def _program(self, shape: Shape) -> runtime.Program:
        if shape not in self._programs:
            self._programs[shape] = self._compile(shape)
        return self._programs[shape]

    def _compile(self, shape: Shape) -> runtime.Program:
        decode = self._config.decode
        key = json.dumps(
            ["decode", repr(self._steps), repr(decode), dataclasses.astuple(shape), self._nbest]
        )
        return self._devices.compile(key, lambda: self.lower(shape))

    def lower(self, shape: Shape) -> LoweredProgram:
        """The program of one shape of batch: (parameters, batch) -> (ids, scores, lengths)."""
        decode, mesh = self._config.decode, self._devices.mesh
        rows = ArraySpec((decode.rows, shape.source_length), np.dtype(np.int32), "BL")
        limits = ArraySpec((decode.rows,), np.dtype(np.int32), "B")
        batch = dict.fromkeys(("source_ids", "source_segments", "source_positions"), rows)
        batch["max_lengths"] = limits
        parameters = parameter_specs(self._steps)
        mesh.check_divides("Decode.rows", "B", (decode.rows,))
        letters = {"ids": "BKL", "scores": "BK", "lengths": "BK"}
        return lower(self._search(shape), [parameters, batch], [letters], mesh)

    def _search(self, shape: Shape):
        """The program: parameters and a batch to the n-best of each row."""
        from gshard_nmt.decoding import beam_search
        from gshard_nmt.model import decoder_step
        from gshard_nmt.spmd.sharding import annotate

        decode, model = self._config.decode, self._steps.model
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
            cache = decoder_step.start(model, p, batch, decode.beam, shape.max_steps)

            def next_token(ids, positions, mask, t, cache):
                del positions  # without a prefix every hypothesis is at step t
                return decoder_step.step(model, p, ids, mask, t, cache)

            found = beam_search.flat_beam_search(
                next_token,
                cache,
                decode.rows,
                search,
                live=batch["source_segments"][:, 0] > 0,
                max_lengths=batch["max_lengths"],
            )
            return [{"ids": found.ids, "scores": found.scores, "lengths": found.lengths}]

        return translate

    def _pad(self, sources: Sequence[Sequence[int]], shape: Shape) -> dict[str, np.ndarray]:
        """A batch of one sentence a row; one that is too long keeps its beginning and its end."""
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


def shape_of(config: "Config", source_length: int) -> Shape:
    """The shape of batch for sources of so many tokens, end included."""
    decode = config.decode
    steps = int(decode.length_ratio * source_length) + decode.length_margin
    return Shape(source_length, min(config.data.target_length, steps))


def parameter_specs(steps: "StepFunctions") -> dict[str, ArraySpec]:
    """Shape, dtype and letters of every weight."""
    return {
        name: ArraySpec(p.shape, np.dtype(p.dtype), p.letters)
        for name, p in steps.declare_parameters().items()
    }


class TextTranslator:
    """Text to text, in the languages that a run has learnt."""

    def __init__(self, run: RunFolder, translator: Translator, step: int) -> None:
        """A translator of token ids, with the vocabularies of its run."""
        self._run = run
        self._translator = translator
        self._source, self._target = run.vocabularies()
        self.step = step

    def translate(
        self, lines: Sequence[str], language: str, target: str = "", batch: int = 4096
    ) -> Iterator[list[Hypothesis]]:
        """The n-best of each line, best first, in order; an empty line gives an empty text.

        Args:
          lines: source text.
          language: BCP 47 tag of the source.
          target: BCP 47 tag of the target; may be left out where the run has one.
          batch: lines that are sorted and translated together.

        Raises:
          UserError: the run does not know the language or the target.
        """
        target = self._run.check_direction(language, target)
        for at in range(0, len(lines), batch):
            chunk = lines[at : at + batch]
            full = [i for i, line in enumerate(chunk) if line.strip()]
            sources = self._source.encode_source([chunk[i] for i in full], language, target)
            found = self._translator.translate_ids(sources)
            results = [[Hypothesis("", 0.0)] for _ in chunk]
            for i, nbest in zip(full, found, strict=True):
                texts = self._target.decode([ids for ids, _ in nbest])
                scores = [score for _, score in nbest]
                results[i] = [Hypothesis(*pair) for pair in zip(texts, scores, strict=True)]
            yield from results


def load_translator(config: "Config", workdir: Path, nbest: int = 1) -> TextTranslator:
    """The translator of a run folder: its best checkpoint by dev BLEU, or the last where none is.

    Raises:
      UserError: the folder is no run, or has no checkpoint.
    """
    run = RunFolder(workdir)
    steps = run.steps(config)
    # Before the checkpoints are opened: that starts jax, with as many devices as are set by then.
    devices = runtime.start(config.mesh, run.programs)
    checkpoints = Checkpoints(run.checkpoints)
    kind = BEST if checkpoints.latest(BEST) is not None else LAST
    step = checkpoints.metadata(kind)["step"]
    specs = parameter_specs(steps)
    abstract = devices.abstract(specs)
    parameters = checkpoints.restore(kind, {"parameters": abstract})["parameters"]
    return TextTranslator(run, Translator(config, steps, devices, parameters, nbest), step)


@functools.lru_cache(maxsize=2)
def _translator_of(workdir: Path) -> tuple[TextTranslator, str]:
    config = read_config(RunFolder(workdir).config)
    return load_translator(config, workdir), config.decode.settings()


def translate_run(
    workdir: Path, source: str, target: str, lines: Sequence[str]
) -> tuple[list[str], str]:
    """The best translation of each line by a run folder's model, and what made it, in words."""
    translator, settings = _translator_of(workdir)
    found = [nbest[0].text for nbest in translator.translate(lines, source, target)]
    return found, f"step {translator.step}, {settings}"


def check_request(config: "Config", workdir: Path, language: str, target: str, nbest: int) -> None:
    """Checks what `decode` is asked for, before anything is opened or loaded.

    Raises:
      UserError: the run does not know the language or the target, or keeps fewer hypotheses than
        `nbest`.
    """
    run = RunFolder(workdir)
    run.check_direction(language or run.only_language(), target)
    if nbest < 1 or nbest > config.decode.beam:
        raise UserError(
            f"--nbest {nbest} with --beam {config.decode.beam}; n-best must be between 1 and the beam."
        )


def decode(
    config: "Config",
    workdir: Path,
    source: TextIO,
    output: TextIO,
    language: str,
    target: str = "",
    nbest: int = 1,
    scores: bool = False,
) -> None:
    """Translates a stream of lines, in order.

    Args:
      config: the run's, with any change to its Decode.
      workdir: the run folder.
      source: one sentence a line.
      output: one translation a line; with `scores` or several n-best, tab-separated lines of input
        line number (from 1), score and text.
      language: BCP 47 tag of the source; "" where the run has one language.
      target: BCP 47 tag of the target; "" where the run has one.
      nbest: translations of each line.
      scores: write scores.
    """
    language = language or RunFolder(workdir).only_language()
    translator = load_translator(config, workdir, nbest)
    number = 0
    for lines in _chunks(source):
        for hypotheses in translator.translate(lines, language, target):
            number += 1
            for hypothesis in hypotheses:
                if scores or nbest > 1:
                    output.write(f"{number}\t{hypothesis.score:.4f}\t{hypothesis.text}\n")
                else:
                    output.write(hypothesis.text + "\n")
        output.flush()


def _chunks(source: TextIO, size: int = 4096) -> Iterator[list[str]]:
    """Lines without their ends, as many at a time as are worth sorting by length."""
    lines: list[str] = []
    for line in source:
        lines.append(line.rstrip("\r\n"))
        if len(lines) == size:
            yield lines
            lines = []
    if lines:
        yield lines
