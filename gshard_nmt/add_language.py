"""gshard-train --add_language: a run that learns one more language and keeps the others.

It puts other parts together, in this order:

1. The vocabularies of the run get a tag and pieces for the new language
   (`data/preparation/vocabulary_growth.py`).
2. The new text is prepared with them. Its shards come beside those of the run
   (`data/sets/shards.py`).
3. A new run starts from the old one and trains on both texts.
4. Both runs translate the dev text of the old languages (`evaluation/language_guard.py`). If these lose,
   an average of the old weights and the new ones may be better.
"""

import dataclasses
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt import outputs, paths
from gshard_nmt.data.batching.batches import dev_pairs
from gshard_nmt.data.language_codes import folder_tag
from gshard_nmt.data.preparation.job import Job, Options
from gshard_nmt.data.preparation.vocabulary_growth import Newcomer, grow_pair
from gshard_nmt.data.sets.corpus import CorpusPair, find_pairs
from gshard_nmt.data.sets.directions import candidates, directions_of
from gshard_nmt.data.sets.manifest import read_manifest
from gshard_nmt.data.sets.shards import ADDED, PreparedData, join
from gshard_nmt.decoding.text_translator import load_translator
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.language_guard import SHARES, Comparison, Outcome, choose, save_average
from gshard_nmt.run.arrays import letters_of, step_functions, weight_specs
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints
from gshard_nmt.run.checkpoint.weights import average
from gshard_nmt.run.folder import RunFolder, data_differences
from gshard_nmt.run.starting_point import Init, StartingPoint
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.gin_reader import load_config, read_settings
from gshard_nmt.settings.values import read_run_config
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.processes import ALONE
from gshard_nmt.terminal import Terminal, table

STEPS = 800
"""The default of Train.steps: some minutes of the demo's model on two cores."""

SHARE = 0.5
"""The part of the training examples that is in the new language."""

RATE = 0.3
"""The learning rate, as a part of the old run's. It falls to 0 over the whole run."""

VALIDATIONS = 2
"""The number of validations of a run. The last one nearly always decides: the rate is 0 by then."""

DEV_SENTENCES = 3000
LEAST_SENTENCES, MOST_SENTENCES = 20, 200
"""A validation translates about `DEV_SENTENCES`, within these limits for each direction."""

Train = Callable[[Config, Path, Init | None, str], bool]
"""(config, data, --init_from, command) -> whether the run is finished."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user asks for."""

    language: str
    init: Init  # the old run and its checkpoint
    corpus: Path  # the corpus folder with text of the new language
    workdir: Path
    replay: Path | None = None  # the data of the old run; None takes what its last command names
    new_pieces: int = 500  # the largest number of new pieces of each vocabulary
    settings: Sequence[str] = ()  # the values of --gin

    @property
    def old(self) -> RunFolder:
        return RunFolder(Path(self.init.run))

    @property
    def data(self) -> Path:
        workdir = paths.absolute(self.workdir)  # "." has no name
        return workdir.with_name(f"{workdir.name}-data")

    @property
    def subset(self) -> str:
        return f"added-{self.language}"


def add_language(request: Request, train: Train) -> bool:
    """Trains a run with one more language, or resumes it. Returns whether it is finished."""
    run, old = RunFolder(request.workdir), request.old
    if (request.workdir / "data.json").exists():
        if (read_manifest(request.data) or {}).get(ADDED) != request.language:
            raise UserError(
                f"--workdir {request.workdir} has a run that does not add {request.language}: "
                f"{request.data} is not the data of such a run. Give another --workdir."
            )
        data = PreparedData.open(request.data)
        config = load_config(str(run.config), request.settings)
    else:
        data = _make_data(request, old)
        config = _config(request, old, data)
    flags = {"config": run.config, "data": data.folder, "workdir": request.workdir}
    command = ["gshard-train", *(f"--{flag}={value}" for flag, value in flags.items())]
    is_finished = train(config, data.folder, request.init, shlex.join(command))
    if is_finished:
        # Training may have resolved a setting, such as the precision of products.
        _keep_old_languages(request, run.with_precision(config, ALONE), data)
    return is_finished


