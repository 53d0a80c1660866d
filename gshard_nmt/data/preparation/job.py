"""One preparation: the stages in their order, what is left out, and the folder made of their files.

A row of the corpus goes this way, and each arrow is a stage of units in the work folder (`work.py`):

    file of the corpus -> chunk (`inputs`) -> clean chunk (`filtering`) -> shard (`tokenizing`)
                                                  -> sample -> vocabulary (`vocabularies`) -^
"""

import dataclasses
import hashlib
import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt import files, outputs
from gshard_nmt.data.cleaning import filters, report
from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation import inputs, tokenizing, vocabularies
from gshard_nmt.data.preparation.filtering import clean_all
from gshard_nmt.data.preparation.inputs import SplitText, Texts, folder_of
from gshard_nmt.data.preparation.tokenizing import TOO_LONG, Direction, all_directions, tokenize_all
from gshard_nmt.data.preparation.vocabularies import load_models, sample_all, train_all
from gshard_nmt.data.preparation.work import WorkFolder, key_of
from gshard_nmt.data.sets import manifest
from gshard_nmt.data.sets.corpus import CorpusPair
from gshard_nmt.data.sets.directions import choose
from gshard_nmt.data.sets.examples import SIDES
from gshard_nmt.data.sets.manifest import VOCABULARIES, PreparedPair, SplitData, write_manifest
from gshard_nmt.data.text.vocabulary import vocabulary_of
from gshard_nmt.data.worker_pool import DaskPool, WorkerPool, usable_cpus
from gshard_nmt.errors import UserError
from gshard_nmt.terminal import Terminal

_VERSION = 3
"""Changes whenever the same text and settings would give other prepared data."""

SHARDED = ("train", "dev")
"""The splits that have shards. Evaluation reads test text from the corpus."""

MUCH_FALLBACK = 0.05
"""A direction with a larger part of byte fallback in its tokens has a warning."""


@dataclasses.dataclass(frozen=True)
class Options:
    """How text is prepared, besides the settings of data.

    With 0 `workers` there is one process for each CPU. `vocabulary_of` is prepared data or a run folder,
    whose vocabularies are used. `scheduler` is the address of a Dask scheduler.
    """

    workers: int = 0
    vocabulary_of: Path | None = None
    cleaning: Cleaning = dataclasses.field(default_factory=Cleaning)
    scheduler: str = ""


