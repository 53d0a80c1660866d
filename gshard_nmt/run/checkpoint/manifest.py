"""The manifest of a checkpoint: its contents, and the checksums that verify them.

It is a JSON file in the folder of the checkpoint, written before the checkpoint is committed. It has a
checksum of its own.
"""

import dataclasses
import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

import gshard_nmt
from gshard_nmt import json_shape
from gshard_nmt.reading import UnsoundError
from gshard_nmt.run.checkpoint.checksums import slice_name, sliced_dimensions

FORMAT = 1
"""The version of the format of checkpoints. This package reads no other."""

NAME = "manifest.json"

_RECORD = json_shape.fields(
    {"sha256": json_shape.text(), "manifest": json_shape.mapping_of(json_shape.anything())}
)
"""The shape of the file. The shape of the manifest is not checked: the checksum detects damage."""


@dataclasses.dataclass(frozen=True)
class Scores:
    """The scores of a checkpoint on dev text, by names such as "dev_nll" or "dev_bleu/fr".

    `scored_with` has the settings of the validation. Scores with different settings are not compared.
    """

    values: Mapping[str, float] = dataclasses.field(default_factory=dict)
    scored_with: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class ForeignError(UnsoundError):
    """A checkpoint is of another run, another model or another format. It may be sound for others."""

    is_damage = False


@dataclasses.dataclass(frozen=True)
class Tensor:
    """Describes one tensor of a checkpoint: its letters, "" if unknown, and its uint32[R, E] checksums.

    `place` is its first word in the array that holds the small tensors; None if it has files of its own.
    """

    shape: tuple[int, ...]
    dtype: str
    letters: str
    sums: np.ndarray
    place: int | None = None

    def differing(self, sums: np.ndarray) -> str:
        """Returns the slices with other checksums, such as "repeat 0, expert 3"; "" if there are none."""
        different = np.argwhere(sums != self.sums).tolist()
        if not different:
            return ""
        if not self.sums.ndim:
            return "all of it"
        names = [slice_name(self.letters, index) for index in different[:3]]
        more = f" and {len(different) - 3} more" if len(different) > 3 else ""
        return "; ".join(names) + more


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The contents of a manifest."""

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    # digests of everything that must not change in a run, such as its vocabularies
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # further JSON values: of training, `training_state._facts`, which a later validation replaces
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # on dev text; empty without a validation
    scores: Scores = dataclasses.field(default_factory=Scores)
    average_of: tuple[str, ...] = ()  # the checkpoints that were averaged; () for one of training
    version: str = gshard_nmt.__version__
    # seconds since 1970; scores that come later do not change it
    saved_at: float = dataclasses.field(default_factory=time.time)

    @property
    def places(self) -> dict[tuple[str, str], int]:
        """The places of the packed tensors, as `tensor_files.pack` returned them."""
        return {
            (group, name): tensor.place
            for group, tensors in self.tensors.items()
            for name, tensor in tensors.items()
            if tensor.place is not None
        }

    @property
    def has_average(self) -> bool:
        """Whether it has a moving average of the weights (Train.ema), which is decoded."""
        return "ema" in self.tensors

    @property
    def group_to_decode(self) -> str:
        return "ema" if self.has_average else "parameters"

    @property
    def nbytes(self) -> int:
        return sum(
            int(np.prod(tensor.shape, dtype=np.int64)) * np.dtype(tensor.dtype).itemsize
            for tensors in self.tensors.values()
            for tensor in tensors.values()
        )

    @property
    def label(self) -> str:
        """The step and a SHA-256 of the manifest. No other checkpoint has the same label.

        Facts and scores, which may change after the save, do not count.
        """
        text = dataclasses.replace(self, facts={}, scores=Scores()).text
        return f"step {self.step}, {hashlib.sha256(text.encode()).hexdigest()}"

    @property
    def text(self) -> str:
        content: dict[str, Any] = {
            "format": FORMAT,
            "version": self.version,
            "step": self.step,
            "saved_at": self.saved_at,
            "facts": dict(self.facts),
            "scores": dict(self.scores.values),
            "scored_with": dict(self.scores.scored_with),
            "average_of": list(self.average_of),
            "files": dict(self.files),
            "tensors": {
                group: {name: _described(tensor) for name, tensor in sorted(tensors.items())}
                for group, tensors in self.tensors.items()
            },
        }
        return json.dumps({"sha256": _digest(content), "manifest": content}) + "\n"

    @classmethod
    def parse(cls, text: str) -> "Manifest":
        """Reads a manifest; raises UnsoundError if it is damaged or has another format."""
        try:
            record = json_shape.parse(text, _RECORD)
            content = record["manifest"]
            if record["sha256"] != _digest(content):
                raise UnsoundError(f"{NAME} is damaged: its checksum does not match")
            if content["format"] != FORMAT:
                raise ForeignError(
                    f"its format is {content['format']}, written by gshard-nmt {content['version']}; "
                    f"gshard-nmt {gshard_nmt.__version__} reads format {FORMAT}"
                )
            tensors = {
                group: {name: _tensor(*described) for name, described in table.items()}
                for group, table in content["tensors"].items()
            }
            return cls(
                tensors=tensors,
                scores=Scores(content["scores"], content["scored_with"]),
                average_of=tuple(content["average_of"]),
                **{n: content[n] for n in ("step", "files", "facts", "version", "saved_at")},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnsoundError(f"{NAME} is damaged: {error}") from None

    def check_files(self, files: Mapping[str, str]) -> None:
        """Raises ForeignError if the checkpoint belongs to a run with other digests."""
        changed = [
            name for name in sorted(files) if self.files.get(name, files[name]) != files[name]
        ]
        if changed:
            raise ForeignError(f"it belongs to another run: {', '.join(changed)} differ")

    def check_arrays(self, group: str, arrays: Mapping[str, Any]) -> None:
        """Raises ForeignError if a group does not have arrays of these names, shapes and dtypes."""
        tensors = self.tensors.get(group)
        if tensors is None:
            raise ForeignError(
                f"it is an average of {', '.join(self.average_of)} and has only weights: it can be "
                "decoded, not trained further"
                if self.average_of
                else f"it has no {group}"
            )
        stored = {n: f"{t.dtype}{list(t.shape)}" for n, t in tensors.items()}
        run = {n: f"{np.dtype(a.dtype).name}{list(a.shape)}" for n, a in arrays.items()}
        for name in sorted(stored.keys() | run.keys()):
            if stored.get(name) != run.get(name):
                own, other = stored.get(name, "missing"), run.get(name, "missing")
                raise ForeignError(f"{group}/{name} is {own}, and {other} in the run")


def _described(tensor: Tensor) -> list[Any]:
    sums = "".join(f"{value:08x}" for value in tensor.sums.reshape(-1).tolist())
    return [list(tensor.shape), tensor.dtype, tensor.letters, sums, tensor.place]


def _tensor(shape: list[int], dtype: str, letters: str, sums: str, place: int | None) -> Tensor:
    sums_shape = [shape[d] for d in sliced_dimensions(letters)]
    values = [int(sums[i : i + 8], 16) for i in range(0, len(sums), 8)]
    return Tensor(
        tuple(shape), dtype, letters, np.array(values, np.uint32).reshape(sums_shape), place
    )


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
