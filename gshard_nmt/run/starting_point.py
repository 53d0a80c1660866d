"""A run that starts from another run: `gshard-train --init_from`.

It takes over the weights of the other run, as far as they fit, and their moments. Its own data,
vocabularies, languages, schedule, depth and number of experts may differ. init.json in the run folder
records what each array began as.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from gshard_nmt import files, json_shape, paths
from gshard_nmt.data.sets.manifest import VOCABULARIES, checksum
from gshard_nmt.data.text import vocabulary_match
from gshard_nmt.data.text.vocabulary import Vocabulary
from gshard_nmt.data.text.vocabulary_match import RowMatch
from gshard_nmt.errors import UserError
from gshard_nmt.model import inheritance
from gshard_nmt.model.inheritance import Origin, Origins
from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run import training_state
from gshard_nmt.run.arrays import shape_text, state_specs, step_functions, weight_specs, weights_of
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints, usable
from gshard_nmt.run.checkpoint.weights import Chosen, load_weights
from gshard_nmt.run.folder import IMPORTED, INIT, RunFolder
from gshard_nmt.run.starting_arrays import Recipe, assemble, is_whole, placed
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.values import read_run_config
from gshard_nmt.spmd.lowering import ArraySpec, ArraySpecs
from gshard_nmt.spmd.processes import Processes
from gshard_nmt.spmd.runtime import Runtime
from gshard_nmt.terminal import Terminal, table

if TYPE_CHECKING:
    from gshard_nmt.data.sets.shards import PreparedData

_RECORD = json_shape.fields({"from": json_shape.text(), "checkpoint": json_shape.text()})


@dataclasses.dataclass(frozen=True)
class Init:
    """What the user asks for with --init_from: a run folder, absolute, and a value of --checkpoint."""

    run: str
    checkpoint: str = "best"

    @classmethod
    def of(cls, run: Path, checkpoint: str) -> "Init":
        Chosen.parse(checkpoint)
        return cls(str(paths.absolute(run)), checkpoint)

    def __str__(self) -> str:
        return f"{self.run}, checkpoint {self.checkpoint}"


@dataclasses.dataclass
class StartingPoint:
    """Another run, and what the weights of a new run take over from it."""

    init: Init
    run: RunFolder  # the other run
    config: Config  # its config
    old_specs: ArraySpecs  # its weights
    specs: ArraySpecs  # the arrays of the state of the new run
    origins: Mapping[str, Origins]  # what each weight of the new run begins with
    rows: Mapping[str, RowMatch]  # which rows each weight with a row for each piece takes over
    # what data.json takes over: the ids that an imported model never writes
    inherited: Mapping[str, Any]
    # Updates that the moments of the other run have seen; 0 if none is taken over. As the following
    # fields, `read` sets it.
    moment_steps: int = 0
    devices: Any = None
    arrays: dict[str, Any] = dataclasses.field(default_factory=dict)  # by their names in the state
    recipe: Any = None  # what becomes of them
    loaded: Any = None  # which weights they are

    @classmethod
    def find(
        cls,
        run: RunFolder,
        wanted: Init | None,
        config: Config,
        data: "PreparedData",
        functions: StepFunctions,
    ) -> Self | None:
        """Returns where a run starts from; None if it starts with random weights, or has started.

        `wanted` is what the user asks for now; None takes what the folder records. Raises UserError if
        the run has started from something else, or if the other run does not fit.
        """
        record = _recorded(run)
        recorded = Init(record["from"], record["checkpoint"]) if record else None
        has_started = bool(run.budget() or Checkpoints(run.checkpoints).steps())
        if wanted and wanted != recorded and has_started:
            raise UserError(
                f"--init_from is {wanted}, but the run in --workdir {run.path} started from "
                f"{recorded or 'random weights'}. Leave out --init_from to resume it, or give another "
                f"--workdir. If that run was moved, correct its path in {run.path / INIT}."
            )
        init = wanted or recorded
        return cls.open(init, config, data, functions) if init and not has_started else None

    @classmethod
    def open(
        cls, init: Init, config: Config, data: "PreparedData", functions: StepFunctions
    ) -> Self:
        """Compares another run with a new one. It reads no weight.

        Raises UserError if the folder is no run folder, or its model has another Model.model_dim.
        """
        run = RunFolder(paths.folder_path("init_from", init.run))
        facts = run.data  # raises if it is no run folder
        old = read_run_config(run.config)
        sizes = old.model.model_dim, config.model.model_dim
        if sizes[0] != sizes[1]:
            raise UserError(
                f"--init_from {init.run} has Model.model_dim = {sizes[0]}, and this run has {sizes[1]}, "
                f"so no weight fits. Set Model.model_dim = {sizes[0]}, or start from another run."
            )
        specs, old_specs = state_specs(functions), weight_specs(step_functions(old, facts))
        origins = inheritance.origins(old.model, old_specs, config.model, weights_of(specs))
        of_pieces = {n: o for n, (o, *_) in origins.items() if o and o.resized == "V"}
        is_shared = all(m.shared_embedding and m.encoder_layers for m in (old.model, config.model))
        rows = {
            n: _matched_rows(n, old_specs[o.name].shape[0], run, data, is_shared)
            for n, o in of_pieces.items()
        }
        same = {n: [Origin(of_pieces[n].name)] for n, match in rows.items() if match.is_identity}
        inherited = _inherited(run, data)
        return cls(init, run, old, old_specs, specs, origins | same, rows, inherited)

    def record(self, run: RunFolder) -> None:
        """Records in a run folder where the run starts from. Process 0 calls it."""
        record = {"from": self.init.run, "checkpoint": self.init.checkpoint}
        # A complete record stays, if a run comes here again before its first checkpoint.
        if record.items() <= (_recorded(run) or {}).items():
            return
        if self.inherited and (self.run.path / IMPORTED).is_dir():
            (run.path / IMPORTED).mkdir(exist_ok=True)
            for file in (self.run.path / IMPORTED).iterdir():
                files.write(run.path / IMPORTED / file.name, file.read_bytes())
        run.write_json(INIT, record)

    def read(self, devices: Runtime, processes: Processes) -> Self:
        """Reads and verifies the weights of the other run, and the moments of their optimizer.

        A mean of several checkpoints has no moments. All processes call this together.
        """
        checkpoints = Checkpoints.of(self.run, self.config.train, processes)
        choice = Chosen.parse(self.init.checkpoint)
        loaded = load_weights(checkpoints, choice, placed(devices, self.old_specs))
        arrays: dict[str, Any] = {f"parameters/{n}": array for n, array in loaded.weights.items()}
        specs = {f"parameters/{name}": spec for name, spec in self.old_specs.items()}
        if choice.kind != "average":
            with usable(checkpoints.folder / str(loaded.step)):
                manifest = checkpoints.manifest(loaded.step)
            others = {
                name: ArraySpec(tensor.shape, np.dtype(tensor.dtype), tensor.letters)
                for name, tensor in manifest.tensors.get("optimizer", {}).items()
            }
            if others:
                wanted = {"optimizer": placed(devices, others)}
                arrays |= checkpoints.restore(wanted, [loaded.step]).groups["optimizer"]
                specs |= others
            self.moment_steps = loaded.step + manifest.facts.get("moment_steps", 0)
        self.devices, self.arrays, self.recipe = devices, arrays, self._recipe(specs)
        if not any(name.startswith("moments/") for name in self.recipe.origins):
            self.moment_steps = 0
        self.loaded = dataclasses.replace(loaded, weights={})  # `arrays` has them
        return self

    def weights_beside(
        self, learned: Mapping[str, Any], devices: Runtime
    ) -> tuple[dict[str, Any], str]:
        """Reads the weights of the other run in the shapes of the new one, and says of which checkpoint.

        What the other run does not have is as in the learned weights: its value at the start is no
        knowledge. So are weights that have another shape, except for the rows of known pieces.
        """
        choice = Chosen.parse(self.init.checkpoint)
        checkpoints = Checkpoints.of(self.run, self.config.train)
        loaded = load_weights(checkpoints, choice, placed(devices, self.old_specs))
        specs = weights_of(self.specs)
        known = {}
        for name, match in self.rows.items():
            pairs = zip(match.sources, match.is_known, strict=True)
            sources = [ids if is_known else () for ids, is_known in pairs]
            known[name] = dataclasses.replace(match, sources=sources)
        recipe = Recipe(self.origins, self.old_specs, specs, known)
        same = {n: o for n, o in self.origins.items() if n in known or is_whole(n, o, recipe)}
        recipe = dataclasses.replace(recipe, origins=same)
        return assemble(devices, recipe, loaded.weights, learned), loaded.origin

    def _recipe(self, old_specs: ArraySpecs) -> Recipe:
        """Returns what each array of the state begins with; moments follow their weights."""
        origins: dict[str, Origins] = {}
        rows: dict[str, RowMatch] = {}
        for name in self.specs:
            place, weight = _split(name)
            entries = [
                dataclasses.replace(
                    origin,
                    name=f"{place}/{origin.name}",
                    silent=origin.silent and place == "parameters",
                )
                if origin and f"{place}/{origin.name}" in old_specs
                else None
                for origin in (self.origins[weight] if place else ())
            ]
            if any(entries):
                origins[name] = entries
                if weight in self.rows:
                    rows[name] = self.rows[weight]
        return Recipe(origins, old_specs, self.specs, rows)

    def applied_to(self, initial: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the state of step 0 of the new run, made from that of `CompiledSteps.initialize`.

        It takes the old arrays, so call it once. A moving average begins as the weights.
        """
        state = assemble(self.devices, self.recipe, self.arrays, initial)
        self.arrays.clear()
        weights = weights_of(state)
        averages = {name: weights[name[4:]] for name in state if name.startswith("ema/")}
        return state | training_state.copied(averages) if averages else state

    def report(self, run: RunFolder, is_first: bool, note: Callable[[str], None]) -> None:
        """Process 0 prints the table to stdout and a line through `note`, and writes init.json."""
        if not is_first:
            return
        for problem in self.loaded.passed_over:
            note(f"{problem}. Using the checkpoint of {self.loaded.origin} instead")
        rows = self._table()
        header = ("array", "shape", "moments", "begins as")
        cells = ((r["array"], shape_text(r["shape"]), r["moments"], r["begins"]) for r in rows)
        Terminal().print(table("", header, cells, left=range(len(header))))
        note(f"starting from {self.init.run}, {self.loaded.origin}")
        facts = {
            "from": self.init.run,
            "checkpoint": self.init.checkpoint,
            "weights": self.loaded.origin,
            "arrays": rows,
        }
        run.write_json(INIT, facts)

    def _table(self) -> list[dict[str, Any]]:
        """Returns a row for each weight, and for each old weight that is left out.

        Moments are "kept", "new", or "frozen" if training does not change the weight.
        """
        table = []

        def moments_in(names: Iterable[str]) -> set[str]:
            return {_split(name)[1] for name in names if name.startswith("moments/")}

        kept, trained = moments_in(self.recipe.origins), moments_in(self.specs)
        for name, spec in weights_of(self.specs).items():
            entries = self.origins[name]
            if entries[0] and entries[0].resized == "V":
                begins = self.rows[name].text
            else:
                begins = inheritance.describe(name, entries, self.old_specs, spec)
            moments = "kept" if name in kept else "new" if name in trained else "frozen"
            table.append({"array": name, "shape": spec.shape, "moments": moments, "begins": begins})
        for name, part in inheritance.left_out(self.origins, self.old_specs).items():
            row = {"array": name, "shape": self.old_specs[name].shape, "moments": ""}
            table.append(row | {"begins": f"left out: {part}"})
        return table


