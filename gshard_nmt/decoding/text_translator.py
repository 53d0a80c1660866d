"""A trained model that translates text, with the vocabularies of its run."""

import contextlib
import dataclasses
import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gshard_nmt.data.text.vocabulary import Vocabulary
from gshard_nmt.decoding.confidence import Confidence, Evidence
from gshard_nmt.decoding.expert_use import ExpertUse
from gshard_nmt.decoding.fitting import fitted
from gshard_nmt.decoding.pieces import Translation, join, separator, split
from gshard_nmt.decoding.source_lines import Hypothesis, copied, visible
from gshard_nmt.decoding.translator import Translator, restrictions
from gshard_nmt.errors import UserError
from gshard_nmt.run.arrays import step_functions, weight_specs
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints
from gshard_nmt.run.checkpoint.weights import Chosen, load_weights
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.config import Config, Decode
from gshard_nmt.settings.divides import check_decoding
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.processes import ALONE, Processes


def call(processes: Processes, target: object, method: str, *arguments: Any) -> Any:
    """Calls a method in all processes, with values that JSON can write, and returns its result.

    Process 0 calls this function: it reads the input and writes the output, and all run the programs. The
    others are in `follow` with an object of their own.
    """
    processes.from_first(lambda: [method, arguments])
    return getattr(target, method)(*arguments)


def follow(processes: Processes, target: object) -> None:
    """Makes the calls of process 0 with an object of this process, until process 0 ends them."""
    while called := processes.from_first(lambda: None):
        method, arguments = called
        getattr(target, method)(*arguments)


