"""The run folder: the files that a training run keeps, and that decoding and evaluation read.

config.gin        the resolved configuration
parameters.txt    name, shape, dtype, sharding and bytes of every array
data.json         languages, directions, vocabulary sizes, and what must not change
source.model, target.model      the vocabularies
metrics.jsonl     one JSON object for each logged step
command.txt       the commands that trained it
budget.json       tokens seen of each language, steps, seconds
imported/         the files of a Hugging Face model, if the run began with one
init.json         the run that this one started from, and what each array began as (starting_point.py)
trainer.lock      names the trainer that is at work (lock.py)
tensorboard/  checkpoints/  programs/
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
import re
import shlex
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gshard_nmt
from gshard_nmt import files, json_shape, paths
from gshard_nmt.data.config import ONLY_PREPARED
from gshard_nmt.data.language_codes import known_as
from gshard_nmt.data.sets.manifest import VOCABULARIES, checksum, hash_of, read_manifest
from gshard_nmt.errors import TryAgain, UserError, did_you_mean
from gshard_nmt.json_shape import anything, fields, list_of, mapping_of, number, text, whole
from gshard_nmt.model.config import Model
from gshard_nmt.ranges import LARGEST_SIZE
from gshard_nmt.run.lock import LOCK_NAME
from gshard_nmt.settings.config import GIN_HEADER, Config, as_gin, differences
from gshard_nmt.settings.values import read_run_config
from gshard_nmt.spmd import machine, program_cache
from gshard_nmt.spmd.processes import Processes

if TYPE_CHECKING:
    from gshard_nmt.data.sets.shards import PreparedData
    from gshard_nmt.data.text.vocabulary import Vocabulary

RUN_FORMAT = "gshard-nmt run 1"
"""The format of a run folder, as data.json records it."""

INIT = "init.json"
"""What a run begins with, if it begins with the weights of another run."""

IMPORTED = "imported"
"""The folder of an imported model's own config and tokenizer. Runs that go on from it have it too."""

_COMMANDS = "command.txt"

VISIBLE_SECONDS = 75.0
"""The longest time until all processes see a new file. NFS may remember for 60 s that there is none."""

_MAY_CHANGE = tuple(f"Model.{n}:" for n in (*Model.COMPILATION, "initial_scale"))
_MAY_CHANGE += tuple(f"Data.{n}:" for n in ONLY_PREPARED)
"""The beginnings of the lines of `differences` about settings that a run may change.

Those of the prepared data have been compared with the data, which may not change.
"""

_TAG = text(r"[^/\0-\x1f\x7f-\x9f]+", "a name without slashes and control characters")
"""Files and folders are named by languages."""

_DATA = fields(
    {
        **dict.fromkeys(("format", "version", "corpus_fingerprint"), text()),
        **dict.fromkeys(("source_vocabulary", "target_vocabulary"), whole(1, LARGEST_SIZE)),
        "pairs": list_of(
            fields(
                {**dict.fromkeys(("source", "target", "language"), _TAG), "train_pairs": whole()}
            ),
            least=1,
        ),
        "files": fields(dict.fromkeys((*VOCABULARIES, "data", "config"), text())),
        "prepared": mapping_of(anything()),
    },
    {"subset_fingerprints": mapping_of(text()), "never": list_of(whole())},
)
"""The shape of data.json."""

