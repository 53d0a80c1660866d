"""gshard-train: its flags, for a run, for its baselines, and for a language that is added to a run."""

from pathlib import Path
from typing import TYPE_CHECKING

from absl.flags import FlagValues

from gshard_nmt import outputs, paths
from gshard_nmt.cli.flags import (
    Command,
    Flags,
    command_text,
    define_checkpoint,
    define_config,
    existing_folder,
)
from gshard_nmt.cli.processes import PROCESS_NEEDS, compare, define_processes, join
from gshard_nmt.errors import UserError

if TYPE_CHECKING:
    from gshard_nmt.baselines import Request
    from gshard_nmt.run.starting_point import Init
    from gshard_nmt.settings.config import Config

UNTIL = ("converged", "budget")
SIZES = ("by_pairs", "small", "base", "big", "config")


def _define_train(flags: Flags) -> None:
    # fmt: off
    define_config(flags)
    flags.text("data", "DIR|URL",
        "the folder that gshard-data prepare made; may be gs://bucket/folder")
    flags.text("workdir", "DIR|URL",
        "the run folder, which may be gs://bucket/folder; if it holds a run, training resumes")
    flags.text("init_from", "RUN",
        "the run folder of a trained model whose weights a new run starts with. Its data, vocabularies, "
        "depth and number of experts may differ; a table shows what each weight begins as")
    define_checkpoint(flags, use="with --init_from, the weights to start with")
    flags.text("add_language", "TAG",
        "with --init_from, the BCP 47 tag of a language that the new run learns in addition, such as nn. "
        "--data is then a corpus folder with nn-en/train.nn, train.en, dev.nn and dev.en. There is no "
        "--config: that of the run, changed by --gin, is used. Prepared data of all languages comes into "
        "WORKDIR-data. If old languages lose, the best checkpoint averages old and new weights")
    flags.text("replay", "DIR",
        "with --add_language, the prepared data of the run; if not given, as its last command says")
    flags.integer("new_pieces", "N",
        "with --add_language, the largest number of new pieces of a vocabulary", 500, minimum=0)
    flags.text("baselines_of", "RUN",
        "the run folder of a multilingual model. Bilingual baselines of its languages are trained in "
        "--workdir/LANGUAGE. Machines with one shared folder divide the work if each gets this command")
    flags.choice("until", "WORD",
        "when a baseline ends. converged (the default): when dev BLEU does not improve (Train.patience); "
        "try --config bilingual. budget: after the number of tokens of its language that the "
        "multilingual model saw, with the config's size", UNTIL)
    flags.text("languages", "XX,YY",
        "the languages to train baselines for; if not given, all of the run")
    flags.choice("sizes", "WORD",
        "the size of the models of --until converged. by_pairs (the default): small (2 + 2 layers, "
        "M = 128), base (Transformer-Base) from 100,000 training pairs, big (Transformer-Big) from "
        "2,000,000. small, base, big: this size for all. config: that of --config", SIZES)
    flags.number("max_minutes", "X",
        "minutes after which this start saves and ends with exit code 0; the same command goes on from "
        "there. 0 means no limit", 0.0, minimum=0.0)
    flags.switch("profile",
        "trace steps 6 to 10 of this start for TensorBoard, into tensorboard/ of --workdir")
    define_processes(flags)


