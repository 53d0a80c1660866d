"""gshard-train --baselines_of: trains the bilingual baselines of a multilingual run.

Each language has one model. With --until converged, its size follows from the number of its training
pairs, and it is trained until dev BLEU does not improve any more. Then it trains on while its learning
rate falls to 0. With --until budget, it has the size of the config, and sees the same number of tokens of
its language as the multilingual run did.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from gshard_nmt import paths
from gshard_nmt.data.schedule import of_part
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.errors import UserError, did_you_mean
from gshard_nmt.run import baselines as files
from gshard_nmt.run.baselines import AS_CONFIG, SIZE_RULE, SIZES
from gshard_nmt.run.folder import RunFolder
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


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user asks of the baselines."""

    until: str = "converged"  # or "budget"
    sizes: Sequence[tuple[str, int]] = dataclasses.field(
        default_factory=lambda: files.parse_sizes(SIZE_RULE)
    )
    languages: Sequence[str] = ()  # empty means all of the multilingual run
    shard: tuple[int, int] = (1, 1)  # (i, n) trains the i-th part of the languages out of n, from 1
    # after which a model ends; 0 means no limit
    max_tokens: int = 0
    max_minutes: float = 0.0

    @property
    def converges(self) -> bool:
        return self.until == "converged"

    def languages_of(self, tokens: Mapping[str, int]) -> list[str]:
        """Returns the languages to train; UserError if the multilingual run does not have one.

        The one with the most tokens, as the multilingual run saw them, comes first.
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
    """Trains one bilingual model for each language of a multilingual run.

    Each model has its own Data.languages, limit of tokens, and perhaps its own size. It has the weights
    of Data.schedule that matter to its language. Finished work in `workdir` is used again, and unfinished
    work is resumed; run/baselines.py lists the files.

    Returns whether all models are finished. They are not if the time was over before.

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
    if request.converges:
        _check_can_converge(config, prepared, languages)
    if processes.is_first:
        workdir.mkdir(parents=True, exist_ok=True)
        facts = {"of": str(multilingual), "until": request.until, "tokens_by_language": tokens}
        RunFolder(workdir).write_json("baselines.json", facts)
    # It decides where the programs of all processes are.
    RunFolder(workdir).wait_for("baselines.json")
    if processes.count > 1:
        runtime.start(config.mesh, workdir / "programs", processes)  # connects the processes
    console = Console(stderr=True, highlight=False, markup=False, quiet=not processes.is_first)
    limit = limit or TimeLimit()
    trainer = _Trainer(train, config, prepared, workdir, request, processes, limit, console)
    for number, language in enumerate(languages, 1):
        trainer.prefix = f"language {number} of {len(languages)}, {language}: "
        if not trainer.train_language(language, tokens[language]):
            return False
    return True


def _check_can_converge(config: Config, prepared: PreparedData, languages: Sequence[str]) -> None:
    """Checks that each model ends when dev BLEU does not improve, and can be scored."""
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
    for language in languages:
        pairs = prepared.pairs_of(config.replace(data={"languages": (language,)}).data)
        if not any(pair.splits["dev"].examples for pair in pairs):
            raise UserError(
                f"--until converged: {prepared.folder} has no dev text of {language}, so its training "
                "cannot end early. Prepare dev text, leave the language out with --languages, or give "
                "--until budget."
            )


