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

from gshard_nmt.data.schedule import of_part
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.errors import UserError, did_you_mean
from gshard_nmt.run import baselines as files
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.lock import InUseError
from gshard_nmt.run.progress import TimeLimit
from gshard_nmt.settings.config import Config
from gshard_nmt.spmd.processes import ALONE
from gshard_nmt.terminal import Terminal

Train = Callable[[Config, Path, Path], bool]
"""(config, prepared data, run folder) -> whether the run is finished, as `train.train`."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user asks of the baselines."""

    run: Path  # the multilingual run
    until: str = "converged"  # or "budget"
    size: str = files.BY_PAIRS
    languages: Sequence[str] = ()  # empty means all of the multilingual run

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
        return sorted({*(self.languages or tokens)}, key=lambda name: (-tokens[name], name))


def train_baselines(
    train: Train, config: Config, data: Path, workdir: Path, request: Request, limit: TimeLimit
) -> bool:
    """Trains one bilingual model for each language of a multilingual run.

    Each model has its own Data.languages, limit of tokens, and perhaps its own size. It has the weights
    of Data.schedule that matter to its language. Finished work in `workdir` is used again, and unfinished
    work is resumed; run/baselines.py lists the files. A model that another program trains is left to it,
    so several programs with one folder divide the work.

    Returns whether all models are finished, or in the hands of other programs. They are not if the time
    was over before. UserError: the multilingual run has not been trained, or does not fit the request.
    """
    tokens = RunFolder(request.run).budget().get("tokens_by_language")
    if not tokens:
        raise UserError(
            f"{request.run} has no budget.json; train it with gshard-train before its baselines."
        )
    languages = request.languages_of(tokens)
    prepared = PreparedData.open(data)
    # A wrong name in the schedule is found here, because each model has only a part of the schedule.
    prepared.pairs_of(config.data)
    if request.converges:
        _check_can_converge(config, prepared, languages)
    workdir.mkdir(parents=True, exist_ok=True)
    facts = {"of": str(request.run), "until": request.until, "tokens_by_language": tokens}
    RunFolder(workdir).write_json("baselines.json", facts)
    trainer = _Trainer(train, config, prepared, workdir, request, limit)
    for number, language in enumerate(languages, 1):
        trainer.prefix = f"language {number} of {len(languages)}, {language}: "
        try:
            if not trainer.train_language(language, tokens[language]):
                trainer.say("the minutes of --max_minutes are over; the same command goes on here")
                return False
        except InUseError as error:
            trainer.say(f"left to another program, because {error}")
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
    """Trains the model of each language."""

    train: Train
    config: Config
    prepared: PreparedData
    workdir: Path
    request: Request
    limit: TimeLimit
    prefix: str = ""

    def say(self, text: str) -> None:
        Terminal(stderr=True).print(f"{self.prefix}{text}")

    def train_language(self, language: str, tokens: int) -> bool:
        """Trains the model of a language, or trains it on. Returns False if the time is over."""
        config, facts = self._model(language, tokens)
        run = RunFolder(self.workdir / language)
        record = files.read_record(run.path)
        if record:
            self._check_same(config, run, record)
        limits = {name: getattr(config.train, name) for name in files.LIMITS}
        # A limit may have been changed since the model ended.
        names = ("patience",) if record and "cooldown" in record else files.LIMITS
        if not record or any(record["limits"].get(name) != limits[name] for name in names):
            if not self._train(config, run):
                return False
            record = self._recorded(run, config, facts | {"limits": limits})
        # Nobody knows before at which step a model converges, so its learning rate falls afterwards.
        tail = self.request.converges * config.optimizer.cooldown_steps
        steps = round(record["steps"] * tail / (1 - tail) if tail < 1 else tail)
        if steps and record["ended"] == "patience" and "cooldown" not in record:
            self.say(f"it has converged and cools down for {steps} steps")
            config = config.replace(train={"steps": record["steps"] + steps, "patience": 0})
            if not self._train(config, run):
                return False
            record |= {"cooldown": {"steps": steps, "dev_bleu_before": record["dev_bleu"]}}
            record = self._recorded(run, config, record, ended=record["ended"])
        self.say(f"{run.path} is finished: {record['steps']} steps")
        return True

    def _train(self, config: Config, run: RunFolder) -> bool:
        """Trains a model to one of its limits; returns False if the time of this start is over."""
        return not self.limit.is_over() and self.train(config, self.prepared.folder, run.path)

    def _recorded(
        self, run: RunFolder, config: Config, facts: Mapping[str, Any], **end: str
    ) -> dict[str, Any]:
        """Writes the record of a model whose training has ended, and returns it."""
        record = {**facts, **files.outcome(run, config.train), **end}
        run.write_json(files.RECORD, record)
        return record

    def _check_same(self, config: Config, run: RunFolder, record: Mapping[str, Any]) -> None:
        """Raises UserError if a finished model has other data or settings. `train` checks the others."""
        if record["kind"] != self.request.until:
            raise UserError(
                f"--until is {self.request.until}, and {run.path} was trained with --until "
                f"{record['kind']}. Give another --workdir, or move this folder away."
            )
        config = config.replace(data=self.prepared.fitted(config.data))
        run.check(run.with_precision(config, ALONE), self.prepared)

    def _model(self, language: str, tokens: int) -> tuple[Config, dict[str, Any]]:
        """Returns the config of the model of a language, and what is recorded of it before training.

        A pair with two directions counts once in `train_pairs`.
        """
        request, prepared = self.request, self.prepared
        alone = self.config.replace(data={"languages": (language,), "schedule": ()})
        pairs = max(p["train_pairs"] for p in prepared.summary(alone.data)["pairs"])
        schedule = of_part(self.config.data.schedule, prepared.components(alone.data))
        size = request.size if request.converges else files.AS_CONFIG
        if size == files.BY_PAIRS:
            size = next(name for name, least in files.LEAST_PAIRS.items() if pairs >= least)
        config = alone.replace(
            model=files.SIZES.get(size, {}),
            data={"schedule": schedule},
            # A baseline begins with random weights, so all of them are trained.
            train={"tokens": alone.train.tokens if request.converges else tokens, "freeze": ()},
        )
        is_alone = len({pair.language for pair in prepared.pairs}) == 1
        return config, {
            "kind": request.until,
            "language": language,
            "size": size,
            "dropout": config.model.residual_dropout,
            "vocabulary": "own" if is_alone else "shared",
            "train_pairs": pairs,
        }