def _train(values: FlagValues) -> None:
    if values.num_processes > 1 and (values.baselines_of or values.add_language):
        what = "--baselines_of" if values.baselines_of else "--add_language"
        raise UserError(f"{what} runs in one process. Leave out --num_processes.")
    if values.add_language:
        _add_language(values)
        return
    from gshard_nmt.run.progress import TimeLimit
    from gshard_nmt.spmd.processes import ALONE

    limit = TimeLimit(values.max_minutes)  # to wait for the other processes takes its time too
    processes = ALONE if values.baselines_of else join(values, "gshard-train", trains=True)
    from gshard_nmt.settings.gin_reader import read_settings
    from gshard_nmt.settings.values import build

    settings = read_settings(values.config, values.gin)
    config = build(settings)
    data = existing_folder(values, "data", "gshard-data prepare")
    workdir = paths.folder_path("workdir", values.workdir)
    init = _read_init(values) if values.init_from else None
    request = _read_request(values) if values.baselines_of else None
    processes.local_devices(config.mesh.num_devices)
    compare(values, config, processes)
    if processes.is_first:  # only it writes there
        outputs.check_folder("--workdir", workdir)
    from gshard_nmt.train import Start, train

    set_by_user = [key for key, setting in settings.items() if setting.where.startswith("--gin ")]
    command = command_text("gshard-train", values)
    alone = request is None
    start = Start(limit, values.profile, command, init, set_by_user, not alone, waits=alone)

    def train_one(config: "Config", data: Path, workdir: Path) -> bool:
        return train(config, data, workdir, processes, start)

    with processes.waiting_for_lost_peers():
        if request is None:
            train_one(config, data, workdir)
            return
        from gshard_nmt.baselines import train_baselines

        train_baselines(train_one, config, data, workdir, request, limit)


def _read_init(values: FlagValues, on_this_machine: bool = False) -> "Init":
    has_begun = False  # then the run does not need the other one any more
    if not on_this_machine:
        workdir = paths.folder_path("workdir", values.workdir)
        with paths.reaching("workdir", workdir):
            has_begun = (workdir / "data.json").exists()
    if has_begun:
        folder = paths.folder_path("init_from", values.init_from)
    else:
        folder = existing_folder(values, "init_from", "gshard-train", on_this_machine)
    if values.baselines_of:
        raise UserError(
            "--init_from and --baselines_of are given; baselines start with random weights. Leave one of "
            "them out."
        )
    from gshard_nmt.run.starting_point import Init

    return Init.of(folder, values.checkpoint)


def _add_language(values: FlagValues) -> None:
    if values.config:
        raise UserError(
            "--add_language and --config are given, but the config is that of the run of --init_from. "
            "Leave out --config; change settings with --gin."
        )
    init = _read_init(values, on_this_machine=True)
    corpus = existing_folder(values, "data", "gshard-data harvest", on_this_machine=True)
    replay = existing_folder(values, "replay", "gshard-data prepare") if values.replay else None
    workdir = paths.local_path("workdir", values.workdir)
    outputs.check_folder("--workdir", workdir)
    from gshard_nmt import add_language as adding
    from gshard_nmt.run.progress import TimeLimit
    from gshard_nmt.spmd.processes import ALONE
    from gshard_nmt.train import Start, train

    limit = TimeLimit(values.max_minutes)

    def train_one(config: "Config", data: Path, init: "Init | None", command: str) -> bool:
        start = Start(limit, values.profile, command, init, is_part=True)
        return train(config, data, workdir, ALONE, start)

    pieces, settings = values.new_pieces, tuple(values.gin)
    request = adding.Request(values.add_language, init, corpus, workdir, replay, pieces, settings)
    adding.add_language(request, train_one)


def _read_request(values: FlagValues) -> "Request":
    if values.sizes and values.until == "budget":
        raise UserError(
            "--sizes is given with --until budget, whose models have the size of the config. Leave it "
            "out, or give --until converged."
        )
    run = existing_folder(values, "baselines_of", "gshard-train")
    languages = [tag.strip() for tag in (values.languages or "").split(",") if tag.strip()]
    from gshard_nmt.baselines import Request

    return Request(run, values.until or UNTIL[0], values.sizes or SIZES[0], languages)


TRAIN = Command("gshard-train",
    "trains a model, or resumes the run in --workdir.",
    "gshard-train --config demo --data prepared --workdir runs/demo",
    ("config", "data", "workdir"), _define_train, _train,
    replaced={"config": "add_language"},
    needs={
        **dict.fromkeys(("checkpoint", "add_language"), "init_from"),
        **dict.fromkeys(("replay", "new_pieces"), "add_language"),
        **dict.fromkeys(("until", "languages", "sizes"), "baselines_of"),
        **PROCESS_NEEDS,
    })  # fmt: skip
