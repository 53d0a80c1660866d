"""One preparation: which text is needed, which work can be taken from earlier data, and the folder made.

A row of the corpus goes this way, and each arrow is a stage of units in the work folder (`work.py`):

    file of the corpus -> chunk (`inputs`) -> clean chunk (`filtering`) -> shard (`tokenizing`)
                                                  -> sample -> vocabulary (`vocabularies`) -^

`plan.py` says what is to be made, and `assembly.py` puts it together.
"""

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from gshard_nmt import files, outputs
from gshard_nmt.data.cleaning import registry
from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation import assembly, inputs
from gshard_nmt.data.preparation.assembly import SHARDED, Reasons
from gshard_nmt.data.preparation.filtering import CleanTexts, clean_all
from gshard_nmt.data.preparation.inputs import Text
from gshard_nmt.data.preparation.plan import Direction, Models, Plan, folder_of
from gshard_nmt.data.preparation.tokenizing import tokenize_all
from gshard_nmt.data.preparation.vocabularies import Sample, sample_all, train_all
from gshard_nmt.data.preparation.vocabulary_specs import (
    existing_models,
    existing_vocabularies,
    specs_of,
)
from gshard_nmt.data.preparation.work import WorkFolder
from gshard_nmt.data.sets.corpus import SPLITS, CorpusPair, Input
from gshard_nmt.data.sets.directions import choose
from gshard_nmt.data.sets.examples import SIDES
from gshard_nmt.data.sets.manifest import VOCABULARIES, checksum
from gshard_nmt.data.worker_pool import DaskPool, WorkerPool, usable_cpus
from gshard_nmt.errors import UserError


@dataclasses.dataclass(frozen=True)
class Options:
    """How text is prepared, besides the settings of data.

    With 0 `workers` there is one process for each CPU. `vocabulary_of` is prepared data or a run folder,
    whose vocabularies are used. `scheduler` is the address of a Dask scheduler. With `keeps_work`
    finished work stays if the preparation fails.
    """

    workers: int = 0
    vocabulary_of: Path | None = None
    cleaning: Cleaning = dataclasses.field(default_factory=Cleaning)
    scheduler: str = ""
    keeps_work: bool = True