def _make_data(request: Request, old: RunFolder) -> PreparedData:
    config = read_run_config(old.config)
    pairs = _new_pairs(request, old)
    direction = config.data.direction
    directions = [d for pair in pairs for d in directions_of(direction, pair.source, pair.target)]
    if not directions:
        raise UserError(
            f"{old.path} has Data.direction = {direction!r}, which does not use {pairs[0].folder.name}."
        )
    old_data = _old_data(request, old)
    if request.data.exists() and ADDED not in (read_manifest(request.data) or {}):
        raise UserError(
            f"{request.data} is in the way: the data of the new run comes there. Move it, or give "
            "another --workdir."
        )
    outputs.check_folder("--workdir", request.data, replaced=True)
    console = Terminal(stderr=True)
    # `join` needs the temporary folder of the data itself.
    with outputs.temporary_folder(request.data.with_name(f"{request.data.name}.parts")) as folder:
        targets = {pair["target"] for pair in old.data["pairs"]}
        newcomer = Newcomer(
            request.language,
            pairs,
            directions,
            targets,
            config.data,
            old.path,
            request.new_pieces,
            has_one_embedding=config.model.shared_embedding,
        )
        grow_pair(newcomer, old_data, folder, console.print)
        data = dataclasses.replace(config.data, languages=(request.language,))
        cleaning = load_config(str(old.config), request.settings).cleaning
        options = Options(cleaning=cleaning, vocabulary_of=folder)
        new = folder / "new"
        Job(data, candidates(data, pairs).pairs, new, None, options, console).run()
        return join(old_data, PreparedData.open(new), request.language, request.data)


def _new_pairs(request: Request, old: RunFolder) -> list[CorpusPair]:
    """Returns the pairs of the new language; UserError if the run has it, or the corpus does not."""
    language = request.language
    if folder_tag(language) != language:
        spelled = folder_tag(language)
        advice = f"did you mean {spelled}?" if spelled else "give one such as nn or pt-BR."
        raise UserError(f"--add_language is {language!r}, which is no BCP 47 tag; {advice}")
    known = {pair[key] for pair in old.data["pairs"] for key in ("source", "target")}
    if language in known:
        raise UserError(
            f"--add_language is {language}, which {old.path} has already; it has "
            f"{', '.join(sorted(known))}. To train it further, leave out --add_language."
        )
    all_pairs = find_pairs(request.corpus, subset=request.subset)
    pairs = [pair for pair in all_pairs if pair.language == language]
    for split in ("train", "dev"):
        if not any(pair.inputs(split) for pair in pairs):
            names = ", ".join(pair.folder.name for pair in all_pairs[:5])
            raise UserError(
                f"--data {request.corpus} has no {split} text of {language} and English; it has {names}. "
                f"It must be a corpus folder with {language}-en/train.{language}, train.en, "
                f"dev.{language} and dev.en. Dev text chooses the best checkpoint."
            )
    return pairs


def _old_data(request: Request, old: RunFolder) -> PreparedData:
    """Returns the prepared data of the old run; UserError if it is not recorded, or not there."""
    folder, was_trained = request.replay, bool(old.identity()["data"])
    advice = "Give the folder that the run was trained on with --replay."
    if folder is None and not was_trained:
        raise UserError(
            f"{old.path} has no prepared data of its own, and --replay is not given. Prepare text of its "
            f"languages with gshard-data prepare --config {old.config} --vocabulary_of {old.path}, and "
            "give it with --replay: the model keeps what it knows by training on it too."
        )
    if folder is None:
        words = shlex.split((old.commands() or [""])[-1])
        named = [word.partition("=")[2] for word in words if word.startswith("--data=")]
        if not named:
            raise UserError(f"{old.path} does not record its prepared data. {advice}")
        folder = paths.folder_path("replay", named[-1])
        if not folder.is_dir():
            raise UserError(
                f"{old.path} was trained on {folder}, and there is no such folder. {advice}"
            )
    data = PreparedData.open(folder)
    changed = data_differences(old.data, data)
    if not was_trained:
        changed = [line for line in changed if "vocabulary: SHA-256" in line]
        advice = f"Prepare it with --vocabulary_of {old.path}."
    if changed:
        lines = "".join(f"\n  {line}" for line in changed)
        use = f"that {old.path} was trained on" if was_trained else f"to train {old.path} further"
        raise UserError(f"{folder} is not the data {use}:{lines}\n{advice}")
    return data


