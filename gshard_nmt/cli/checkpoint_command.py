"""The flags of `gshard-checkpoint`, and the function that each verb calls."""

from typing import Any

from absl.flags import FlagValues

from gshard_nmt import paths
from gshard_nmt.cli.flags import Command, Flags, define_run, existing_folder
from gshard_nmt.errors import UserError


def _list(values: FlagValues) -> None:
    workdir = existing_folder(values, "workdir", "gshard-train")
    from gshard_nmt.checkpoints import list_checkpoints

    list_checkpoints(workdir)


def _define_verify(flags: Flags) -> None:
    define_run(flags)
    about = "the step of the checkpoint to verify; if not given, all checkpoints"
    flags.integer("step", "N", about, None, minimum=0)


def _verify(values: FlagValues) -> None:
    workdir = existing_folder(values, "workdir", "gshard-train")
    from gshard_nmt.checkpoints import verify

    verify(workdir, values["step"].value)


def _define_diff(flags: Flags) -> None:
    define_run(flags)
    flags.text("other", "DIR|URL",
        "the run folder of the second checkpoint; if not given, --workdir")  # fmt: skip
    flags.text("steps", "A,B",
        "the steps of the two checkpoints. With --other, this flag may be left out; then the "
        "newest checkpoints are compared", default="")  # fmt: skip


def _diff(values: FlagValues) -> None:
    workdir = existing_folder(values, "workdir", "gshard-train")
    other = existing_folder(values, "other", "gshard-train") if values.other else workdir
    steps: list[int] = _steps(values.steps)
    if len(steps) != 2 and (steps or not values.other):
        raise UserError(
            f"--steps is {values.steps!r}; it must be two steps, such as --steps 400,500. To compare the "
            "last checkpoints of two runs, give --other instead."
        )
    first, second = steps or (None, None)
    from gshard_nmt.checkpoints import diff

    diff((workdir, first), (other, second))


def _define_average(flags: Flags) -> None:
    define_run(flags)
    flags.text("out", "DIR", "the run folder to make; it can be decoded, not trained further")
    flags.integer("last", "N", "average the newest N checkpoints", None, minimum=2)
    flags.text("steps", "A,B,...", "average the checkpoints of these steps", default="")


def _average(values: FlagValues) -> None:
    workdir = existing_folder(values, "workdir", "gshard-train")
    steps, last = _steps(values.steps), values["last"].value
    if bool(last) == bool(steps) or (steps and len(set(steps)) < max(len(steps), 2)):
        given = f"--last is {last}" if last else "--last is missing"
        raise UserError(
            f"{given} and --steps is {values.steps!r}; give one of them, with at least two different "
            "checkpoints, such as --last 5 or --steps 300,400,500."
        )
    from gshard_nmt.checkpoints import average

    average(workdir, steps, last or 0, paths.local_path("out", values.out))


def _steps(text: str) -> list[int]:
    """Reads steps such as "300,400"."""
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if not all(word.isascii() and word.isdecimal() and len(word) < 19 for word in words):
        raise UserError(
            f"--steps is {text!r}; it must be whole numbers with commas between them, such as 300,400."
        )
    return [int(word) for word in words]


def _command(verb: str, about: str, flags: str, required: str, *functions: Any) -> Command:
    name = f"gshard-checkpoint {verb}"
    example = f"{name} --workdir runs/demo{flags}"
    return Command(name, about, example, required.split(), *functions)


CHECKPOINT_VERBS = {
    "list": _command("list",
        "shows the step, date, size and score of each checkpoint, and why it is kept.",
        "", "workdir", define_run, _list),
    "verify": _command("verify",
        "reads every tensor back and compares its checksums; ends with 2 if one is damaged.",
        "", "workdir", _define_verify, _verify),
    "diff": _command("diff",
        "shows which tensors and experts of two checkpoints differ, and by how much.",
        " --steps 2000,2500", "workdir", _define_diff, _diff),
    "average": _command("average",
        "makes a run folder with the mean of the weights of several checkpoints.",
        " --last 2 --out runs/averaged", "workdir out", _define_average, _average),
}  # fmt: skip
