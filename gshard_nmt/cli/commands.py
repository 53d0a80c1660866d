"""The commands: their flags, and the function that each of them calls.

Modules that take long to import are imported inside the functions, after the flags have been checked.
"""

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl.flags import FlagValues

from gshard_nmt import outputs, paths
from gshard_nmt.cli import worker
from gshard_nmt.cli.add_language_flags import add_language, check_adding, define_adding
from gshard_nmt.cli.baseline_flags import (
    BASELINE_FLAGS,
    check_baselines,
    define_baselines,
    read_request,
)
from gshard_nmt.cli.checkpoint_command import CHECKPOINT_ABOUT, CHECKPOINT_VERBS
from gshard_nmt.cli.corpus_flags import define_corpora, read_corpora
from gshard_nmt.cli.data_commands import LOOKING_VERBS
from gshard_nmt.cli.decode_command import DECODE
from gshard_nmt.cli.eval_command import EVAL
from gshard_nmt.cli.export_command import EXPORT
from gshard_nmt.cli.flags import (
    Command,
    Flags,
    command_text,
    define_checkpoint,
    define_config,
    existing_folder,
    help_entry,
    read_config,
)
from gshard_nmt.cli.import_command import IMPORT
from gshard_nmt.cli.inspect_command import INSPECT
from gshard_nmt.cli.process_flags import (
    PROCESS_NEEDS,
    become_worker,
    define_processes,
    read_processes,
)
from gshard_nmt.cli.runner import EXIT_USER_ERROR, HELP_WORDS, print_overview, run
from gshard_nmt.cli.serve_command import SERVE
from gshard_nmt.cli.translate_command import TRANSLATE
from gshard_nmt.cli.verbs import run_verb
from gshard_nmt.errors import UserError
from gshard_nmt.spmd.host_memory import restart_with_large_heaps
from gshard_nmt.suggest import did_you_mean

if TYPE_CHECKING:
    from gshard_nmt.settings.config import Config


def data_program(arguments: Sequence[str] | None = None) -> int:
    """Runs gshard-data, which makes corpora and prepares them; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return run_verb("gshard-data", _DATA_ABOUT, DATA_VERBS, words)


def checkpoint_program(arguments: Sequence[str] | None = None) -> int:
    """Runs gshard-checkpoint, which looks after the checkpoints of a run; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return run_verb("gshard-checkpoint", CHECKPOINT_ABOUT, CHECKPOINT_VERBS, words)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command that the first word names: python -m gshard_nmt. Returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None and words[:1] == ["train"]:
        restart_with_large_heaps()
    if words and words[0] == "data":
        return data_program(words[1:])
    if words and words[0] == "checkpoint":
        return checkpoint_program(words[1:])
    if words and words[0] in COMMANDS:
        return run(COMMANDS[words[0]], words[1:])
    if words and words[0] == "--version":
        return run(TRAIN, words[:1])
    if words and words[0] in (*HELP_WORDS, "help"):
        return print_overview("gshard_nmt", _overview())
    names = [*COMMANDS, "data", "checkpoint"]
    if words:
        problem = f"there is no command {words[0]!r}{did_you_mean(words[0], names)}"
    else:
        problem = "the command is missing."
    listed = f"The commands are: {', '.join(names)}."
    print(f"gshard_nmt: {problem} {listed} See python -m gshard_nmt --help.", file=sys.stderr)
    return EXIT_USER_ERROR


def _overview() -> str:
    """Returns the help of python -m gshard_nmt."""
    lines = ["python -m gshard_nmt COMMAND [--flag value ...] runs a command. Commands:", ""]
    for name, command in COMMANDS.items():
        lines += help_entry(name, command.about)
    for program, verbs in (("data", DATA_VERBS), ("checkpoint", CHECKPOINT_VERBS)):
        for verb, command in verbs.items():
            if verb not in COMMANDS:
                lines += help_entry(f"{program} {verb}", command.about)
    hint = "Each command has its own --help: python -m gshard_nmt train --help"
    return "\n".join([*lines, "", hint])


def train_program(arguments: Sequence[str] | None = None) -> int:
    """Runs gshard-train, which trains or resumes a run; returns the exit code."""
    if arguments is None:
        restart_with_large_heaps()
    return run(TRAIN, sys.argv[1:] if arguments is None else arguments)


def decode_program(arguments: Sequence[str] | None = None) -> int:
    """Runs gshard-decode, which translates text; returns the exit code."""
    return run(DECODE, sys.argv[1:] if arguments is None else arguments)