@dataclasses.dataclass
class _Trainer:
    """Trains the model of each language.

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
    console: Console
    prefix: str = ""

    def say(self, text: str) -> None:
        self.console.print(f"{self.prefix}{text}", soft_wrap=True)

    def train_language(self, language: str, tokens: int) -> bool:
        """Trains the model of a language, or trains it on. Returns False if the time is over."""
        config, model = self._model(language, tokens)
        folder = self.workdir / language

        def known_record() -> Record | None:
            record = files.read_record(folder)
            if record and record["key"] != model["key"] and not paths.is_url(self.workdir):
                self.say("its data or its settings have changed; the earlier model is put aside")
                files.put_aside(self.workdir, language)
                return None
            return record

        def new_record() -> Record:
            record = model | files.outcome(folder, config)
            RunFolder(folder).write_json(files.RECORD, record)
            return record

        record = self.processes.from_first(known_record)
        if not _is_finished(record, model):
            if not self._train(config, folder):
                return False
            record = self.processes.from_first(new_record)
        steps = config.optimizer.cooldown_steps
        has_converged = self.request.converges and record["ended"] == "patience"
        if has_converged and steps and "cooldown" not in record:
            return self._cool_down(config, folder, record, steps)
        self.say(f"{folder} is finished: {record['steps']} steps")
        return True

    def _train(self, config: Config, folder: Path) -> bool:
        """Trains a model to one of its limits; returns False if the time of this start is over."""
        each, limit = self.request.max_minutes, self.limit
        if each:
            seconds = self.processes.from_first(
                lambda: RunFolder(folder).budget().get("seconds", 0.0)
            )
            if seconds >= 60 * each:
                return True
            limit = limit.within(each - seconds / 60, EACH)
        if not self._has_time():
            return False
        return self.train(config, self.prepared.folder, folder, limit) or self._has_time()

    def _cool_down(self, config: Config, folder: Path, record: Record, steps: int) -> bool:
        """Trains a converged model on for Optimizer.cooldown_steps, as its learning rate falls to 0.

        Nobody knows before at which step a model converges. The best checkpoint on dev text is used.
        Returns False if the time of this start is over.
        """
        if not self._has_time():
            return False
        self.say(f"it has converged and cools down for {steps} steps")
        config = config.replace(train={"steps": record["steps"] + steps, "patience": 0})
        if not self.train(config, self.prepared.folder, folder, self.limit):
            self.say(_TIME_IS_OVER)
            return False

        def finish() -> None:
            now = files.outcome(folder, config) | {"ended": record["ended"]}
            cooldown = {"steps": steps, "dev_bleu_before": record["dev_bleu"]}
            RunFolder(folder).write_json(files.RECORD, record | now | {"cooldown": cooldown})

        self.processes.from_first(finish)
        return True

    def _has_time(self) -> bool:
        """Returns whether the time of this start is not over, and says so if it is."""
        is_over = self.processes.from_first(self.limit.is_over)
        if is_over:
            self.say(_TIME_IS_OVER)
        return not is_over

    def _model(self, language: str, tokens: int) -> tuple[Config, Record]:
        """Returns the config of the model of a language, and what is recorded of it before training.

        A pair with two directions counts once in `train_pairs`.
        """
        request, prepared = self.request, self.prepared
        budget = self.config.train.tokens if request.converges else tokens
        limits = [limit for limit in (budget, request.max_tokens) if limit]
        alone = self.config.replace(data={"languages": (language,), "schedule": ()})
        pairs = max(p["train_pairs"] for p in prepared.summary(alone.data)["pairs"])
        schedule = of_part(self.config.data.schedule, prepared.components(alone.data))
        size = files.size_of(pairs, request.sizes) if request.converges else AS_CONFIG
        config = alone.replace(
            model=SIZES.get(size, {}),
            data={"schedule": schedule},
            # A baseline begins with random weights, so all of them are trained.
            train={"tokens": min(limits, default=0), "freeze": ()},
        )
        is_alone = len({pair.language for pair in prepared.pairs}) == 1
        return config, {
            "kind": request.until,
            "language": language,
            "size": size,
            "dropout": config.model.residual_dropout,
            "vocabulary": "own" if is_alone else "shared",
            "train_pairs": pairs,
            "key": files.content_key(config, prepared, request.until),
            "limits": files.limits_of(config, request.max_minutes),
        }


def _is_finished(record: Record | None, model: Record) -> bool:
    """Returns whether a record says that a model is finished, as one that has cooled down is."""
    if record is None or record["key"] != model["key"]:
        return False
    if "cooldown" in record:
        return bool(record["limits"]["patience"] == model["limits"]["patience"])
    return bool(record["limits"] == model["limits"])
