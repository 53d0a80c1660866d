"""The flags of gshard-train that add a language to a trained model, and the run that they make."""

from pathlib import Path
from typing import TYPE_CHECKING

from absl.flags import FlagValues

from gshard_nmt import outputs, paths
from gshard_nmt.cli.flags import Flags, existing_folder
from gshard_nmt.errors import UserError

if TYPE_CHECKING:
    from gshard_nmt.run.start import Init
    from gshard_nmt.settings.config import Config


def define_adding(flags: Flags) -> None:
    """Defines --add_language, --replay and --new_pieces."""
    flags.text(
        "add_language",
        "TAG",
        "with --init_from, the BCP 47 tag of a language that the new run learns in addition, such as nn. "
        "--data is then a corpus folder with nn-en/train.nn, train.en, dev.nn and dev.en, and --config "
        "is not given: the config is that of the run, changed by --gin. Prepared data of all languages "
        "comes into WORKDIR-data. If old languages lose, the best checkpoint is an average of the old "
        "and the new weights with which they do not, if there is one",
    )
    flags.text(
        "replay",
        "DIR",
        "with --add_language, the prepared data of the run of --init_from; the default is the folder "
        "that its last command names",
    )
    flags.integer(
        "new_pieces",
        "N",
        "with --add_language, the largest number of new pieces of a vocabulary",
        500,
        minimum=0,
    )


def check_adding(values: FlagValues) -> bool:
    """Returns whether a language is to be added.

    Raises:
      UserError: flags contradict each other.
    """
    if not values.add_language:
        return False
    if values.config:
        raise UserError(
            "--add_language and --config are given, but the config is that of the run of --init_from. "
            "Leave out --config; change settings with --gin."
        )
    if values.num_processes > 1 or values.coordinator:
        raise UserError(
            "--add_language runs in one process. Leave out --num_processes and --coordinator."
        )
    return True


def add_language(values: FlagValues, init_from: Path) -> None:
    """Adds a language with the values of the flags of gshard-train."""
    corpus = existing_folder(values, "data", "gshard-data harvest", on_this_machine=True)
    replay = existing_folder(values, "replay", "gshard-data prepare") if values.replay else None
    workdir = paths.local_path("workdir", values.workdir)
    outputs.check_folder("--workdir", workdir)
    from gshard_nmt import add_language as adding
    from gshard_nmt.run.log.clock import TimeLimit
    from gshard_nmt.run.start import Start
    from gshard_nmt.spmd.processes import ALONE
    from gshard_nmt.train import train

    request = adding.Request(
        values.add_language,
        init_from,
        values.checkpoint,
        corpus,
        workdir,
        replay,
        values.new_pieces,
        tuple(values.gin),
    )
    limit = TimeLimit(values.max_minutes)

    def train_one(config: "Config", data: Path, init: "Init | None", command: str) -> bool:
        return train(config, data, workdir, ALONE, Start(limit, values.profile, command, init))

    adding.add_language(request, train_one)