class Job:
    """Makes a folder of prepared data."""

    def __init__(
        self,
        config: Data,
        pairs: Sequence[CorpusPair],
        out: Path,
        old_key: str | None,
        options: Options,
        console: Terminal,
    ) -> None:
        """Checks the existing vocabularies and the filters, and does nothing else yet.

        `old_key` is in the manifest of the data that `out` has already.

        Raises:
          UserError: an existing vocabulary is not there or damaged, or a filter is unknown.
        """
        # Reading a large corpus takes hours, so a wrong name is an error before it.
        self._vocabularies = load_models(options.vocabulary_of) if options.vocabulary_of else None
        filters.identity(options.cleaning)
        self._config, self._pairs, self._out = config, pairs, out
        self._old_key, self._options, self._console = old_key, options, console
        self.partial = outputs.partial_path(out)
        self._pool = WorkerPool(options.workers or usable_cpus())
        if options.scheduler:
            self._pool = DaskPool(options.scheduler, self.partial)

    def is_up_to_date(self) -> bool:
        """Returns whether the folder is up to date, as far as is known without reading the text."""
        texts = inputs.known_texts(self._pairs) if self._old_key else None
        if texts is None:
            return False
        return self._facts(self._choose(texts, []), texts)["key"] == self._old_key

    def run(self) -> None:
        """Makes the folder. Finished work stays in `partial` if this fails."""
        with WorkFolder(self.partial, self._pool, self._console) as work:
            try:
                with self._pool:
                    self._make(work)
            except BaseException:
                if not any(self.partial.glob("*/*/result.json")):
                    work.remove()
                raise
            work.remove()

    def _make(self, work: WorkFolder) -> None:
        config, cleaning = self._config, self._options.cleaning
        texts = inputs.read_all(work, self._pairs)
        notes: list[str] = []
        pairs = self._choose(texts, notes)
        facts = self._facts(pairs, texts)
        if facts["key"] == self._old_key:
            self._console.print(f"{self._out} is up to date")
            return
        for note in notes:
            self._console.print(f"note: {note}.")
        directions = all_directions(config, pairs)
        clean = clean_all(work, cleaning, pairs, texts)
        train_texts = [(d, clean[folder_of(d.pair), "train"]) for d in directions]
        reasons = {d.folder: _reason(t.text.total, t.removed) for d, t in train_texts if not t.rows}
        kept = _rest(directions, reasons)
        models = self._models(pairs)
        if models is None:
            self._console.print("training the vocabularies")
            samples = sample_all(work, config, [(d, text) for d, text in train_texts if text.rows])
            # A language that is left out gets no tag.
            models = train_all(work, config, samples, [(d.source, d.target) for d in kept])
        used = itertools.chain(*_families(directions, kept))
        splits = [(d, split, clean[folder_of(d.pair), split]) for d in used for split in SHARDED]
        tokens = tokenize_all(work, config, splits, self._write_models(models))
        trains = {d.folder: tokens[d.folder, "train"].data for d in kept}
        reasons |= {n: _reason(t.pairs, t.removed) for n, t in trains.items() if not t.examples}
        kept = _rest(directions, reasons)
        if reasons:
            languages = {d.pair.language for d in kept}
            known = [pair for pair in pairs if pair.language in languages]
            # Those who compare a corpus with a run know only the languages of the run.
            facts |= {"left_out": reasons, **_prints(pairs, known, texts)}

        folder = self.partial / "data"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        test_pairs = {d.folder: SplitText.of(d.pair, "test", texts).total for d in directions}
        _make_folder(folder, _families(directions, kept), test_pairs, models, tokens, facts)
        cleaned = [clean[folder_of(pair), "train"] for pair in pairs]
        alarms = report.write_report([text.to_report() for text in cleaned], folder)
        for alarm in (*alarms, *_alarms(trains, config)):
            self._console.print(f"warning: {alarm}")
        outputs.replace_folder(folder, self._out)

    def _choose(self, texts: Texts, notes: list[str]) -> list[CorpusPair]:
        return choose(
            self._config, self._pairs, lambda p: SplitText.of(p, "train", texts).total, notes
        )

    def _models(self, pairs: Sequence[CorpusPair]) -> dict[str, bytes] | None:
        """Returns the existing vocabularies by side; None if they must be trained."""
        folder = self._options.vocabulary_of
        if self._vocabularies is None or folder is None:
            return None
        languages = [(d.source, d.target) for d in all_directions(self._config, pairs)]
        return vocabularies.tagged_models(self._config, self._vocabularies, folder, languages)

    def _facts(self, pairs: Sequence[CorpusPair], texts: Texts) -> dict[str, Any]:
        """Returns the facts of the manifest; `key` is the same if prepared data is up to date."""
        facts = {**_prints(pairs, pairs, texts), "data": self._config.shaping()}
        subsets = facts.get("subset_fingerprints", ())
        models = self._models(pairs) or {}
        digests = {side: hashlib.sha256(content).hexdigest() for side, content in models.items()}
        # The order of the corpora decides which of equal pairs stays.
        key = key_of(_VERSION, facts, filters.identity(self._options.cleaning), digests, *subsets)
        settings = {"direction": self._config.direction, "temperature": self._config.temperature}
        return facts | settings | {"key": key}

    def _write_models(self, models: Mapping[str, bytes]) -> list[Path]:
        # The name tells contents apart, so that the keys of units do.
        digest = hashlib.sha256(b"".join(models[side] for side in SIDES)).hexdigest()
        folder = self.partial / "models" / digest[:16]
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{side}.model" for side in SIDES]
        for side, path in zip(SIDES, paths, strict=True):
            files.write(path, models[side])
        return paths


def _prints(
    pairs: Sequence[CorpusPair], read: Sequence[CorpusPair], texts: Texts
) -> dict[str, Any]:
    """Returns the fingerprints of the corpora of `pairs`, of which only those that are `read` count."""
    prints = {
        subset: inputs.fingerprint_of([p for p in read if p.subset == subset], texts)
        for subset in dict.fromkeys(["", *(pair.subset for pair in pairs)])
    }
    facts = {"corpus_fingerprint": prints.pop("")}
    return facts | ({"subset_fingerprints": prints} if prints else {})