@contextlib.contextmanager
def ending(processes: Processes) -> Iterator[None]:
    """Ends the calls after the block in process 0. If an error leaves the block, all processes end."""
    yield
    processes.from_first(lambda: None)


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

        `step` is that of the weights, of an average the newest one; `checkpoint` is their label, see
        `weights.Loaded`, and `origin` what they are in words.
        """
        self._processes = processes
        # In process 0 alone, if the other processes `follow`.
        self.leads = False
        self.confidence: Confidence | None = None
        # It has the weights and the search.
        self.of_ids = translator
        self._source, self._target = run.vocabularies()
        self.step, self.checkpoint = step, checkpoint
        self.origin = origin or f"step {step}"
        self.longest_source = translator.longest_source

    @property
    def target_vocabulary(self) -> Vocabulary:
        return self._target

    def rate(self, run: RunFolder, decode: Decode) -> None:
        """Gives each translation a confidence, if the run has one for these weights and this search."""
        made_by = f"{self.origin}, {decode.settings()}"
        self.confidence = Confidence.fitting(run.path, self.checkpoint, made_by)

    def warm_up(self) -> None:
        """Compiles all programs and runs them once, so that no translation waits for a compiler."""
        self.of_ids.warm_up()

    def follow(self) -> None:
        """Translates together with process 0, until it ends the calls (`ending`)."""
        follow(self._processes, self.of_ids)

    def _run(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the translator of ids, which runs programs."""
        if self.leads:
            return call(self._processes, self.of_ids, method, *arguments)
        return getattr(self.of_ids, method)(*arguments)

    def translate(
        self,
        lines: Sequence[str],
        source: str,
        target: str,
        chunk_size: int = 4096,
        prefixes: Sequence[str] | None = None,
        first_line: int = 1,
    ) -> Iterator[list[Hypothesis]]:
        """Yields the translations of each line by falling score. The lines keep their order.

        A line without letters and digits is copied, with score 0, unless it has a prefix. A line that is
        too long is translated in pieces, and the n-th best translations of all pieces are joined, or the
        n-th samples of all pieces. The score is the sum of their log-probabilities, divided by the length
        norm of the sum of their lengths. `chunk_size` lines are sorted by length and translated together;
        `prefixes` begin their translations, and `first_line` is the number of the first in messages.

        Raises:
          UserError: the weights have values that are not finite. Or a prefix, or a line that has one, is
            too long.
        """
        starts = [""] * len(lines) if prefixes is None else prefixes
        for start in range(0, len(lines), chunk_size):
            chunk = lines[start : start + chunk_size]
            begins = self._target.encode(starts[start : start + chunk_size])
            sources = self._encode(chunk, source, target)
            for i, begin in enumerate(begins):
                if begin:
                    sources[i] = self._ids([chunk[i]], source, target)
                    self._check_lengths(first_line + start + i, "prefix", sources[i][0], begin)
            ids = [piece for pieces in sources for piece in pieces]
            first = self._target.first(target)
            forced = [
                first + begin for begin, pieces in zip(begins, sources, strict=True) for _ in pieces
            ]
            translations = iter(self._run("translate_ids", ids, forced))
            for line, pieces in zip(chunk, sources, strict=True):
                parts = [self._decode(line, next(translations)) for _ in pieces]
                nbest = (parts or [[Translation(copied(line) or "", 0.0, 0)]])[0]
                if len(parts) > 1:
                    nbest = join(parts, separator(target), self.of_ids.length_norms)
                read, number = sum(map(len, pieces)), max(1, len(parts))
                direction = f"{source}-{target}"
                hypotheses = [self._hypothesis(best, number, read, direction) for best in nbest]
                # Samples come in the order of their numbers, and joined lines by the rank of their parts.
                yield sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)

    def sentences(
        self, lines: Sequence[str], source: str, target: str
    ) -> list[tuple[int, list[int]]]:
        """Returns all sentences of these lines: line number and ids, EOS included.

        A long line has several sentences, and a line that is copied has none. The first line has
        number 1.
        """
        encoded = enumerate(self._encode(lines, source, target), 1)
        return [(number, ids) for number, pieces in encoded for ids in pieces]

    def _ids(self, lines: Sequence[str], source: str, target: str) -> list[list[int]]:
        """Returns the ids that the encoder reads for each line."""
        return self._source.encode_source([visible(line) for line in lines], source, target)

    def _encode(self, lines: Sequence[str], source: str, target: str) -> list[list[list[int]]]:
        """Returns the ids of the pieces of each line: mostly one piece, none if the line is copied."""

        def measure(texts: Sequence[str]) -> list[int]:
            return [len(ids) for ids in self._ids(texts, source, target)]

        (without_text,) = measure([""])
        sources = []
        for line, ids in zip(lines, self._ids(lines, source, target), strict=True):
            pieces = [ids] if copied(line) is None else []
            if pieces and len(ids) > self.longest_source:
                pieces = self._ids(split(line, measure, self.longest_source), source, target)
            # A line of characters that the vocabulary ignores is empty.
            sources.append([piece for piece in pieces if len(piece) > without_text])
        return sources

    def _decode(self, line: str, nbest: Sequence[tuple[list[int], float]]) -> list[Translation]:
        """Returns the texts of the translations of a piece of a line."""
        if not nbest:
            raise self._not_finite(line)
        texts = self._target.decode([ids for ids, _ in nbest])
        return [
            Translation(text, score, len(ids) + 1)
            for text, (ids, score) in zip(texts, nbest, strict=True)
        ]

    def _hypothesis(
        self, best: Translation, pieces: int, source_tokens: int, direction: str
    ) -> Hypothesis:
        norm = float(self.of_ids.length_norms(best.length)[best.length])
        evidence = Evidence(best.score * norm, best.length, source_tokens)
        confidence = self.confidence.of(evidence, direction) if self.confidence else None
        return Hypothesis(best.text, best.score, pieces, evidence, confidence)

    def score(
        self,
        pairs: Iterable[tuple[str, str]],
        source: str,
        target: str,
        chunk_size: int = 4096,
        first_line: int = 1,
    ) -> Iterator[float]:
        """Yields the score of the given translation in each pair, in order.

        It is the score that `translate` reports for the same ids with the same settings, within 2e-6 of
        it. A line that is copied has score 0 with its copy, as in `translate`.

        Raises:
          UserError: a line or its translation is too long, or the weights are not finite.
        """
        remaining, first = iter(pairs), first_line
        while chunk := list(itertools.islice(remaining, chunk_size)):
            filled = [i for i, (line, text) in enumerate(chunk) if copied(line) != text.strip()]
            sources = self._ids([chunk[i][0] for i in filled], source, target)
            texts = self._target.encode_target([chunk[i][1] for i in filled], target)
            targets = [ids[:-1] for ids in texts]
            for i, ids, translation in zip(filled, sources, targets, strict=True):
                self._check_lengths(first + i, "translation", ids, translation)
            scores = dict(zip(filled, self._run("score_ids", sources, targets), strict=True))
            for i, (line, _) in enumerate(chunk):
                if math.isnan(score := scores.get(i, 0.0)):
                    raise self._not_finite(line)
                yield score
            first += len(chunk)

    def expert_use(self, tests: Sequence[Sequence]) -> ExpertUse:
        """Counts which experts the model uses: the encoder for sources, and the decoder for references.

        Each test has source and target language (BCP 47 tags), source lines, and their references.
        """
        texts = []
        for source, target, lines, references in tests:
            ids = zip(
                self._ids(lines, source, target),
                self._target.encode_target(references, target),
                strict=True,
            )
            both = zip(ids, lines, references, strict=True)
            texts.append([p if a.strip() and b.strip() else ([], []) for p, a, b in both])
        return dataclasses.replace(self.of_ids.count_experts(texts), origin=self.origin)

    def _check_lengths(
        self, number: int, forced: str, source: Sequence[int], target: Sequence[int]
    ) -> None:
        """Raises UserError if a line with EOS, or the "translation" or "prefix" of it, is too long."""
        if len(source) > self.longest_source:
            raise UserError(
                f"line {number} has {len(source)} tokens; a line with a given {forced} can have at most "
                f"{self.longest_source} (Decode.source_lengths). Split the line, or leave it out.",
                ["Decode.source_lengths"],
            )
        if len(target) >= (longest := self.of_ids.longest_target):
            raise UserError(
                f"line {number}: the {forced} has {len(target)} tokens; this model can write at most "
                f"{longest - 1}. Shorten the {forced}, or leave the line out.",
            )

    def _not_finite(self, line: str) -> UserError:
        return UserError(
            f"the checkpoint of {self.origin} has no translation for {line[:80]!r}: its weights have "
            "values that are not finite. Use another checkpoint of the run."
        )


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
    function, and call the translator with the same lines, or use `TextTranslator.lead`. The config may
    have other settings of the search than the run folder. `checkpoint` is as in `Chosen.parse`. With
    `fits`, another mesh is chosen if that of the config does not fit this machine.

    Raises:
      UserError: the folder is not a run folder, or has no such checkpoint that is sound; or a size does
        not divide over the mesh.
    """
    choice = Chosen.parse(checkpoint)
    functions = step_functions(config, run.data)
    if fits:
        config = fitted(config, functions, processes)
    check_decoding(config, weight_specs(functions))
    # Reading a checkpoint starts jax, so the devices must be set up before.
    cache = run.programs_to_decode
    devices = runtime.start(config.mesh, cache, processes)
    checkpoints = Checkpoints.of(run, config.train, processes)
    # The processes agree on a checkpoint in a collective. On CPU devices it fails if one of them comes 30
    # seconds after the others, and process 0 may have read a large input first.
    processes.barrier("all processes read the weights")
    loaded = load_weights(checkpoints, choice, devices.abstract(weight_specs(functions)))
    for problem in loaded.passed_over if processes.is_first else ():
        sys.stderr.write(f"{problem}. Using the checkpoint of {loaded.origin} instead.\n")
    limits = restrictions(run)
    translator = Translator(config, functions, devices, loaded.weights, nbest, **limits)
    return TextTranslator(run, translator, loaded.step, loaded.label, loaded.origin, processes)
