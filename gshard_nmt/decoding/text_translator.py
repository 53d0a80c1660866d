"""A trained model that translates text, with the vocabularies of its run."""

import contextlib
import dataclasses
import functools
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from gshard_nmt.data.text.protection import symbol
from gshard_nmt.data.text.vocabulary import EOS
from gshard_nmt.decoding.confidence import Confidence, Evidence
from gshard_nmt.decoding.expert_use import ExpertUse
from gshard_nmt.decoding.fitting import fitted
from gshard_nmt.decoding.pieces import Translation, join, separator, split
from gshard_nmt.decoding.protected import (
    Line,
    Piece,
    Protection,
    decode_translation,
    encode_lines,
    encode_translation,
    in_small_letters,
    protect,
    whole,
)
from gshard_nmt.decoding.source_lines import Hypothesis, copied
from gshard_nmt.decoding.translator import Translator, restrictions
from gshard_nmt.errors import UserError
from gshard_nmt.run.arrays import step_functions, weight_specs
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints
from gshard_nmt.run.checkpoint.weights import Chosen, Loaded, load_weights
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
        loaded: Loaded,
        processes: Processes = ALONE,
        protection: Protection | None = None,
        nbest: int | None = None,
    ) -> None:
        """Adds the vocabularies of a run to a translator of token ids, which has the `loaded` weights.

        `nbest` is the largest number of translations of a line, and the translator of ids may have more
        for `protection` to choose from.
        """
        self._protection, self._nbest = protection, nbest
        self._terms = functools.cache(protection.terms) if protection else None
        self._processes = processes
        # In process 0 alone, if the other processes `follow`.
        self.leads = False
        self.confidence: Confidence | None = None
        # It has the weights and the search.
        self.of_ids = translator
        self._source, self.target_vocabulary = run.vocabularies()
        self.step, self.checkpoint, self.origin = loaded.step, loaded.label, loaded.origin
        self.longest_source = translator.longest_source

    def rate(self, run: RunFolder, decode: Decode) -> None:
        """Gives each translation a confidence, if the run has one for these weights and this search."""
        made_by = self.made_by(decode.settings())
        self.confidence = Confidence.fitting(run.path, self.checkpoint, made_by)

    def made_by(self, search: str) -> str:
        """Returns the words for the weights, the search and what is protected."""
        protected = "" if self._protection is None else self._protection.words
        return f"{self.origin}, {search}{protected}"

    @property
    def keeps_tags(self) -> bool:
        """Whether tags in a line stay as they are."""
        return self._protection is not None and self._protection.placeholders

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

        A line without letters and digits, or with protected values alone, is copied, with score 0,
        unless it has a prefix. Translations that lack a value are left out. If all do, the best one is
        mended, see `protected.whole`. A score is that of the ids with symbols in the place of values.
        With protection, a line in capitals is read in small letters, and its translation is in capitals.

        A line that is too long is translated in pieces, of which marks alone are copied, and the n-th
        best translations of all pieces are joined, or the n-th samples. The score is the sum of their
        log-probabilities, divided by the length norm of the sum of their lengths. `chunk_size` lines
        are sorted by length and translated together; `prefixes` begin their translations, and
        `first_line` is the number of the first in messages. Raises UserError if the weights are not
        finite, or if a prefix, or a line that has one, is too long.
        """
        starts = [""] * len(lines) if prefixes is None else prefixes
        for start in range(0, len(lines), chunk_size):
            chunk = self._protect(lines[start : start + chunk_size], source, target)
            prefixed = {i: t for i, t in enumerate(starts[start : start + chunk_size]) if t}
            if self.keeps_tags:
                chunk = [
                    line if i in prefixed else in_small_letters(line, source, target)
                    for i, line in enumerate(chunk)
                ]
            sources = self._encode(chunk, source, target)
            begins: list[list[int]] = [[] for _ in chunk]
            read = encode_lines(self._source, [chunk[i] for i in prefixed], source, target)
            given = self._given(list(prefixed.values()), read)
            first = self.target_vocabulary.first(target)
            for i, piece, begin in zip(prefixed, read, given, strict=True):
                self._check_lengths(first_line + start + i, "prefix", piece.ids, first + begin)
                sources[i], begins[i] = [piece], begin
            # A model would invent text for a part of marks alone.
            known = [[piece for piece in parts if piece.copy is None] for parts in sources]
            pieces = [piece for parts in known for piece in parts]
            forced = [first + ids for ids, parts in zip(begins, known, strict=True) for _ in parts]
            nbests = self._run("translate_ids", [piece.ids for piece in pieces], forced)
            if self._protection:
                starts_free, longest = list(map(len, forced)), self.of_ids.longest_target
                score = functools.partial(self._run, "score_ids")
                has_all = self._protection.placeholders
                nbests = whole(
                    self.target_vocabulary, pieces, nbests, starts_free, longest, score, has_all
                )
            translations, most = zip(pieces, nbests, strict=True), max(map(len, nbests), default=1)
            for line, parts in zip(chunk, sources, strict=True):
                of_parts = [
                    self._decode(line, *next(translations))
                    if part.copy is None
                    else [Translation(part.copy, 0.0, 0)] * most
                    for part in parts
                ]
                (nbest, *_) = of_parts or [[Translation(line.copy or "", 0.0, 0)]]
                if len(parts) > 1:
                    nbest = join(of_parts, separator(target), self.of_ids.length_norms)
                hypotheses = [
                    self._hypothesis(line, parts, best, f"{source}-{target}") for best in nbest
                ]
                # Samples come in the order of their numbers, and joined lines by the rank of their parts.
                yield sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)

    def sentences(
        self, lines: Sequence[str], source: str, target: str
    ) -> list[tuple[int, list[int]]]:
        """Returns all sentences of these lines: line number and ids, EOS included.

        A long line has several sentences; a line, or a piece, that is copied has none. The first line
        has number 1.
        """
        encoded = enumerate(self._encode(self._protect(lines, source, target), source, target), 1)
        return [(number, piece.ids) for number, pieces in encoded for piece in pieces if piece.ids]

    def _protect(self, lines: Sequence[str], source: str, target: str) -> list[Line]:
        """Returns lines with marks for what must not change."""
        has, terms_of = self._protection, self._terms
        if has is None or terms_of is None:
            return list(map(Line, lines))
        terms = terms_of(source, target)
        return [protect(line, has.placeholders, terms, has.numbers) for line in lines]

    def _given(self, texts: Sequence[str], pieces: Sequence[Piece]) -> list[list[int]]:
        """Returns the ids of a given translation of each piece, or of its beginning; no tags, no EOS."""
        vocabulary = self.target_vocabulary
        plain = vocabulary.encode(texts)
        return [
            encode_translation(vocabulary, text, piece.outputs) if piece.outputs else ids
            for text, piece, ids in zip(texts, pieces, plain, strict=True)
        ]

    def _pairs(
        self, lines: Sequence[Line], texts: Sequence[str], source: str, target: str
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Returns the ids of whole lines, and of given translations without EOS."""
        pieces = encode_lines(self._source, lines, source, target)
        first = self.target_vocabulary.first(target)
        return [piece.ids for piece in pieces], [first + ids for ids in self._given(texts, pieces)]

    def _encode(self, lines: Sequence[Line], source: str, target: str) -> list[list[Piece]]:
        """Returns the pieces of each line: mostly one, none if the line is copied."""

        def measure(templates: Sequence[str], line: Line) -> list[int]:
            parts = [line._replace(template=template) for template in templates]
            return [len(piece.ids) for piece in encode_lines(self._source, parts, source, target)]

        (without_text,) = measure([""], Line(""))
        sources = []
        whole_lines = encode_lines(self._source, lines, source, target)
        for line, piece in zip(lines, whole_lines, strict=True):
            pieces = [piece] if line.copy is None else []
            if pieces and len(piece.ids) > self.longest_source:
                of_line = functools.partial(measure, line=line)
                templates: list[str] = []
                for text in split(line.template, of_line, self.longest_source):
                    # Marks that stood together stay together.
                    both = templates[-1] + text if templates else ""
                    is_run = both and copied(both) is not None and both in line.template
                    templates[-1:] = [both] if is_run else [*templates[-1:], text]
                parts = [line._replace(template=template) for template in templates]
                read = encode_lines(self._source, parts, source, target)
                pieces = [
                    piece if part.copy is None else Piece([], copy=part.copy)
                    for part, piece in zip(parts, read, strict=True)
                ]
            # A line of characters that the vocabulary ignores is empty.
            sources.append([p for p in pieces if p.copy or len(p.ids) > without_text])
        return sources

    def _decode(
        self, line: Line, piece: Piece, nbest: Sequence[tuple[list[int], float]]
    ) -> list[Translation]:
        """Returns the texts of the translations of a piece of a line, at most `nbest` of them."""
        if not nbest:
            raise self._not_finite(line)
        nbest = nbest[: self._nbest]
        if piece.outputs or line.capitals:
            texts = [
                decode_translation(self.target_vocabulary, ids, piece.outputs, line.capitals)
                for ids, _ in nbest
            ]
        else:
            texts = self.target_vocabulary.decode([ids for ids, _ in nbest])
        return [
            Translation(text, score, len(ids) + 1)
            for text, (ids, score) in zip(texts, nbest, strict=True)
        ]

    def _hypothesis(
        self, line: Line, pieces: Sequence[Piece], best: Translation, direction: str
    ) -> Hypothesis:
        norm = float(self.of_ids.length_norms(best.length)[best.length])
        read, lost = sum(len(piece.ids) for piece in pieces), line.lost(best.text)
        evidence = Evidence(best.score * norm, best.length, read, bool(lost))
        confidence = self.confidence.of(evidence, direction) if self.confidence else None
        number = max(1, len(pieces))
        return Hypothesis(best.text, best.score, number, lost, evidence, confidence)

    def score(
        self, pairs: Sequence[tuple[str, str]], source: str, target: str, first_line: int = 1
    ) -> Iterator[float]:
        """Yields the score of the given translation in each pair, in order.

        It is the score that `translate` reports for the same ids with the same settings, within 2e-6 of
        it. A line that is copied has score 0 with its copy, as in `translate`. Raises UserError if a line
        or its translation is too long, or the weights are not finite.
        """
        lines = self._protect([line for line, _ in pairs], source, target)
        filled = [i for i, (_, text) in enumerate(pairs) if lines[i].copy != text.strip()]
        texts = [pairs[i][1] for i in filled]
        sources, targets = self._pairs([lines[i] for i in filled], texts, source, target)
        for i, ids, translation in zip(filled, sources, targets, strict=True):
            self._check_lengths(first_line + i, "translation", ids, translation)
        scores = dict(zip(filled, self._run("score_ids", sources, targets), strict=True))
        for i, line in enumerate(lines):
            if math.isnan(score := scores.get(i, 0.0)):
                raise self._not_finite(line)
            yield score

    def expert_use(self, tests: Sequence[Sequence]) -> ExpertUse:
        """Counts which experts the model uses: the encoder for sources, and the decoder for references.

        Each test has source and target language (BCP 47 tags), source lines, and their references.
        """
        texts = []
        for source, target, lines, references in tests:
            protected = self._protect(lines, source, target)
            sources, targets = self._pairs(protected, references, source, target)
            ids = zip(sources, [[*ids, EOS] for ids in targets], strict=True)
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
                f"{longest - 1}. Shorten the {forced}, or leave the line out."
            )

    def _not_finite(self, line: Line) -> UserError:
        return UserError(
            f"the checkpoint of {self.origin} has no translation for {line.text[:80]!r}: its weights "
            "have values that are not finite. Use another checkpoint of the run."
        )


