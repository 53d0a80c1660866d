"""gshard-train --baselines_of: trains the bilingual baselines of a multilingual run.

With --until converged, each language has a small search. Each of its candidates is trained until dev BLEU
does not improve any more. The best one is kept, and trains on while its learning rate falls to 0. With
--until budget, each language has one model, which sees the same number of tokens of its language as the
multilingual run did.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from gshard_nmt import paths
from gshard_nmt.data.schedule import of_part
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.errors import UserError
from gshard_nmt.run import baseline_files as files
from gshard_nmt.run.baseline_search import AS_CONFIG, Candidate, Request, best
from gshard_nmt.run.bucket_lock import run_lock
from gshard_nmt.run.folder import CANDIDATES, RunFolder
from gshard_nmt.run.log.clock import TimeLimit
from gshard_nmt.settings.config import Config
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.processes import ALONE, Processes

Train = Callable[[Config, Path, Path, TimeLimit], bool]
"""(config, prepared data, run folder, time limit) -> whether the run is finished, as `train.train`."""

Record = dict[str, Any]
"""The contents of baseline.json."""

EACH = "--max_minutes_each"
_TIME_IS_OVER = "the minutes of --max_minutes are over; the same command goes on from here"


def train_baselines(
    train: Train,
    config: Config,
    data: Path,
    multilingual: Path,
    workdir: Path,
    request: Request,
    processes: Processes = ALONE,
    limit: TimeLimit | None = None,
) -> bool:
    """Trains one bilingual model, or one search of models, for each language of a multilingual run.

    Args:
      train: trains one model.
      config: the config of the bilingual models. Each model has its own Data.languages, limit of tokens,
        and in a search its own size and dropout. It has the weights of Data.schedule that matter to its
        language.
      data: the prepared data of the multilingual run.
      multilingual: the run folder of the multilingual run.
      workdir: gets one run folder for each language; run/baseline_files.py lists its files. Finished
        work is used again, and unfinished work is resumed.
      request: what the user asks.
      processes: as for `train`.
      limit: the time that this start may take, for all models together.

    Returns:
      Whether all models are finished. They are not if the time was over before.

    Raises:
      UserError: the multilingual run has not been trained, or it does not fit the request.
    """
    tokens = RunFolder(multilingual).budget().get("tokens_by_language")
    if not tokens:
        raise UserError(
            f"{multilingual} has no budget.json; train it with gshard-train before its baselines."
        )
    languages = request.languages_of(tokens)
    prepared = PreparedData.open(data)
    # A wrong name in the schedule is found here, because each model has only a part of the schedule.
    prepared.pairs_of(config.data)
    if request.searches:
        _check_search(config, prepared, languages, workdir)
    if processes.is_first:
        workdir.mkdir(parents=True, exist_ok=True)
        facts = {"of": str(multilingual), "until": request.until, "tokens_by_language": tokens}
        RunFolder(workdir).write_json("baselines.json", facts)
    # It decides where the programs of all processes are.
    RunFolder(workdir).wait_for("baselines.json")
    if processes.count > 1:
        runtime.start(config.mesh, workdir / "programs", processes)  # connects the processes
    console = Console(stderr=True, highlight=False, markup=False, quiet=not processes.is_first)
    trainer = _Trainer(train, config, prepared, workdir, request, processes, limit or TimeLimit())
    for number, language in enumerate(languages, 1):
        trainer.say = _Speaker(console, f"language {number} of {len(languages)}, {language}: ")
        if not trainer.train_language(language, tokens[language]):
            return False
    return True


def _check_search(
    config: Config, prepared: PreparedData, languages: Sequence[str], workdir: Path
) -> None:
    """Checks that each model of a search ends when dev BLEU does not improve, and can be scored."""
    train = config.train
    if not (train.patience and train.dev_every and train.keep_best) or not train.metric.startswith(
        "dev_bleu"
    ):
        raise UserError(
            f"--until converged with Train.patience = {train.patience}, Train.dev_every = "
            f"{train.dev_every}, Train.keep_best = {train.keep_best} and the metric {train.metric}: a "
            "converged baseline ends when its dev BLEU does not improve, so it needs these settings and "
            "Train.bleu_sentences. Use --config bilingual, set them, or give --until budget."
        )
    if paths.is_url(workdir):
        raise UserError(
            f"--until converged with --workdir {workdir}: the search renames folders, which a bucket "
            "cannot do. Give a folder of a file system, or --until budget."
        )
    for language in languages:
        pairs = prepared.pairs_of(config.replace(data={"languages": (language,)}).data)
        if not any(pair.splits["dev"].examples for pair in pairs):
            raise UserError(
                f"--until converged: {prepared.folder} has no dev text of {language}, so its training "
                "cannot end early. Prepare dev text, leave the language out with --languages, or give "
                "--until budget."
            )


@dataclasses.dataclass(frozen=True)
class _Speaker:
    """Prints progress lines with a prefix."""

    console: Console
    prefix: str

    def __call__(self, text: str) -> None:
        self.console.print(f"{self.prefix}{text}", markup=False, soft_wrap=True)


@dataclasses.dataclass(frozen=True)
class _Model:
    """A bilingual model to train.

    Attributes:
      language: BCP 47 tag.
      candidate: its size, dropout and vocabulary.
      config: its config.
      data: its prepared data.
      key: see `content_key`.
      limits: see `limits_of`.
    """

    language: str
    candidate: Candidate
    config: Config
    data: PreparedData
    key: str
    limits: Mapping[str, float]

    def is_in(self, record: Record | None) -> bool:
        """Returns whether a record says that this model is finished.

        One that has cooled down is, whatever its limits of steps, tokens and minutes are.
        """
        if record is None or record["key"] != self.key:
            return False
        if "cooldown" in record:
            return bool(record["limits"]["patience"] == self.limits["patience"])
        return bool(record["limits"] == self.limits)


@dataclasses.dataclass
class _Trainer:
    """Trains the models of each language.

    Process 0 reads and moves the files, and tells the other processes what it has decided. A network file
    system may show them an older state.
    """

    train: Train
    config: Config
    prepared: PreparedData
    workdir: Path
    request: Request
    processes: Processes
    limit: TimeLimit
    say: Callable[[str], None] = print

    def train_language(self, language: str, tokens: int) -> bool:
        """Trains the models of a language, and puts the best one in place.

        Args:
          language: BCP 47 tag.
          tokens: the tokens that the multilingual run saw of it.

        Returns:
          Whether the language is finished. It is not if the time is over.
        """
        if not self.request.searches:
            candidate = Candidate(AS_CONFIG, None, self._vocabularies(language)[0])
            return self._train_to_budget(self._model(language, candidate, tokens))
        folder = self.workdir / CANDIDATES / language
        if self.processes.is_first:
            folder.mkdir(parents=True, exist_ok=True)
        with run_lock(folder, self.processes.is_first, self.say):
            return self._search(language)

    def _train_to_budget(self, model: _Model) -> bool:
        place = self.workdir / model.language

        def make_room() -> None:
            record = files.read_record(place)
            if record and record["key"] != model.key and not paths.is_url(self.workdir):
                self.say("its data or its settings have changed; the earlier model is put aside")
                files.put_aside(self.workdir, model.language)

        self.processes.from_first(make_room)
        return self._result(model, place) is not None

    def _search(self, language: str) -> bool:
        pairs = self._train_pairs(language)
        space, vocabularies = self.request.space, self._vocabularies(language)
        folder = self.workdir / CANDIDATES / language
        results: dict[Candidate, Record] = {}
        scores: dict[Candidate, float | None] = {}
        count = space.length(pairs, vocabularies)
        while candidate := space.proposal(pairs, vocabularies, scores):
            self.say(f"candidate {len(results) + 1} of {count}, {candidate.name}")
            record = self._candidate_result(self._model(language, candidate))
            if record is None:
                return False
            results[candidate], scores[candidate] = record, files.searched_score(record)
            self.processes.from_first(lambda: files.write_search(folder, list(results.values())))
        winner = self._model(language, best(list(results), scores))
        return self._place(winner, results)

    def _candidate_result(self, model: _Model) -> Record | None:
        """Returns the record of a candidate, of now or of an earlier start; None at the limit."""
        known = self.processes.from_first(lambda: self._known(model))
        if known:
            self.say(f"{model.candidate.name} is finished: nothing to do")
            return dict(known)
        return self._result(model, self._folder(model))

    def _known(self, model: _Model) -> Record | None:
        """Returns the record of a model if an earlier start has finished it."""
        places = (self.workdir / model.language, self.workdir / CANDIDATES / model.language)
        records = (record for place in places for record in files.read_search(place))
        return next((record for record in records if model.is_in(record)), None)

    def _folder(self, model: _Model) -> Path:
        """Returns the run folder of a model."""

        def choose() -> str:
            name = files.folder_name(model.candidate, model.key)
            return str(
                files.candidate_folder(self.workdir, model.language, name, model.key, model.data)
            )

        return Path(self.processes.from_first(choose))

    def _place(self, winner: _Model, results: Mapping[Candidate, Record]) -> bool:
        """Puts the best model in place. If somebody has removed its folder, it is trained again."""
        folder, name = self._folder(winner), winner.candidate.name
        if not self.processes.from_first((folder / files.RECORD).exists):
            self.say(f"the run folder of {name} is missing; the model is trained again")
            if self._result(winner, folder) is None:
                return False
        if not self._cool_down(winner, folder):
            return False
        cooled = dict(self.processes.from_first(lambda: files.read_record(folder)))
        cooled.pop("search", None)
        records = list({**results, winner.candidate: cooled}.values())
        totals = {name: sum(record[name] for record in records) for name in ("tokens", "seconds")}
        search = {"candidates": len(records), **totals}

        def put_in_place() -> None:
            files.write_search(folder, records)
            RunFolder(folder).write_json(files.RECORD, {**cooled, "search": search})
            files.put_in_place(self.workdir, winner.language, folder)

        self.processes.from_first(put_in_place)
        score = cooled["dev_bleu"]
        scored = "no dev BLEU" if score is None else f"dev BLEU {score:.1f}"
        self.say(f"the best of {len(records)} is {name}, {scored}")
        return True

    def _result(self, model: _Model, folder: Path) -> Record | None:
        """Trains a model, or resumes it; returns its record, or None if the time is over."""
        record = self.processes.from_first(lambda: files.read_record(folder))
        if model.is_in(record):
            self.say(f"{folder} is finished: {record['steps']} steps, nothing to do")
            return dict(record)
        if not self._train(model, folder):
            return None
        facts = {
            "kind": self.request.until,
            "language": model.language,
            "size": model.candidate.size,
            "dropout": model.candidate.dropout,
            "vocabulary": model.candidate.vocabulary,
            "train_pairs": self._train_pairs(model.language),
            "key": model.key,
            "limits": dict(model.limits),
        }

        def finish() -> Record:
            record = facts | files.outcome(folder, model.config)
            RunFolder(folder).write_json(files.RECORD, record)
            return record

        return dict(self.processes.from_first(finish))

    def _train(self, model: _Model, folder: Path) -> bool:
        """Trains a model to one of its limits; returns False if the time of this start is over."""
        each, limit = self.request.max_minutes, self.limit
        if each:
            seconds = self.processes.from_first(
                lambda: RunFolder(folder).budget().get("seconds", 0.0)
            )
            if seconds >= 60 * each:
                return True
            limit = limit.within(each - seconds / 60, EACH)
        if self.processes.from_first(self.limit.is_over):
            self.say(_TIME_IS_OVER)
            return False
        is_finished = self.train(model.config, model.data.folder, folder, limit)
        return is_finished or not self.processes.from_first(self.limit.is_over)

    def _cool_down(self, model: _Model, folder: Path) -> bool:
        """Trains a converged model on for Optimizer.cooldown_steps, as its learning rate falls to 0.

        Nobody knows before at which step a model converges. The best checkpoint on dev text is used.

        Returns:
          Whether it is done. It is not if the time of this start is over.
        """
        record = dict(self.processes.from_first(lambda: files.read_record(folder)))
        steps = model.config.optimizer.cooldown_steps
        if not steps or record["ended"] != "patience" or "cooldown" in record:
            return True
        self.say(f"{model.candidate.name} has converged and cools down for {steps} steps")
        config = model.config.replace(train={"steps": record["steps"] + steps, "patience": 0})
        is_over = self.processes.from_first(self.limit.is_over)
        if is_over or not self.train(config, model.data.folder, folder, self.limit):
            self.say(_TIME_IS_OVER)
            return False
        cooldown = {"steps": steps, "dev_bleu_before": record["dev_bleu"]}

        def finish() -> None:
            now = files.outcome(folder, config) | {"ended": record["ended"]}
            RunFolder(folder).write_json(files.RECORD, record | now | {"cooldown": cooldown})

        self.processes.from_first(finish)
        return True

    def _model(self, language: str, candidate: Candidate, tokens: int = 0) -> _Model:
        """Returns a model. `tokens` is its share of the multilingual run; 0 means no such limit."""
        limits = (tokens or self.config.train.tokens, self.request.max_tokens)
        least = min((limit for limit in limits if limit), default=0)
        own = self._own_folder(language)
        has_both = len(self._vocabularies(language)) > 1
        data = self.prepared
        if candidate.vocabulary == "own" and has_both and own:
            data = PreparedData.open(own)
        alone = self.config.replace(data={"languages": (language,), "schedule": ()})
        schedule = of_part(self.config.data.schedule, data.components(alone.data))
        # A baseline begins with random weights, so all of them are trained.
        train = {"tokens": least, "freeze": ()}
        config = candidate.applied_to(alone.replace(data={"schedule": schedule}, train=train))
        return _Model(
            language,
            candidate,
            config,
            data,
            files.content_key(config, data, self.request.until),
            files.limits_of(config, self.request.max_minutes),
        )

    def _own_folder(self, language: str) -> Path | None:
        """Returns the folder of prepared data of one language, if there is one."""
        folder = self.request.own_data and self.request.own_data / language
        return folder if folder and folder.is_dir() else None

    def _vocabularies(self, language: str) -> list[str]:
        """Returns the vocabularies that the language can be trained with."""
        is_alone = len({pair.language for pair in self.prepared.pairs}) == 1
        if is_alone:
            return ["own"]
        return ["shared", "own"] if self._own_folder(language) else ["shared"]

    def _train_pairs(self, language: str) -> int:
        """Returns the training pairs of a language. A pair with two directions counts once."""
        config = self.config.replace(data={"languages": (language,), "schedule": ()})
        return max(p["train_pairs"] for p in self.prepared.summary(config.data)["pairs"])
