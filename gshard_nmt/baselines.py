"""gshard-train --baselines_of: trains the bilingual baselines of a multilingual run.

With --until converged, each language has a small search. Each of its candidates is trained until dev BLEU
does not improve any more, and the best one is kept. With --until budget, each language has one model,
which sees the same number of tokens of its language as the multilingual run did.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from gshard_nmt import paths
from gshard_nmt.data.shards import PreparedData
from gshard_nmt.errors import UserError
from gshard_nmt.run import baseline_files as files
from gshard_nmt.run.baseline_search import AS_CONFIG, Candidate, SearchSpace, best
from gshard_nmt.run.bucket_lock import run_lock
from gshard_nmt.run.clock import TimeLimit
from gshard_nmt.run.folder import CANDIDATES, RunFolder
from gshard_nmt.settings.config import Config
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.processes import ALONE, Processes
from gshard_nmt.suggest import did_you_mean

Train = Callable[[Config, Path, Path, TimeLimit], bool]
"""(config, prepared data, run folder, time limit) -> whether the run is finished, as `train.train`."""

Record = dict[str, Any]
"""The contents of baseline.json."""

EACH = "--max_minutes_each"


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user asks of the baselines.

    Attributes:
      until: "converged" or "budget".
      space: what the search may try.
      languages: the languages to train; empty means all of the multilingual run.
      shard: (i, n) trains the i-th part of the languages out of n, from 1.
      max_tokens: the tokens after which a model ends; 0 means no limit. It applies to each candidate.
      max_minutes: the minutes of training after which a model ends; 0 means no limit.
      own_data: a folder of prepared data DIR/LANGUAGE, with vocabularies of this language alone.
    """

    until: str = "converged"
    space: SearchSpace = dataclasses.field(default_factory=SearchSpace)
    languages: Sequence[str] = ()
    shard: tuple[int, int] = (1, 1)
    max_tokens: int = 0
    max_minutes: float = 0.0
    own_data: Path | None = None

    @property
    def searches(self) -> bool:
        """Whether each language has a search."""
        return self.until == "converged"

    def languages_of(self, tokens: Mapping[str, int]) -> list[str]:
        """Returns the languages to train, the one with the most tokens first.

        Args:
          tokens: the tokens that the multilingual run saw of each of its languages.

        Raises:
          UserError: the multilingual run does not have a language.
        """
        for language in self.languages:
            if language not in tokens:
                raise UserError(
                    f"--languages: the multilingual run has no language {language!r}"
                    f"{did_you_mean(language, tokens)} It has {', '.join(sorted(tokens))}; choose some "
                    "of these."
                )
        chosen = self.languages or tokens
        ordered = sorted(chosen, key=lambda language: (-tokens[language], language))
        part, parts = self.shard
        return ordered[part - 1 :: parts]


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
        and in a search its own size and dropout.
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
    console = Console(stderr=True, highlight=False, quiet=not processes.is_first)
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
            return self._train_to_budget(language, candidate, tokens)
        folder = self.workdir / CANDIDATES / language
        if self.processes.is_first:
            folder.mkdir(parents=True, exist_ok=True)
        with run_lock(folder, self.processes.is_first, self.say):
            return self._search(language)

    def _train_to_budget(self, language: str, candidate: Candidate, tokens: int) -> bool:
        config = self._config_of(language, candidate, tokens)
        key = files.content_key(config, self.prepared)
        place = self.workdir / language

        def make_room() -> None:
            record = files.read_record(place)
            if record and record["key"] != key and not paths.is_url(self.workdir):
                self.say("its data or its settings have changed; the earlier model is put aside")
                files.put_aside(self.workdir, language)

        self._decide(make_room)
        return self._result(language, candidate, config, place) is not None

    def _search(self, language: str) -> bool:
        pairs = self._train_pairs(language)
        space, vocabularies = self.request.space, self._vocabularies(language)
        folder = self.workdir / CANDIDATES / language
        results: dict[Candidate, Record] = {}
        scores: dict[Candidate, float | None] = {}
        count = space.length(pairs, vocabularies)
        while candidate := space.proposal(pairs, vocabularies, scores):
            self.say(f"candidate {len(results) + 1} of {count}, {candidate.name}")
            record = self._candidate_result(language, candidate)
            if record is None:
                return False
            results[candidate], scores[candidate] = record, record["dev_bleu"]
            self._decide(lambda: files.write_search(folder, list(results.values())))
        winner = best(list(results), scores)
        return self._place(language, winner, results)

    def _candidate_result(self, language: str, candidate: Candidate) -> Record | None:
        """Returns the record of a finished candidate, now or from an earlier start; None at the limit."""
        config = self._config_of(language, candidate)
        known = self._decide(lambda: self._known(language, candidate, config))
        if known:
            self.say(f"{candidate.name} is finished: nothing to do")
            return dict(known)
        return self._result(language, candidate, config, self._folder(language, candidate, config))

    def _known(self, language: str, candidate: Candidate, config: Config) -> Record | None:
        """Returns the record of a candidate if an earlier start has finished it."""
        key = files.content_key(config, self._data_of(language, candidate))
        limits = files.limits_of(config, self.request.max_minutes)
        places = (self.workdir / language, self.workdir / CANDIDATES / language)
        for record in (record for place in places for record in files.read_search(place)):
            if record["key"] == key and record["limits"] == limits:
                return record
        return None

    def _folder(self, language: str, candidate: Candidate, config: Config) -> Path:
        """Returns the run folder of a candidate."""
        data = self._data_of(language, candidate)
        key = files.content_key(config, data)
        folder = self._decide(
            lambda: str(files.candidate_folder(self.workdir, language, candidate, key, data))
        )
        return Path(folder)

    def _place(self, language: str, winner: Candidate, results: Mapping[Candidate, Record]) -> bool:
        """Puts the best model in place. If somebody has removed its folder, it is trained again."""
        config = self._config_of(language, winner)
        folder = self._folder(language, winner, config)
        if not self._decide((folder / files.RECORD).exists):
            self.say(f"the run folder of {winner.name} is missing; the model is trained again")
            if self._result(language, winner, config, folder) is None:
                return False
        records = list(results.values())
        totals = {name: sum(record[name] for record in records) for name in ("tokens", "seconds")}
        search = {"candidates": len(records), **totals}

        def put_in_place() -> None:
            record = (files.read_record(folder) or {}) | {"search": search}
            files.write_search(folder, records)
            RunFolder(folder).write_json(files.RECORD, record)
            files.put_in_place(self.workdir, language, folder)

        self._decide(put_in_place)
        score = results[winner]["dev_bleu"]
        scored = "no dev BLEU" if score is None else f"dev BLEU {score:.1f}"
        self.say(f"the best of {len(records)} is {winner.name}, {scored}")
        return True

    def _result(
        self, language: str, candidate: Candidate, config: Config, folder: Path
    ) -> Record | None:
        """Trains a candidate, or resumes it; returns its record, or None if the time is over."""
        data = self._data_of(language, candidate)
        key = files.content_key(config, data)
        limits = files.limits_of(config, self.request.max_minutes)
        record = self._decide(lambda: files.read_record(folder))
        if record and record["key"] == key and record["limits"] == limits:
            self.say(f"{folder} is finished: {record['steps']} steps, nothing to do")
            return dict(record)
        seconds = self._decide(lambda: RunFolder(folder).budget().get("seconds", 0.0))
        left = self.request.max_minutes - seconds / 60
        if not self.request.max_minutes or left > 0:
            if self._decide(self.limit.is_over):
                self.say(
                    "the minutes of --max_minutes are over; the same command goes on from here"
                )
                return None
            limit = (
                self.limit.within(max(left, 0), EACH) if self.request.max_minutes else self.limit
            )
            is_finished = self.train(config, data.folder, folder, limit)
            if not is_finished and self._decide(self.limit.is_over):
                return None
        facts = {
            "kind": self.request.until,
            "language": language,
            "size": candidate.size,
            "dropout": candidate.dropout,
            "vocabulary": candidate.vocabulary,
            "train_pairs": self._train_pairs(language),
            "key": key,
            "limits": limits,
        }

        def finish() -> Record:
            record = facts | files.outcome(folder, config)
            RunFolder(folder).write_json(files.RECORD, record)
            return record

        return dict(self._decide(finish))

    def _decide(self, decide: Callable[[], Any]) -> Any:
        """Calls a function in process 0, and returns its result, a JSON value, in all processes."""
        if self.processes.count == 1:
            return decide()
        content = json.dumps(decide()).encode() if self.processes.is_first else b""
        return json.loads(self.processes.broadcast(content))

    def _config_of(self, language: str, candidate: Candidate, tokens: int = 0) -> Config:
        """Returns the config of a candidate. `tokens` is the limit of tokens of the multilingual run."""
        limits = (tokens or self.config.train.tokens, self.request.max_tokens)
        least = min((limit for limit in limits if limit), default=0)
        config = self.config.replace(data={"languages": (language,)}, train={"tokens": least})
        return candidate.applied_to(config)

    def _data_of(self, language: str, candidate: Candidate) -> PreparedData:
        has_both = len(self._vocabularies(language)) > 1
        if candidate.vocabulary == "own" and has_both and (own := self._own_folder(language)):
            return PreparedData.open(own)
        return self.prepared

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
        config = self.config.replace(data={"languages": (language,)})
        pairs = self.prepared.pairs_of(config.data)
        return sum(pair.splits["train"].examples for pair in pairs)
