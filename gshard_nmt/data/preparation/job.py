"""One preparation: which text is needed, which work can be taken from earlier data, and the folder made.

`Job` runs the stages. `plan.py` says what is to be made, and `assembly.py` puts it together.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from gshard_nmt import files, outputs
from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation import inputs, left_out
from gshard_nmt.data.preparation.assembly import SHARDED, NewFolder, reusable
from gshard_nmt.data.preparation.cleaning import CleanText
from gshard_nmt.data.preparation.inputs import Text
from gshard_nmt.data.preparation.plan import Models, Plan
from gshard_nmt.data.preparation.progress import StageProgress
from gshard_nmt.data.preparation.stages import Stages, Tokens
from gshard_nmt.data.preparation.texts import Direction, LanguageText, SplitText, folder_of
from gshard_nmt.data.preparation.vocabularies import Sample
from gshard_nmt.data.preparation.work import WorkFolder, key_of
from gshard_nmt.data.sets.corpus import SPLITS, CorpusPair, Input
from gshard_nmt.data.sets.directions import choose
from gshard_nmt.data.sets.manifest import (
    VOCABULARIES,
    checksum,
)
from gshard_nmt.data.text.vocabulary import Vocabulary
from gshard_nmt.data.text.vocabulary_pair import (
    SIDES,
    existing_models,
    existing_vocabularies,
    specs_of,
)
from gshard_nmt.data.text.vocabulary_report import LINES, Fit
from gshard_nmt.data.worker_pool import DaskPool, WorkerPool, usable_cpus
from gshard_nmt.errors import UserError


@dataclasses.dataclass(frozen=True)
class Options:
    """How text is prepared, besides the settings of data.

    Attributes:
      workers: the number of processes; 0 means one for each CPU that this process may use.
      vocabulary_of: prepared data or a run folder, whose vocabularies are used; None to train them.
      cleaning: the settings of cleaning.
      scheduler: the address of a Dask scheduler, whose workers then do the work; "" for processes.
      keeps_work: whether finished work stays if the preparation fails, so that the next start goes on.
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
        """Checks the existing vocabularies, and does nothing else yet.

        Args:
          config: the settings.
          pairs: the pairs of the corpus that may be prepared.
          out: the folder to make.
          old: the manifest of the data that `out` has already; None if there is none.
          options: how to do it.
          console: where messages go.

        Raises:
          UserError: an existing vocabulary is not there, or it does not fit.
        """
        if options.vocabulary_of:
            config = _with_vocabularies_of(config, options.vocabulary_of)
        # Reading a large corpus takes hours, so a wrong name is an error before it.
        existing_models(config)
        self._config, self._pairs, self._out = config, pairs, out
        self._old, self._options, self._console = old, options, console
        self._partial = partial_folder(out)
        self._watch = StageProgress(console)
        self._pool = WorkerPool(options.workers or usable_cpus())
        if options.scheduler:
            self._pool = DaskPool(options.scheduler, self._partial)
        self._work = WorkFolder(self._partial, self._pool)
        self._stages = Stages(config, options.cleaning, self._work, self._watch)
        self._cleaner = self._stages.cleaner

    def is_up_to_date(self) -> bool:
        """Returns whether the folder is up to date, as far as is known without reading the text."""
        known = self._known()
        if self._old is None or len(known) < len(self._inputs()):
            return False
        if not self._is_made(self._plan(known)):
            return False
        self._work.remove_rest()
        return True

    def run(self) -> None:
        """Makes the folder. Finished work stays if it fails, and the next start goes on from there.

        With `Options.keeps_work = False` nothing stays.
        """
        with self._work:
            try:
                with self._pool:
                    self._make()
            except BaseException as error:
                self._keep_work(error)
                raise
            finally:
                self._watch.stop()

    def _keep_work(self, error: BaseException) -> None:
        """Says where finished work is, or removes the work folder if there is none."""
        is_of_use = self._options.keeps_work and self._work.has_results()
        if not is_of_use:
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

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False)

    def _inputs(self) -> list[Input]:
        return [i for pair in self._pairs for split in SPLITS for i in pair.inputs(split)]

    def _known(self) -> dict[str, Text]:
        """Returns the inputs that were read in an earlier run and have not changed."""
        known = {inputs.name_of(item): inputs.known_text(item) for item in self._inputs()}
        return {name: text for name, text in known.items() if text is not None}

    def _plan(self, texts: Mapping[str, Text]) -> Plan:
        rows = {folder_of(p): SplitText.of(p, "train", texts).total for p in self._pairs}
        notes: list[str] = []
        chosen = choose(self._config, self._pairs, lambda pair: rows[folder_of(pair)], notes)
        return Plan(self._config, chosen, texts, notes)

    def _is_made(self, plan: Plan) -> bool:
        """Returns whether the old data is what the plan would make."""
        models = self._models(plan)
        if self._old is None or models is None:
            return False
        facts = plan.facts() | {"keys": self._keys(plan, models)}
        return all(self._old.get(name) == value for name, value in facts.items())

    def _keys(self, plan: Plan, models: Models) -> dict[str, str]:
        vocabulary = plan.vocabulary_key(self._cleaner)
        return {"vocabulary": vocabulary, **plan.direction_keys(self._cleaner, models)}

    def _models(self, plan: Plan) -> Models | None:
        """Returns the vocabularies if none has to be trained, else None.

        Raises:
          UserError: an existing model does not fit.
        """
        models = existing_vocabularies(self._config, plan.languages_of_directions())
        if self._config.vocabulary == "joint" and "source" in models:
            models["target"] = models["source"]
        if len(models) == len(SIDES):
            return models
        old = self._old or {}
        if old.get("keys", {}).get("vocabulary") != plan.vocabulary_key(self._cleaner):
            return None
        for side, name in zip(SIDES, VOCABULARIES, strict=True):
            file = self._out / name
            if not file.is_file() or checksum(file) != old.get("checksums", {}).get(name):
                return None
            models[side] = file.read_bytes()
        return models

    def _make(self) -> None:
        """Runs the stages and puts the new folder in its place."""
        known = self._known()
        unknown = [item for item in self._inputs() if inputs.name_of(item) not in known]
        plan = self._plan(known | self._read(unknown))
        if self._is_made(plan):
            self._say(f"{self._out} is up to date")
            self._work.remove()
            return
        for note in plan.notes:
            self._say(f"note: {note}.")
        models = self._models(plan)
        reused: set[str] = set()
        reasons: left_out.Reasons = {}
        if models is None:
            self._explain(plan)
        else:
            keys = plan.direction_keys(self._cleaner, models)
            reused = reusable(self._out, self._old, keys)
            reasons = left_out.from_manifest(self._old, keys)
            if reused:
                self._say(f"taken from the old data: {', '.join(sorted(reused))}")
        new = [d for d in plan.directions if d.folder not in {*reused, *reasons}]
        clean = self._clean(plan, new)
        reasons |= left_out.after_cleaning(new, clean)
        left_out.check_rest(plan.directions, reasons)
        new = [d for d in new if d.folder not in reasons]
        texts = [(d, clean[folder_of(d.pair), "train"]) for d in new]
        samples = self._stages.sample(texts, LINES if models else 0)
        if models is None:
            models = self._train(plan, samples, sum(text.rows for _, text in texts))
        places = self._write_models(models)
        tokens, fits = self._tokenize(new, clean, places, samples)
        reasons |= left_out.after_tokenizing(new, tokens, self._config)
        left_out.check_rest(plan.directions, reasons)
        self._finish(plan, reused, reasons, clean, tokens, models, fits)

    def _read(self, items: Sequence[Input]) -> dict[str, Text]:
        """Returns the text of each input by its name, and says which text was repaired."""
        texts = self._stages.read(items)
        for name, text in texts.items():
            if text.repaired:
                self._say(
                    f"note: {text.repaired:,} of {text.total:,} rows of {name} have half of a surrogate "
                    "pair, such as a cut emoji. U+FFFD is in its place, and the filter 'encoding' drops "
                    "such training pairs."
                )
        return texts

    def _train(self, plan: Plan, samples: Sequence[Sample], rows: int) -> Models:
        """Trains the vocabularies that do not exist on samples of `rows` lines, and returns all."""
        models = existing_vocabularies(self._config, plan.languages_of_directions())
        # A language that is left out gets no tag.
        specs = specs_of(self._config, [(sample.source, sample.target) for sample in samples])
        lines = min(sum(sample.limit for sample in samples), rows)
        what = f"{lines:,} lines of each side"
        if self._config.vocabulary == "joint":
            what = f"{2 * lines:,} lines of both sides"
        self._say(f"training the vocabularies on at most {what}")
        trained = self._stages.train(samples, specs, plan.vocabulary_key(self._cleaner))
        models |= {side: path.read_bytes() for side, path in trained.items()}
        if self._config.vocabulary == "joint":
            models["target"] = models["source"]
        return models

    def _write_models(self, models: Models) -> dict[str, Path]:
        """Writes the vocabularies into the work folder, for the processes that tokenize."""
        folder = self._partial / "models"
        folder.mkdir(exist_ok=True)
        paths = {side: folder / f"{side}.model" for side in SIDES}
        for side, path in paths.items():
            if not path.is_file() or path.read_bytes() != models[side]:
                files.write(path, models[side])
        return paths

    def _explain(self, plan: Plan) -> None:
        """Says why everything is tokenized again, if there is old data."""
        if self._old is None:
            return
        reasons = []
        texts, old_texts = plan.text_keys(self._cleaner), self._old.get("texts", {})
        changed = [name for name, key in texts.items() if old_texts.get(name, key) != key]
        for what, names in (
            ("new text of", [name for name in texts if name not in old_texts]),
            ("no more text of", [name for name in old_texts if name not in texts]),
            ("changed text or cleaning of", changed),
        ):
            if names:
                reasons.append(f"{what} {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}")
        # Data that was prepared before a setting was there has its default.
        old = Data().shaping() | self._old["data"]
        settings = [
            f"Data.{name}" for name, value in self._config.shaping().items() if old[name] != value
        ]
        if settings:
            reasons.append(f"another {', '.join(settings)}")
        self._say(
            f"The vocabularies are trained again, so everything is tokenized again: "
            f"{'; '.join(reasons) or 'they were made in another way'}. To keep the vocabularies of "
            f"{self._out}, give --vocabulary_of {self._out}."
        )

    def _clean(self, plan: Plan, new: Sequence[Direction]) -> dict[tuple[str, str], CleanText]:
        """Returns the clean text of each pair and split that the new directions need."""
        names = {folder_of(d.pair) for d in new}
        needed = [t for t in plan.languages() if names & {folder_of(pair) for pair in t.pairs}]
        pairs = [pair for languages in needed for pair in languages.pairs]
        items = [i for pair in pairs for split in SPLITS for i in pair.inputs(split)]
        missing = [i for i in items if plan.texts[inputs.name_of(i)].folder is None]
        texts = {**plan.texts, **(self._read(missing) if missing else {})}
        return self._stages.cleaner.clean(
            [LanguageText.of(languages.pairs, texts) for languages in needed]
        )

    def _tokenize(
        self,
        new: Sequence[Direction],
        clean: Mapping[tuple[str, str], CleanText],
        models: Mapping[str, Path],
        samples: Sequence[Sample],
    ) -> tuple[dict[tuple[str, str], Tokens], list[Fit]]:
        """Returns the shards of each new direction by its folder and the split, and the report."""
        vocabularies = [Vocabulary.load(models[side]) for side in SIDES]
        texts, keys = [], []
        for d in new:
            key = key_of([v.encoding_key(d.source, d.target, d.pair.subset) for v in vocabularies])
            for split in SHARDED:
                if text := clean.get((folder_of(d.pair), split)):
                    texts.append((d, split, text))
                    keys.append(key)
        tokens, fits = self._stages.tokenize(texts, models, keys, samples)
        return {(d.folder, s): t for (d, s, _), t in zip(texts, tokens, strict=True)}, fits

    def _finish(
        self,
        plan: Plan,
        reused: set[str],
        reasons: left_out.Reasons,
        clean: Mapping[tuple[str, str], CleanText],
        tokens: Mapping[tuple[str, str], Tokens],
        models: Models,
        fits: Sequence[Fit],
    ) -> None:
        """Makes the folder of prepared data, and gives it its name."""
        folder = NewFolder(self._partial / "data", self._out, self._old)
        for direction in plan.directions:
            if direction.folder in reused:
                folder.take_over(direction)
            elif direction.folder not in reasons:
                folder.put(plan, direction, tokens)
        sizes = folder.put_vocabularies(models)
        folder.finish(
            plan.facts()
            | {
                "direction": self._config.direction,
                "source_vocabulary": sizes[0],
                "target_vocabulary": sizes[1],
                "temperature": self._config.temperature,
                "keys": self._keys(plan, models),
                "texts": plan.text_keys(self._cleaner),
            }
            | ({"left_out": reasons} if reasons else {})
        )
        cleaned = [clean[key] for key in clean if key[1] == "train"]
        names = {folder_of(pair) for pair in plan.pairs}
        alarms = folder.report_cleaning(cleaned, names)
        for alarm in (*alarms, *left_out.too_long(tokens, self._config)):
            self._say(f"warning: {alarm}")
        folder.report_vocabularies(sizes, fits).show(self._console)
        # If the program dies after the renaming, the next one only has to remove the work folder.
        self._work.mark_complete()
        outputs.replace_folder(folder.path, self._out)
        self._work.remove()


def _with_vocabularies_of(config: Data, folder: Path) -> Data:
    """Returns the config with the vocabularies of prepared data or of a run folder."""
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