def eval_program(arguments: Sequence[str] | None = None) -> int:
    """Runs gshard-eval, which scores a run and writes the report; returns the exit code."""
    return run(EVAL, sys.argv[1:] if arguments is None else arguments)


def export_program(arguments: Sequence[str] | None = None) -> int:
    """Runs gshard-export, which writes a model for other software; returns the exit code."""
    return run(EXPORT, sys.argv[1:] if arguments is None else arguments)


def import_program(arguments: Sequence[str] | None = None) -> int:
    """Runs gshard-import, which makes a run folder of another model; returns the exit code."""
    return run(IMPORT, sys.argv[1:] if arguments is None else arguments)


def serve_program(arguments: Sequence[str] | None = None) -> int:
    """Runs gshard-serve, which translates for HTTP clients; returns the exit code."""
    return run(SERVE, sys.argv[1:] if arguments is None else arguments)


def inspect_program(arguments: Sequence[str] | None = None) -> int:
    """Runs gshard-inspect, which estimates the cost of a config; returns the exit code."""
    return run(INSPECT, sys.argv[1:] if arguments is None else arguments)


def _define_harvest(flags: Flags) -> None:
    flags.text("out", "DIR", "the corpus folder to make")
    flags.texts(
        "root",
        "DIR",
        "a folder to search in addition to the system's locale folders and Python's packages; may be "
        "given several times",
    )


def _harvest(values: FlagValues) -> None:
    out = paths.local_path("out", values.out)
    outputs.check_folder("--out", out, replaced=True)
    from gshard_nmt.harvest import harvest

    harvest(out, [Path(root) for root in values.root])


def _define_prepare(flags: Flags) -> None:
    define_config(flags)
    define_corpora(flags)
    flags.text("out", "DIR", "the folder of prepared data to make")
    flags.integer(
        "workers",
        "N",
        "the number of processes; the default is the number of CPUs that this process may use",
        None,
        minimum=1,
    )
    flags.text(
        "scheduler",
        "URL",
        "the address of a Dask scheduler, such as tcp://10.0.0.1:8786, whose workers do the work. They "
        "must see --corpus and --out under the same paths",
    )
    flags.text(
        "vocabulary_of",
        "DIR",
        "prepared data, or a run folder, whose vocabularies are used. Text that was tokenized with them "
        "is taken over from --out",
    )


def _prepare(values: FlagValues) -> None:
    from gshard_nmt.data.worker_pool import start_early, usable_cpus

    if values.workers and values.scheduler:
        raise UserError(
            "--workers and --scheduler are given, but a Dask cluster has workers of its own. Leave out "
            "one of them."
        )
    out = paths.local_path("out", values.out)
    workers = values.workers or usable_cpus()
    if not values.scheduler and workers > 1 and not out.exists():
        # There is work to do, and the processes that do it can start now.
        start_early(__name__, "gshard_nmt.prepare")
    config = read_config(values)
    corpora = read_corpora(values)
    vocabulary_of = None
    if values.vocabulary_of:
        vocabulary_of = existing_folder(
            values, "vocabulary_of", "gshard-data prepare", on_this_machine=True
        )
    from gshard_nmt.prepare import Options, prepare

    cleaning = config.cleaning
    if values.scheduler:
        # The workers have other working directories.
        corpora = {name: paths.absolute(folder) for name, folder in corpora.items()}
        modules = (os.path.realpath(m) if m.endswith(".py") else m for m in cleaning.modules)
        cleaning = dataclasses.replace(cleaning, modules=tuple(modules))
    options = Options(workers, vocabulary_of, cleaning, values.scheduler)
    prepare(config.data, corpora, out, options)


def _define_train(flags: Flags) -> None:
    define_config(flags)
    flags.text(
        "data", "DIR|URL", "the folder that gshard-data prepare made; may be gs://bucket/folder"
    )
    flags.text(
        "workdir",
        "DIR|URL",
        "the run folder, which may be gs://bucket/folder; if it holds a run, training resumes from the "
        "last checkpoint",
    )
    flags.text(
        "init_from",
        "RUN",
        "the run folder of a trained model whose weights a new run starts with. Its data, vocabularies, "
        "depth and number of experts may differ; a table shows what each weight begins as. A run that "
        "is resumed does not read it again",
    )
    define_checkpoint(flags, use="with --init_from, the weights to start with")
    define_adding(flags)
    define_baselines(flags)
    flags.number(
        "max_minutes",
        "X",
        "minutes after which this start saves and ends with exit code 0, counted from its beginning; the "
        "same command goes on from there. 0 means no limit",
        0.0,
        minimum=0.0,
    )
    flags.switch(
        "profile",
        "write a trace of steps 6 to 10 of this start for TensorBoard, into tensorboard/ of --workdir",
    )
    define_processes(flags)