def _make_folder(
    path: Path,
    families: Sequence[Sequence[Direction]],
    test_pairs: Mapping[str, int],
    models: Mapping[str, bytes],
    tokens: Mapping[tuple[str, str], tokenizing.Tokens],
    facts: Mapping[str, Any],
) -> None:
    """Fills an empty folder with hard links of the shards, the vocabularies and the manifest."""
    pairs, checksums = [], {}
    for family in families:
        d, splits = family[0], {"test": SplitData(sum(test_pairs[e.folder] for e in family))}
        for split in SHARDED:
            own = max((tokens[e.folder, split] for e in family), key=lambda t: t.data.examples)
            splits[split] = own.data
            for (name, *_), (place, digest) in zip(own.data.files, own.files, strict=True):
                manifest.link(place, path / d.folder / name)
                checksums[f"{d.folder}/{name}"] = digest
        pairs.append(PreparedPair(d.source, d.target, d.pair.language, splits, d.pair.subset))
    for side, name in zip(SIDES, VOCABULARIES, strict=True):
        files.write(path / name, models[side])
    sizes = {f"{side}_vocabulary": vocabulary_of(models[side]).size for side in SIDES}
    pairs.sort(key=lambda pair: (-pair.splits["train"].examples, pair.folder))
    write_manifest(path, pairs, {**facts, **sizes}, checksums)


def _families(directions: Sequence[Direction], kept: Sequence[Direction]) -> list[list[Direction]]:
    """Returns each direction that is kept, and after the first of its languages those left out.

    A corpus without training text may have the dev and test text of these languages.
    """
    families = {d.folder: [d] for d in kept}
    first = {(d.source, d.target): families[d.folder] for d in reversed(kept)}
    for d in directions:
        if d.folder not in families:
            first.get((d.source, d.target), []).append(d)
    return [*families.values()]


def _reason(pairs: int, removed: Mapping[str, int]) -> str:
    if not pairs:
        return "there is no training text"
    counts = ", ".join(f"{name} {count:,}" for name, count in removed.items())
    return f"none of its {pairs:,} training pairs is left ({counts})"


def _rest(directions: Sequence[Direction], reasons: Mapping[str, str]) -> list[Direction]:
    """Returns the directions that are not left out. If there is none, the error has three reasons."""
    kept = [direction for direction in directions if direction.folder not in reasons]
    if not kept:
        listed = "; ".join(f"{name}: {reason}" for name, reason in list(reasons.items())[:3])
        raise UserError(
            f"no training pair is left ({listed}). Add text, turn filters off with Cleaning.without or "
            "Cleaning.duplicates, or raise Data.source_length and Data.target_length."
        )
    return kept


def _alarms(trains: Mapping[str, SplitData], config: Data) -> Iterator[str]:
    lost = {name: data.removed.get(TOO_LONG, 0) for name, data in trains.items()}
    clean = {name: data.examples + lost[name] for name, data in trains.items()}
    worst = max(trains, key=lambda name: lost[name] / max(1, clean[name]))
    all_lost, all_clean = sum(lost.values()), sum(clean.values())
    if all_lost > report.MUCH_TOO_LONG * all_clean or lost[worst] > report.TOO_MUCH * clean[worst]:
        yield (
            f"{all_lost:,} of {all_clean:,} training pairs are longer than Data.source_length = "
            f"{config.source_length} or Data.target_length = {config.target_length} tokens and are left "
            f"out, most of {worst} ({lost[worst] / clean[worst]:.0%}). Raise both lengths, or split the "
            "text into sentences."
        )
    for name, data in trains.items():
        if data.spelled_tokens > MUCH_FALLBACK * data.tokens:
            yield (
                f"{data.spelled_tokens / data.tokens:.1%} of the tokens of {name} are single bytes: "
                "the vocabularies have no pieces for its characters. New ones fit better with a larger "
                "Data.source_vocabulary, Data.target_vocabulary, Data.character_coverage or "
                "Data.vocabulary_temperature."
            )