def load_translator(
    config: Config,
    run: RunFolder,
    nbest: int = 1,
    checkpoint: str = "best",
    processes: Processes = ALONE,
    fits: bool = True,
    protection: Protection | None = None,
) -> TextTranslator:
    """Loads weights of a run: by default its best checkpoint, or the last one if there is no best.

    Nothing is written to the run folder. A checkpoint that is damaged is named on stderr, and the next
    sound one is used, unless a step was asked for. If there are several processes, all of them call this
    function, and call the translator with the same lines, unless process 0 `leads` and the others
    `follow`. The config may have other settings of the search than the run folder. `checkpoint` is as in
    `Chosen.parse`. With `fits`, another mesh is chosen if that of the config does not fit this machine.
    `protection` is what must not change, if anything; then the vocabularies must have the symbol of
    `data.text.protection`. Raises UserError if the folder is not a run folder, or has no such checkpoint
    that is sound; or if a size does not divide over the mesh.
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
    loaded = load_weights(checkpoints, choice, devices.abstract(weight_specs(functions)))
    for problem in loaded.passed_over if processes.is_first else ():
        sys.stderr.write(f"{problem}. Using the checkpoint of {loaded.origin} instead.\n")
    limits, most = restrictions(run), nbest
    if protection:
        _, vocabulary = run.vocabularies()
        limits["never"] = [i for i in limits["never"] if i != symbol(vocabulary)]
        if config.decode.method == "beam":
            most = max(nbest, config.decode.beam)  # the best one that is whole may be any of them
    translator = Translator(config, functions, devices, loaded.weights, most, **limits)
    return TextTranslator(run, translator, loaded, processes, protection, nbest)