def _train(values: FlagValues) -> None:
    check_baselines(values)
    if check_adding(values):
        init_from = _read_init(values)
        assert init_from is not None
        add_language(values, init_from)
        return
    from gshard_nmt.settings.gin_reader import read_settings
    from gshard_nmt.settings.values import build

    settings = read_settings(values.config, values.gin)
    config = build(settings)
    data = existing_folder(values, "data", "gshard-data prepare")
    workdir = paths.folder_path("workdir", values.workdir)
    compared_run = request = None
    if values.baselines_of:
        compared_run = existing_folder(values, "baselines_of", "gshard-train")
        request = read_request(values)
    init_from = _read_init(values)
    from gshard_nmt.spmd.processes import TRAINING

    processes = read_processes(values, TRAINING)
    if processes.count > 1:
        processes.local_devices(config.mesh.num_devices)
        become_worker(values, processes, workdir, worker.identity(values, config))
    if processes.is_first:  # its check must not see the temporary folder of another process's check
        outputs.check_folder("--workdir", workdir)
    from gshard_nmt.run.log.clock import TimeLimit
    from gshard_nmt.run.starting_point import Init
    from gshard_nmt.train import Start, train

    limit, profile = TimeLimit(values.max_minutes), values.profile
    init = Init.of(init_from, values.checkpoint) if init_from else None
    command = command_text("gshard-train", values)
    set_by_user = [key for key, setting in settings.items() if setting.where.startswith("--gin ")]

    def train_one(config: "Config", data: Path, workdir: Path, limit: TimeLimit) -> bool:
        start = Start(limit, profile, command, init, set_by_user=set_by_user)
        return train(config, data, workdir, processes, start)

    with processes.waiting_for_lost_peers():
        if compared_run is None or request is None:
            train_one(config, data, workdir, limit)
            return
        from gshard_nmt.baselines import train_baselines

        train_baselines(train_one, config, data, compared_run, workdir, request, processes, limit)


def _read_init(values: FlagValues) -> Path | None:
    """Returns the run folder of --init_from; None if it is not given.

    Raises:
      UserError: it is no folder, or the flags contradict each other.
    """
    if not values.init_from:
        return None
    folder = existing_folder(values, "init_from", "gshard-train")
    if values.baselines_of:
        raise UserError(
            "--init_from and --baselines_of are given; baselines start with random weights. Leave one of "
            "them out."
        )
    from gshard_nmt.run.checkpoint.weights import Chosen

    Chosen.parse(values.checkpoint)
    return folder


HARVEST = Command(
    "gshard-data harvest",
    "makes a parallel corpus between English and many languages from the message catalogues (.mo, .po) "
    "of the software on this machine.",
    "gshard-data harvest --out corpus",
    ("out",),
    _define_harvest,
    _harvest,
)
PREPARE = Command(
    "gshard-data prepare",
    "makes the vocabularies and the tokenized shards of a corpus folder.",
    "gshard-data prepare --config demo --corpus corpus --out data",
    ("config", "corpus", "out"),
    _define_prepare,
    _prepare,
)
_MAKING_VERBS = {"harvest": HARVEST, "prepare": PREPARE}
DATA_VERBS = {**_MAKING_VERBS, "translate": TRANSLATE, **LOOKING_VERBS}
_DATA_ABOUT = "makes the data that gshard-train reads, and looks at it."
TRAIN = Command(
    "gshard-train",
    "trains a model, or resumes the run in --workdir.",
    "gshard-train --config demo --data data --workdir runs/demo",
    ("config", "data", "workdir"),
    _define_train,
    _train,
    replaced={"config": "add_language"},
    needs={
        **dict.fromkeys(("checkpoint", "add_language"), "init_from"),
        **dict.fromkeys(("replay", "new_pieces"), "add_language"),
        **dict.fromkeys(BASELINE_FLAGS, "baselines_of"),
        **PROCESS_NEEDS,
    },
)
COMMANDS = {
    **_MAKING_VERBS,
    "train": TRAIN,
    "decode": DECODE,
    "eval": EVAL,
    "export": EXPORT,
    "import": IMPORT,
    "serve": SERVE,
    "inspect": INSPECT,
}
"""The commands by the names that `python -m gshard_nmt` knows. `data harvest` also runs `harvest`."""
