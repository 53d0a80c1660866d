"""gshard-inspect --doctor: lists everything that is wrong with a run before it starts.

A program stops at the first mistake that it meets. The doctor goes on, and each problem comes with
the nearest legal value. A setting with an illegal value is replaced by its default for the checks
that follow. Nothing is lowered or compiled.
"""

import dataclasses
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gshard_nmt import paths
from gshard_nmt.errors import UserError
from gshard_nmt.quantities import size_text
from gshard_nmt.run.arrays import state_specs, step_functions, training_arrays
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings import divides
from gshard_nmt.settings.config import Config, Key, named_settings
from gshard_nmt.settings.values import build
from gshard_nmt.spmd.lowering import ArraySpecs
from gshard_nmt.spmd.machine import free_machine_memory
from gshard_nmt.spmd.processes import ALONE
from gshard_nmt.terminal import Terminal, table


@dataclasses.dataclass(frozen=True)
class DoctorRequest:
    """The run to check."""

    source: str  # the name or the path of a config
    overrides: Sequence[str] = ()  # the `--gin` flags
    data: Path | None = None  # the folder of prepared data; None skips its checks
    workdir: Path | None = None  # the run folder; None means the current folder
    reads_data: bool = False  # whether to read all of the data and compare it with its checksums


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report."""

    area: str  # what was checked: config, mesh, data, memory or disk
    text: str
    mark: str  # "PROBLEM", "note" or "ok"

    @property
    def is_problem(self) -> bool:
        return self.mark == "PROBLEM"


def show_doctor(request: DoctorRequest) -> None:
    """Prints everything that is right and wrong with a run; raises UserError if it has a problem."""
    findings = list(examine(request))
    rows = [(finding.mark, finding.area, finding.text) for finding in findings]
    Terminal().print(table("", ("", "area", "finding"), rows, left=(0, 1, 2)))
    if problems := sum(finding.is_problem for finding in findings):
        count = "1 problem" if problems == 1 else f"{problems} problems"
        raise UserError(
            f"{count} with {request.source}; each PROBLEM line above says what to change."
        )


def examine(request: DoctorRequest) -> Iterator[Finding]:
    config, config_findings = load_config_with_problems(request)
    right = "every setting is known, has the right type and is in its range"
    yield from config_findings or _checked("config", (), right)
    if config is None:
        return
    try:
        functions = step_functions(config)
        specs = state_specs(functions)
    except UserError as error:
        yield from _problems("config", [str(error)])
        return
    problems = _mesh_problems(config, training_arrays(config, functions))
    yield from _checked("mesh", problems, "rows, groups, experts and every weight divide")
    if request.data is not None:
        checked = " and is as it was prepared" if request.reads_data else ""
        right = f"{request.data} fits the config{checked}"
        yield from _checked("data", _data_problems(config, request), right)
    state = sum(spec.nbytes for spec in specs.values())
    yield from _memory(state)
    yield from _disk(state, config, request.workdir or Path())


def _problems(area: str, texts: Iterable[str]) -> list[Finding]:
    return [Finding(area, text, "PROBLEM") for text in texts]


def _checked(area: str, problems: Iterable[str], right: str) -> list[Finding]:
    return _problems(area, problems) or [Finding(area, right, "ok")]


def load_config_with_problems(request: DoctorRequest) -> tuple[Config | None, list[Finding]]:
    """Returns the config, and what is wrong with its settings.

    In the config, settings with a problem have their defaults. If the file of the config does not
    exist, None is returned instead.
    """
    from gshard_nmt.settings.gin_reader import read_settings

    errors: list[str] = []
    try:
        settings = read_settings(request.source, request.overrides, problems=errors)
    except UserError as error:
        return None, _problems("config", [str(error)])
    refused: list[Key] = []
    config = None
    while config is None:
        try:
            config = build(settings)
        except UserError as error:
            wrong = [key for key in settings if ".".join(key) in error.settings] or list(settings)
            # If settings contradict each other, we remove the one that a --gin flag sets.
            wrong.sort(key=lambda key: not settings[key].where.startswith("--gin"))
            # Without a setting that was removed, others may be refused that are right.
            if not any(".".join(key) in error.settings for key in refused):
                errors.append(str(error))
            refused.append(wrong[0])
            del settings[wrong[0]]
    findings = _problems("config", dict.fromkeys(errors))
    if refused:
        values = named_settings(config.parts)
        defaults = ", ".join(f"{'.'.join(key)} = {values[key]!r}" for key in refused)
        text = f"the checks below use these defaults instead: {defaults}"
        findings.append(Finding("config", text, "note"))
    return config, findings


def _mesh_problems(config: Config, specs: ArraySpecs) -> list[str]:
    texts = [problem.text for problem in divides.problems(config, specs, decoding=True)]
    try:
        divides.check_validation(config)
    except UserError as error:
        texts.append(str(error))
    return list(dict.fromkeys(texts))


def _data_problems(config: Config, request: DoctorRequest) -> Iterator[str]:
    """Yields what does not fit the prepared data. If it cannot be read, this is the only problem."""
    from gshard_nmt.data.sets.shards import PreparedData
    from gshard_nmt.settings.gin_reader import read_settings

    assert request.data is not None
    try:
        prepared = PreparedData.open(request.data)
    except UserError as error:
        yield str(error)
        return
    misfits = list(map(str, prepared.misfits(config.data)))
    yield from misfits
    if not misfits:
        yield from config.train.metric_problems(prepared.languages(config.data, "dev"))
        set_by_user = read_settings(None, request.overrides, problems=[])
        names = [name for part, name in set_by_user if part == "Data"]
        try:
            fitted = config.replace(data=prepared.fitted(config.data, names))
            facts = prepared.summary(fitted.data.in_run(fitted.train.steps))
            known = _mesh_problems(config, training_arrays(config, step_functions(config)))
            true = _mesh_problems(fitted, training_arrays(fitted, step_functions(fitted, facts)))
            yield from (text for text in true if text not in known)
            divides.check_shared_embedding(fitted, prepared.folder)
            if request.workdir:
                run = RunFolder(request.workdir)
                run.check(run.with_precision(fitted, ALONE), prepared)
        except UserError as error:
            yield str(error)
    for name in prepared.changed_files() if request.reads_data else ():
        yield f"{name} of {request.data} was changed since it was prepared; prepare the data again"


def _memory(state: int) -> list[Finding]:
    """Checks that the training state alone fits this machine; a step needs more than that."""
    free = free_machine_memory()
    text = f"the training state takes {size_text(state)} of the {size_text(free)} of this machine"
    problem = f"{text}; make the model smaller, or take a machine with more memory."
    return _checked("memory", [problem] * (state > free), text)


def _disk(state: int, config: Config, workdir: Path) -> list[Finding]:
    """Checks that the last and the best checkpoints fit on the disk, and one that is being written.

    Those of Train.keep_every are not counted.
    """
    count = config.train.keep_last + config.train.keep_best + 1
    text = f"{count} checkpoints take {size_text(count * state)}"
    if paths.is_url(workdir):
        return _checked("disk", (), f"{workdir} is in a bucket; {text}")
    folder = workdir.absolute()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        return _problems("disk", [f"--workdir {workdir}: {folder} is a file; give a folder."])
    free = shutil.disk_usage(folder).free
    text += f" of the {size_text(free)} free at {folder}"
    problem = f"{text}; make room, or put --workdir on a larger disk."
    return _checked("disk", [problem] * (count * state > free), text)
