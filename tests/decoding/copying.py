"""A translator whose compiled search is replaced: a translation is a copy of its source."""

import types

import numpy as np

from gshard_nmt.decoding.translator import Translator
from gshard_nmt.run.arrays import step_functions
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.gin_reader import load_config

EOS = 1
CONFIG = load_config("demo").replace(
    mesh={"shape": (1,)},
    decode={
        "rows": 3,
        "source_lengths": (8, 4),
        "length_ratio": 1.5,
        "length_margin": 2,
        "beam": 2,
    },
)


class CopyingDevices:
    """Copies each source, scored minus its length; of an odd number of ids there is one copy only."""

    mesh = CONFIG.mesh
    is_cpu = False

    def __init__(self, nbest: int = 1) -> None:
        self.nbest = nbest
        self.compiled: list[str] = []
        self.compiling: list[str] = []
        self.most_at_once = 0
        self.checked: list[tuple[str, ...]] = []
        self.batches: list[dict[str, np.ndarray]] = []

    def compile(self, key, lower, independent_rows, meanwhile=None):
        assert independent_rows
        self.compiled.append(key)
        self.compiling.append(key)
        self.most_at_once = max(self.most_at_once, len(self.compiling))
        if meanwhile:
            meanwhile()
        self.compiling.remove(key)
        signature = types.SimpleNamespace(inputs=({}, {}))
        program = lambda p, batch=None: [p] if batch is None else self.search(batch)  # noqa: E731
        return type(
            "Program", (), {"signature": signature, "__call__": lambda _, *g: program(*g)}
        )()

    def check_fits(self, program, work, held):
        self.checked.append((work.name, *held))

    def put(self, arrays, specs):
        self.batches.append(arrays)
        return arrays

    def fetch(self, arrays):
        return arrays

    def search(self, batch):
        ids = np.repeat(batch["source_ids"][:, np.newaxis], self.nbest, axis=1)
        lengths = np.repeat(
            (batch["source_segments"] > 0).sum(1)[:, np.newaxis], self.nbest, axis=1
        )
        lengths[:, 1:][lengths[:, 1:] % 2 == 1] = 0
        return [{"ids": ids, "scores": -lengths.astype(np.float32), "lengths": lengths}]


def copying(
    nbest: int = 1, config: Config = CONFIG, is_cpu: bool = False, **weights: object
) -> tuple[Translator, CopyingDevices]:
    """Returns a translator with these weights, and its devices."""
    devices = CopyingDevices(nbest)
    devices.is_cpu = is_cpu
    return Translator(config, step_functions(config), devices, weights, nbest), devices