def _config(request: Request, old: RunFolder, data: PreparedData) -> Config:
    """Returns the config of the new run: the old one, our defaults, and what the user sets."""
    set_by_user = read_settings(None, request.settings).keys()
    before = read_run_config(old.config)
    languages = before.data.languages and (*before.data.languages, request.language)
    base = load_config(str(old.config), request.settings).replace(data={"languages": languages})
    if not dev_pairs(data, base.data, request.language):
        raise UserError(
            f"--data {request.corpus} has dev text of {request.language}, but each line is empty or does "
            f"not fit into a row. Mend it, remove {request.data}, and give the same command again."
        )
    steps = base.train.steps if ("Train", "steps") in set_by_user else STEPS
    directions = sum(len(dev_pairs(data, base.data, name)) for name in data.languages(base.data))
    sentences = min(max(DEV_SENTENCES // directions, LEAST_SENTENCES), MOST_SENTENCES)
    every = -(-steps // VALIDATIONS)
    defaults: dict[tuple[str, str], object] = {
        ("Data", "languages"): languages,
        ("Data", "schedule"): _schedule(request.language, base, data),
        ("Optimizer", "learning_rate"): RATE * before.optimizer.learning_rate,
        ("Optimizer", "linear_warmup_steps"): steps // 20,
        ("Optimizer", "cooldown_steps"): steps,
        ("Train", "steps"): steps,
        ("Train", "tokens"): 0,
        ("Train", "patience"): 0,
        ("Train", "dev_every"): every,
        ("Train", "checkpoint_every"): every,
        ("Train", "keep_best"): 1,
        ("Train", "bleu_sentences"): sentences,
        ("Train", "best_metric"): f"dev_bleu/{request.language}",
    }
    ours = [f"{c}.{n} = {v!r}" for (c, n), v in defaults.items() if (c, n) not in set_by_user]
    return load_config(str(old.config), [*ours, *request.settings])


def _schedule(language: str, config: Config, data: PreparedData) -> list[dict[str, object]]:
    """Returns the mixture of the end of the old run, with a share of `SHARE` for the new language."""
    components = data.components(dataclasses.replace(config.data, schedule=()))
    phase = dataclasses.replace(config.data.phases[-1], from_step=0)
    rates = phase.rates(components)
    share = sum(rates[[component.language == language for component in components]])
    weight = SHARE / (1 - SHARE) * (1 - share) / share
    weights = {**phase.weights, language: float(f"{weight:.4g}")}
    return [{"from_step": 0, "temperature": phase.temperature, "weights": weights}]


def _keep_old_languages(request: Request, config: Config, data: PreparedData) -> None:
    """Says what each old language lost or won; saves an average of old and new weights if that helps."""
    old, new = request.old, RunFolder(request.workdir)
    newest = Checkpoints(new.checkpoints).newest()
    if newest is None or newest.average_of or not config.train.bleu_sentences:
        return
    console = Terminal()
    search = dataclasses.replace(config.decode, method="beam")
    before = read_run_config(old.config).replace(mesh=config.mesh, decode=search)
    translator = load_translator(before, old, checkpoint=request.init.checkpoint)
    comparison = Comparison(translator, config, data, request.language)
    translator = load_translator(config.replace(decode={"method": "beam"}), new)
    origin, learned = f"{translator.origin} of {new.path}", dict(translator.of_ids.parameters)

    def tried(share: float) -> Outcome:
        outcome = comparison.outcome(translator, share)
        console.print(
            f"{share:g} of the new weights: BLEU of {request.language} {outcome.bleu:.1f}; old languages "
            f"{outcome.mean:+.2f} on average, {outcome.losses} of {len(outcome.changes)} directions "
            "significantly worse",
            soft_wrap=True,
        )
        return outcome

    outcomes = [tried(1.0)]
    if outcomes[0].loses:
        functions = step_functions(config, data.summary(config.data))
        devices = runtime.start(config.mesh, new.programs_to_decode, ALONE)
        point = StartingPoint.open(request.init, config, data, functions)
        kept, old_origin = point.weights_beside(learned, devices)

        def averaged(share: float) -> dict[str, Any]:
            return average(((1 - share, kept), (share, learned)))

        for share in SHARES:
            translator.of_ids.parameters = averaged(share)
            outcomes.append(tried(share))
    chosen = choose(outcomes)
    changes = [
        (c.direction, f"{c.before:.1f}", f"{c.after:.1f}", f"{c.delta:+.1f}", f"{c.p:.3f}")
        for c in chosen.changes
    ]
    title = f"{chosen.share:g} of the new weights beside {old.path}, BLEU on dev text"
    console.print(table(title, ("direction", "before", "now", "change", "p"), changes))
    if chosen.share < 1:
        names = (
            f"{1 - chosen.share:g} of {old_origin} of {old.path}",
            f"{chosen.share:g} of {origin}",
        )
        weights, letters = averaged(chosen.share), letters_of(weight_specs(functions))
        folder = save_average(new, config.train, weights, letters, chosen.scores, names)
        is_best = config.train.metric in chosen.scores
        use = "gshard-decode uses it" if is_best else f"decode with --checkpoint {folder.name}"
        console.print(f"{folder} has this average; {use}")
    elif chosen.loses:
        console.print(
            "Old languages lose with each average too, so none is saved. Train anew in another --workdir "
            "with --gin 'Train.freeze = (\"decoder/*\",)', with a lower Optimizer.learning_rate, or with "
            "less of the new language in Data.schedule.",
            style="bold",
        )