def _recorded(run: RunFolder) -> Any:
    remedy = "Restore it from a copy of the run folder."
    return json_shape.read_if_there(run.path / INIT, _RECORD, remedy)


def _split(name: str) -> tuple[str, str]:
    """Returns ("moments/row", "encoder/...") of an array of the state; ("", "") if it is of no weight."""
    match = re.fullmatch("(parameters|moments/[a-z]+)/(.*)", name)
    return (match[1], match[2]) if match else ("", "")


def _inherited(run: RunFolder, data: "PreparedData") -> dict[str, Any]:
    """Returns the ids that an imported model never writes, if a new run keeps all its ids."""
    if "never" not in run.data and not (run.path / IMPORTED).is_dir():
        return {}
    never = list(run.data.get("never", ()))
    for old, name in zip(run.vocabularies(), VOCABULARIES, strict=True):
        new = Vocabulary.load(data.folder / name).keys()
        if new[: old.size] != old.keys():
            return {}
    # New tags, and pieces of the source alone, are never written either.
    never += [i for i, (kind, _) in enumerate(new) if i >= old.size and kind == "control"]
    return {"never": never}


def _matched_rows(
    weight: str, old_size: int, run: RunFolder, data: "PreparedData", is_shared: bool
) -> RowMatch:
    """Returns the rows of a weight of the other run, one for each piece, that a new weight takes over."""
    name = "source.model" if weight == "source_embedding" else "target.model"
    if run.identity()[name] == checksum(data.folder / name):
        return vocabulary_match.identity(old_size)
    olds = dict(zip(VOCABULARIES, run.vocabularies(), strict=True))
    match, other = (
        vocabulary_match.match_rows(olds[each], Vocabulary.load(data.folder / each))
        for each in (name, "source.model" if is_shared else name)
    )
    # A new tag of a source may have tags of its kind there alone.
    sources = [
        ids or of_source for ids, of_source in zip(match.sources, other.sources, strict=True)
    ]
    return dataclasses.replace(match, sources=sources)