class Job:
    """Makes a folder of prepared data."""

    def __init__(
        self,
        config: Data,
        pairs: Sequence[CorpusPair],
        out: Path,
        old: Mapping[str, Any] | None,
        options: Options,
        console: Console,
    ) -> None:
        """Checks the existing vocabularies and the filters, and does nothing else yet.

        `old` is the manifest of the data that `out` has already; None if there is none.

        Raises:
          UserError: an existing vocabulary is not there or does not fit, or a filter is unknown.
        """
        if options.vocabulary_of:
            config = _with_vocabularies_of(config, options.vocabulary_of)
        # Reading a large corpus takes hours, so a wrong name is an error before it.
        existing_models(config)
        registry.identity(options.cleaning)
        self._config, self._pairs, self._out = config, pairs, out
        self._old, self._options, self._console = old or {}, options, console
        self._partial = partial_folder(out)
        self._pool = WorkerPool(options.workers or usable_cpus())
        if options.scheduler:
            self._pool = DaskPool(options.scheduler, self._partial)
        self._work = WorkFolder(self._partial, self._pool, console)

    def is_up_to_date(self) -> bool:
        """Returns whether the folder is up to date, as far as is known without reading the text."""
        items = _inputs_of(self._pairs)
        known = _known(items)
        if not self._old or len(known) < len(items) or not self._is_made(self._plan(known)):
            return False
        self._work.remove_rest()
        return True

    def run(self) -> None:
        """Makes the folder. With `Options.keeps_work` the next start goes on where this one failed."""
        with self._work:
            try:
                with self._pool:
                    self._make()
            except BaseException as error:
                self._keep_work(error)
                raise

    def _keep_work(self, error: BaseException) -> None:
        if not (self._options.keeps_work and self._work.has_results()):
            self._work.remove()
            return
        note = f"Finished work is in {self._partial}; the same command goes on from there."
        if isinstance(error, UserError):
            # The same command would end with the same error.
            note = f"Finished work is in {self._partial}, and is not done again."
        if isinstance(error, KeyboardInterrupt) and not error.args:
            error.args = (f"interrupted. {note}",)
        else:
            error.add_note(note)

    def _make(self) -> None:
        config, work = self._config, self._work
        items = _inputs_of(self._pairs)
        known = _known(items)
        plan = self._plan(known | self._read([i for i in items if inputs.name_of(i) not in known]))
        if self._is_made(plan):
            self._say(f"{self._out} is up to date")
            work.remove()
            return
        for note in plan.notes:
            self._say(f"note: {note}.")
        models = self._models(plan)
        reused: set[str] = set()
        reasons: Reasons = {}
        if models is not None:
            reused, reasons = assembly.reusable(self._out, self._old, plan.keys(models))
            if reused:
                self._say(f"taken from the old data: {', '.join(sorted(reused))}")
        elif self._old:
            self._say(
                "The text or a setting has changed, so the vocabularies are trained again and everything "
                f"is tokenized again. To keep the vocabularies of {self._out}, give --vocabulary_of "
                f"{self._out}."
            )
        new = [d for d in plan.directions if d.folder not in {*reused, *reasons}]
        clean = self._clean(plan, new)
        reasons |= assembly.without_clean_text(new, clean)
        assembly.check_rest(plan.directions, reasons)
        new = [d for d in new if d.folder not in reasons]
        texts = [(d, clean[folder_of(d.pair), "train"]) for d in new]
        if models is None:
            samples = sample_all(work, config, texts)
            models = self._train(plan, samples, sum(text.rows for _, text in texts))
        splits = [
            (d, split, text)
            for d in new
            for split in SHARDED
            if (text := clean.get((folder_of(d.pair), split)))
        ]
        tokens = tokenize_all(work, config, splits, self._write_models(models))
        reasons |= assembly.without_examples(new, tokens, config)
        assembly.check_rest(plan.directions, reasons)

        folder = self._partial / "data"
        assembly.make_folder(folder, plan, models, tokens, reasons, self._out, self._old)
        cleaned = [text for (_, split), text in clean.items() if split == "train"]
        names = {folder_of(pair) for pair in plan.pairs}
        alarms = assembly.report_cleaning(folder, cleaned, names, self._out)
        for alarm in (*alarms, *assembly.too_long(tokens, config)):
            self._say(f"warning: {alarm}")
        # If the program dies after the renaming, the next one only has to remove the work folder.
        work.mark_complete()
        outputs.replace_folder(folder, self._out)
        work.remove()

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False)

    def _read(self, items: Sequence[Input]) -> dict[str, Text]:
        """Returns the text of each input by its name."""
        return inputs.read_all(self._work, items)

    def _plan(self, texts: Mapping[str, Text]) -> Plan:
        every = Plan(self._config, self._options.cleaning, self._pairs, texts)
        notes: list[str] = []
        chosen = choose(self._config, self._pairs, lambda p: every.text(p, "train").total, notes)
        return dataclasses.replace(every, pairs=chosen, notes=notes)

    def _is_made(self, plan: Plan) -> bool:
        models = self._models(plan)
        if not self._old or models is None:
            return False
        facts = plan.facts() | {"keys": plan.keys(models)}
        return all(self._old.get(name) == value for name, value in facts.items())

    def _models(self, plan: Plan) -> Models | None:
        """Returns the vocabularies if none has to be trained, else None."""
        models = existing_vocabularies(self._config, plan.languages_of_directions)
        if len(models) == len(SIDES):
            return models
        if self._old.get("keys", {}).get("vocabulary") != plan.vocabulary_key:
            return None
        for side, name in zip(SIDES, VOCABULARIES, strict=True):
            file = self._out / name
            if not file.is_file() or checksum(file) != self._old.get("checksums", {}).get(name):
                return None
            models[side] = file.read_bytes()
        return models

    def _clean(self, plan: Plan, new: Sequence[Direction]) -> CleanTexts:
        names = {folder_of(d.pair) for d in new}
        pairs = [t.pair for own in plan.languages() if names & set(own.names) for t in own.train]
        items = _inputs_of(pairs)
        unread = [item for item in items if plan.texts[inputs.name_of(item)].folder is None]
        texts = {**plan.texts, **(self._read(unread) if unread else {})}
        plan = dataclasses.replace(plan, texts=texts)
        needed = [own for own in plan.languages() if names & set(own.names)]
        return clean_all(self._work, plan, needed)

    def _train(self, plan: Plan, samples: Sequence[Sample], rows: int) -> Models:
        """Trains the vocabularies that do not exist on samples of `rows` lines, and returns all."""
        is_joint = self._config.vocabulary == "joint"
        # A language that is left out gets no tag.
        specs = specs_of(self._config, [(sample.source, sample.target) for sample in samples])
        lines = min(sum(sample.limit for sample in samples), rows)
        what = f"{2 * lines:,} lines of both sides" if is_joint else f"{lines:,} lines of each side"
        self._say(f"training the vocabularies on at most {what}")
        models = existing_vocabularies(self._config, plan.languages_of_directions)
        models |= train_all(self._work, self._config, samples, specs)
        return models | {"target": models["source"]} if is_joint else models

    def _write_models(self, models: Models) -> dict[str, Path]:
        # The name tells contents apart, so that the keys of units do.
        digest = hashlib.sha256(b"".join(models[side] for side in SIDES)).hexdigest()
        folder = self._partial / "models" / digest[:16]
        folder.mkdir(parents=True, exist_ok=True)
        paths = {side: folder / f"{side}.model" for side in SIDES}
        for side, path in paths.items():
            if not path.is_file() or path.read_bytes() != models[side]:
                files.write(path, models[side])
        return paths


def _inputs_of(pairs: Sequence[CorpusPair]) -> list[Input]:
    return [item for pair in pairs for split in SPLITS for item in pair.inputs(split)]


def _known(items: Sequence[Input]) -> dict[str, Text]:
    """Returns the inputs that were read in an earlier run and have not changed."""
    known = {inputs.name_of(item): inputs.known_text(item) for item in items}
    return {name: text for name, text in known.items() if text is not None}


def _with_vocabularies_of(config: Data, folder: Path) -> Data:
    source, target = (folder / name for name in VOCABULARIES)
    for file in (source, target):
        if not file.is_file():
            raise UserError(
                f"--vocabulary_of {folder} has no {file.name}, so it is neither prepared data nor a run "
                "folder. Give a folder that gshard-data prepare, gshard-train or gshard-export made."
            )
    is_joint = config.vocabulary == "joint"
    return dataclasses.replace(
        config, source_model=str(source), target_model="" if is_joint else str(target)
    )


def partial_folder(out: Path) -> Path:
    """Returns the folder that has the finished work while `out` is being made."""
    place = Path(os.path.realpath(out))
    return place.with_name(f"{place.name}.partial")