_BUDGET = fields(
    {
        **dict.fromkeys(("steps", "parameters"), whole()),
        "seconds": number(),
        "tokens_by_language": mapping_of(whole()),
    }
)
"""The shape of budget.json."""


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """A run folder and its files."""

    path: Path
    # whether decoding may execute the compiled programs in the folder, which may be somebody else's
    trust_programs: bool = False

    @property
    def config(self) -> Path:
        return self.path / "config.gin"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def programs(self) -> Path:
        """Path of the folder of the programs of training. It is a cache and may be deleted.

        Programs are code that training executes. Whoever resumes a run that somebody else has trained
        should remove it first. The bilingual baselines of one run share the folder beside their
        baselines.json.
        """
        parent = self.path.parent
        record = parent / "baselines.json"
        # In a folder that everybody may write to, such as /tmp, the file may be somebody else's.
        if paths.is_url(parent):
            shared = record.exists()
        else:  # a link may point to a file of this user, so it is not followed
            shared = os.path.lexists(record) and (
                not self.path.exists() or record.lstat().st_uid == self.path.stat().st_uid
            )
        return (parent if shared else self.path) / "programs"

    @property
    def programs_to_decode(self) -> Path | None:
        """The cache of the user, or the programs of a trusted run folder; None if they are not kept."""
        if self.trust_programs and self.programs.is_dir():
            return self.programs
        return program_cache.user_cache()

    @property
    def metrics(self) -> Path:
        """Path of the log: one JSON object for each logged step."""
        return self.path / "metrics.jsonl"

    @functools.cached_property
    def data(self) -> dict[str, Any]:
        """The contents of `data.json`; raises UserError if the folder is not a run folder."""
        file = self.path / "data.json"
        if not file.exists():
            raise UserError(
                f"{self.path} is not a run folder: it has no data.json. Give the --workdir of a "
                "gshard-train run."
            )
        remedy = "Restore the file from a copy of the run folder."
        data = json_shape.read(file, mapping_of(anything()), remedy)
        if (written := data.get("format", RUN_FORMAT)) != RUN_FORMAT:
            raise UserError(
                f"{self.path} has the format {written!r} of gshard-nmt {data.get('version', '?')}; this "
                f"is gshard-nmt {gshard_nmt.__version__}, which reads {RUN_FORMAT!r}. Use the version "
                "that made the run, or train it again in another folder."
            )
        return dict(json_shape.read(file, _DATA, remedy))

    @property
    def directions(self) -> list[tuple[str, str]]:
        """The source and the target language of each direction, as BCP 47 tags."""
        return [(pair["source"], pair["target"]) for pair in self.data["pairs"]]

    def identity(self) -> dict[str, str]:
        """Returns the SHA-256 of what must stay the same in this run, as recorded; see `identity_of`."""
        return dict(self.data["files"])

    def budget(self) -> dict[str, Any]:
        """Returns the contents of `budget.json`, or {} before the first checkpoint."""
        remedy = "Remove it; the next checkpoint of gshard-train writes it again."
        return json_shape.read_if_there(self.path / "budget.json", _BUDGET, remedy) or {}

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Writes a file of the folder. A reader sees the old file or the new one, never a part."""
        files.write_json(self.path / name, value)

    def write_text(self, name: str, text: str) -> None:
        files.write(self.path / name, text)

    def record_command(self, command: str) -> None:
        """Adds a command to command.txt, unless the last start had the same one, or it is empty."""
        file = self.path / _COMMANDS
        try:
            text = file.read_text(encoding="utf-8") if file.exists() else ""
        except (OSError, UnicodeDecodeError):
            return  # what cannot be read now must not be lost
        if command and self.commands()[-1:] != [command]:
            end = "" if text.endswith("\n") or not text else "\n"
            self.write_text(_COMMANDS, f"{text}{end}{command}\n")

    def commands(self) -> list[str]:
        """Returns the commands that trained the run, in order; [] if none is recorded or can be read.

        Each begins on a line of its own, as a shell reads it. A value in quotes may have several lines.
        """
        try:
            text = (self.path / _COMMANDS).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return []
        return re.findall(r"""^(?:[^'"\n]|'[^']*'|"[^"]*")+$""", text, re.MULTILINE)

    def vocabularies(self) -> tuple["Vocabulary", "Vocabulary"]:
        """Loads the source and the target vocabulary; raises UserError if one is not that of the run."""
        from gshard_nmt.data.text.vocabulary import Vocabulary

        for name, recorded in self.identity().items():
            if name in VOCABULARIES and not self._is_intact(name, recorded):
                raise UserError(
                    f"{self.path / name} is damaged or missing: it is not the vocabulary that the run "
                    "was trained with. Restore it from a copy of the run folder; gshard-train restores "
                    "it from the prepared data."
                )
        source, target = (Vocabulary.load(self.path / name) for name in VOCABULARIES)
        return source, target

    def direction(self, source: str, target: str) -> tuple[str, str]:
        """Returns the source and target language of a request to translate; "" was not given."""
        sources = {own for own, _ in self.directions}
        source = _choose("--lang", source, sources, "this model translates from")
        targets = {other for own, other in self.directions if own == source}
        return source, _choose(
            "--target", target, targets, f"from {source} this model translates to"
        )

    def check(self, config: Config, data: "PreparedData", is_first: bool = True) -> None:
        """Checks that the folder is free for a new run, or holds a run of the same model and data.

        When a run is resumed, the mesh, the number of processes and of steps, and the way in which the
        model is compiled may change. The model itself, the vocabularies and the data may not. Nothing is
        written. Only the first process decides that the files in the folder are not those of a run: the
        others may see it while the first one makes it, or see an old state of a network file system.
        """
        if (self.path / "data.json").exists():
            self._check_same(config, data)
            return
        for path in paths.entries(self.path) if is_first else ():
            if not self._is_of_a_claim(path, data):
                raise UserError(
                    f"--workdir {self.path} has files in it and is not a run folder: {path.name} is in "
                    "it, but no data.json. Choose a new folder, or empty this one."
                )

    def with_precision(self, config: Config, processes: Processes) -> Config:
        """Replaces Model.matmul_precision = 'auto' by that of the run, or what is fast on this CPU."""
        if config.model.matmul_precision != "auto":
            return config

        def decide() -> str:
            if (self.path / "data.json").exists():
                return read_run_config(self.config).model.matmul_precision
            return "bfloat16" if machine.multiplies_bfloat16() else "default"

        return config.replace(model={"matmul_precision": processes.from_first(decide)})

    def claim(
        self, config: Config, data: "PreparedData", inherited: Mapping[str, Any] | None = None
    ) -> None:
        """Makes the folder of a new run, or checks the run in it as `check` does. Process 0 calls it.

        `inherited` is what data.json of a new run has besides.
        `data.json` is written last and makes the folder a run folder. If a claim is killed at any
        moment, the same claim can be made again.
        """
        self.check(config, data)
        self.path.mkdir(parents=True, exist_ok=True)
        is_new = not (self.path / "data.json").exists()
        recorded = identity_of(config, data) if is_new else self.identity()
        for name in VOCABULARIES:
            # The folder of a run that is resumed gets a vocabulary only if it has lost its own.
            if not self._is_intact(name, recorded[name]):
                files.write(self.path / name, (data.folder / name).read_bytes())
        if is_new:
            self.write_text("config.gin", config.text)
            facts = {
                "format": RUN_FORMAT,
                "version": gshard_nmt.__version__,
                "files": recorded,
                "prepared": data.manifest["data"],
            }
            self.write_json("data.json", facts | data.summary(config.data) | dict(inherited or {}))
        self._remove_leftovers()

    def wait_for(self, name: str, clock: Any = time) -> None:
        """Waits until this process sees a file that process 0 writes; UserError if it never does.

        A network file system may show a folder for a minute as it was when somebody last looked.
        """
        deadline = clock.monotonic() + VISIBLE_SECONDS
        while not (self.path / name).exists():
            if clock.monotonic() >= deadline:
                raise UserError(
                    f"{self.path / name}: this process does not see what process 0 wrote. All processes "
                    "must see the same --workdir; give a folder on a shared file system."
                )
            clock.sleep(0.1)

    def write_config(self, config: Config) -> None:
        """Writes the config of a run that is resumed, when it is known that the run starts."""
        if self.config.read_text(encoding="utf-8") != config.text:
            self.write_text("config.gin", config.text)

    def check_data(self, data: "PreparedData") -> None:
        """Raises UserError if the prepared data on the disk is not that of this run any more.

        Call it before a checkpoint is saved: if the data was prepared anew in the meantime, the run may
        have seen examples of both.
        """
        manifest = None
        # If it is out of reach for a moment, we save: the examples of the run so far were right.
        with contextlib.suppress(TryAgain):
            manifest = read_manifest(data.folder)
        # If the manifest is equal, no process needs to read both vocabularies before a save.
        if manifest is None or hash_of(manifest) == self.data["files"]["data"]:
            return
        changed = data_differences(self.data, dataclasses.replace(data, manifest=manifest))
        if changed:
            lines = "".join(f"\n  {line}" for line in changed)
            raise UserError(
                f"--data {data.folder} was prepared anew while {self.path} was training on it; the run "
                f"stops without saving:{lines}\nPrepare the data as it was, and start the run again."
            )

    def _is_intact(self, name: str, recorded: str) -> bool:
        path = self.path / name
        return path.is_file() and recorded == checksum(path)

    def _is_of_a_claim(self, path: Path, data: "PreparedData") -> bool:
        """Returns whether a claim of a run of this data may have written a file."""
        if path.name in VOCABULARIES:
            return path.is_file() and path.read_bytes() == (data.folder / path.name).read_bytes()
        if path.name == self.config.name:
            return path.is_file() and path.read_bytes().startswith(GIN_HEADER.encode())
        # A log of this start, a volume's own folder, and hidden files do no harm.
        return (
            path.name in (INIT, IMPORTED, "lost+found")
            or path.name.startswith((".", LOCK_NAME))
            or path.suffix in (".log", ".out", ".err")
        )

    def _remove_leftovers(self) -> None:
        """Removes temporary files of writers that were killed. The caller must hold the lock."""
        for folder in ("", "*/", "*/*/"):
            for path in self.path.glob(f"{folder}{files.TEMPORARY_PREFIX}*"):
                with contextlib.suppress(OSError):  # an export may work in a folder, or was killed
                    if folder and path.stat().st_mtime > time.time() - 3600:
                        continue  # programs without the lock write there, in less than an hour
                    if path.is_dir() and not folder:
                        path.rmdir()  # `outputs.check_folder` made it
                    elif path.suffix != ".lock":
                        path.unlink()

    def _check_same(self, config: Config, data: "PreparedData") -> None:
        recorded = read_run_config(self.config)
        changed = [
            line
            for part in ("model", "data", "optimizer", "train")
            for line in differences(getattr(recorded, part), getattr(config, part))
            # Frozen weights have no moments, so a checkpoint fits no other choice.
            if line.startswith("Train.freeze:")
            or (part != "train" and not line.startswith(_MAY_CHANGE))
        ]
        changed += data_differences(self.data, data)
        if not changed:
            return
        lines = "".join(f"\n  {line}" for line in changed)
        remedy = "Use the config and data of that run, prepared as they were, or another --workdir."
        if not self.budget() and not paths.entries(self.checkpoints):
            remedy += (
                " This run has saved no checkpoint, so nothing is lost if you remove the folder."
            )
        elif not any(line.startswith("Model.model_dim:") for line in changed):
            remedy += (
                f" With --init_from {shlex.quote(str(self.path))} and a new --workdir, the same command "
                "starts a new run with the weights of this one and the settings of now."
            )
        raise UserError(
            f"--workdir {self.path} was made with other settings or other data:{lines}\n{remedy}"
        )


def _choose(flag: str, language: str, languages: Collection[str], translates: str) -> str:
    """Returns the language that a flag means; the only one if the flag was not given."""
    known = sorted(languages)
    if not language and len(known) > 1:
        raise UserError(f"{flag} is missing: {translates} {', '.join(known)}; give one of them.")
    name = known_as(language or known[0], known)
    if name is None:
        raise UserError(
            f"{flag} {language}: {translates} {', '.join(known)}{did_you_mean(language, known)} "
            "Choose one of these."
        )
    return name


def identity_of(config: Config, data: "PreparedData") -> dict[str, str]:
    """Computes the SHA-256 of everything that must stay the same in a run, as hex digits.

    The names are "source.model", "target.model" (the files), "data" (the manifest of the prepared data)
    and "config" (the text of Model, Data and Optimizer).
    """
    return {
        **{name: checksum(data.folder / name) for name in VOCABULARIES},
        "data": hash_of(data.manifest),
        "config": hash_of_settings(config),
    }


def hash_of_settings(config: Config) -> str:
    text = as_gin([config.model, config.data, config.optimizer])
    return hashlib.sha256(text.encode()).hexdigest()


def data_differences(recorded: Mapping[str, Any], data: "PreparedData") -> list[str]:
    """Returns a line for each difference between the data of a run, its `data.json`, and other data."""
    lines = []
    files = recorded["files"]
    if files["data"] != hash_of(data.manifest):
        before, now = recorded["prepared"], data.manifest["data"]
        settings = [
            f"the prepared data: Data.{name} was {before.get(name)!r}, now {now.get(name)!r}"
            for name in sorted(before.keys() | now.keys())
            if before.get(name) != now.get(name)
        ]
        lines += settings or [
            "the prepared data: other contents, though it was prepared with the same settings"
        ]
    for name in VOCABULARIES:
        now = checksum(data.folder / name)
        if files[name] != now:
            side = name.removesuffix(".model")
            lines.append(f"the {side} vocabulary: SHA-256 {files[name][:12]}, now {now[:12]}")
    return lines
