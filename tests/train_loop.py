"""The loop of gshard-train with a training step that is a Python function: steps, fixtures, readers."""

import json
import types

import numpy as np
import pytest

from gshard_nmt import train
from gshard_nmt.data.batching.batches import TrainBatches
from gshard_nmt.model.guard import BAD_LOSS, FINE
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints
from gshard_nmt.run.checkpoint.manifest import Scores
from gshard_nmt.run.compiled_steps import CompiledSteps
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.training_state import without_arrays
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.lowering import ArraySpec
from gshard_nmt.spmd.program import ProgramMemory
from tests.data.synthetic import write_prepared_data

DEMO = load_config("demo").replace(
    # The vocabularies of these tests are empty, so there is no text to change.
    data={
        "source_length": 24,
        "target_length": 20,
        "rows": 4,
        "minimum_pairs": 1,
        "augmentation": {},
    },
    model={"num_groups": 4},
)
CONFIG = DEMO.replace(
    train={"steps": 6, "log_every": 1, "checkpoint_every": 2, "dev_every": 0, "bleu_sentences": 0}
)
LANGUAGES = 2
TOKENS_PER_STEP = 100

bad_calls: set[int] = set()
calls: list[int] = []
batches: list[np.ndarray] = []
"""The languages of the batch of each call."""


class Step:
    """A training step that adds 1 to the weights, unless its call is one of `bad_calls`."""

    lower_seconds = compile_seconds = 0.0

    def __init__(self, steps: "Steps") -> None:
        self.steps = steps

    def collectives(self) -> dict[str, int]:
        return {}

    def memory(self) -> ProgramMemory:
        return ProgramMemory(1, 1, 1, 1)

    def __call__(self, state, batch, control):
        assert batch["source_ids"].shape == (self.steps.config.data.rows, 24)
        calls.append(len(calls) + 1)
        batches.append(np.array(batch["target_languages"]))
        status = BAD_LOSS if calls[-1] in bad_calls else FINE
        host = {name: np.array(array) for name, array in state.items()}
        host["step"] += 1
        host["tokens"][0, 0] += TOKENS_PER_STEP
        if status == FINE:
            host["parameters/w"] += 1
        metrics = {
            **dict.fromkeys(("loss", "nll"), np.float32(np.nan if status else 1.0)),
            **dict.fromkeys(("aux_loss", "overflow_fraction", "tokens"), np.float32(1)),
            **dict.fromkeys(("gradient_norm", "usual_gradient_norm"), np.float32(1)),
            "last_step": np.int32(CONFIG.train.steps),
            "status": np.int32(status),
            "tokens_seen": host["tokens"],
            "layer_effective_experts": np.full(2, 8, np.float32),
        }
        return self.steps.devices.put(host, self.steps.state_specs), metrics


class Steps(CompiledSteps):
    """The programs of a run whose model is one weight."""

    @property
    def state_specs(self):
        return {
            "parameters/w": ArraySpec((2,), np.dtype(np.float32), "E"),
            "step": ArraySpec((), np.dtype(np.int32), ""),
            "tokens": ArraySpec((LANGUAGES, 2), np.dtype(np.uint32), "__"),
        }

    @property
    def train_step(self):
        return Step(self)

    def initialize(self):
        zeros = {name: np.zeros(s.shape, s.dtype) for name, s in self.state_specs.items()}
        return self.devices.put(zeros, self.state_specs)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "prepared"
    return write_prepared_data(folder, CONFIG.data, {"fr": 40, "de": 20})


@pytest.fixture
def run(prepared, tmp_path, monkeypatch):
    """Returns a function that starts the run with some changed settings."""
    bad_calls.clear()
    calls.clear()
    batches.clear()
    words = types.SimpleNamespace(decode=lambda sentences: [str(ids) for ids in sentences])
    monkeypatch.setattr(train, "CompiledSteps", Steps)
    monkeypatch.setattr(RunFolder, "vocabularies", lambda self: (words, words))

    def start(limit=None, data=None, name="run", **changes):
        config = CONFIG.replace(train=changes, data=data or {})
        options = train.Start(limit) if limit else None
        return train.train(config, prepared.folder, tmp_path / name, start=options)

    start.folder = RunFolder(tmp_path / "run")
    return start


def lines_of(run) -> list[dict]:
    return [json.loads(line) for line in run.folder.metrics.read_text().splitlines()]


def final(run) -> tuple[int, float, int]:
    """Returns the step, the weight and the tokens of the newest checkpoint."""
    checkpoints = Checkpoints(run.folder.checkpoints)
    manifest = checkpoints.newest()
    counters = without_arrays(manifest, "dev_nll").counters
    weight = checkpoints.read(manifest, "parameters", "w")
    return counters.step, float(weight[0]), counters.total_tokens


def position_saved(run) -> int:
    """Returns the sum of the positions in the data of the newest checkpoint."""
    checkpoints = Checkpoints(run.folder.checkpoints)
    return int(checkpoints.read(checkpoints.newest(), "input", "position")[..., 0].sum())


def position_after(prepared, batches: int) -> int:
    """Returns the sum of the positions in the data after a number of batches."""
    source = TrainBatches(prepared, CONFIG.data)
    for _ in range(batches):
        next(source)
    source.close()
    return int(source.position().sum())


@pytest.fixture
def validations(monkeypatch):
    """Replaces validation. Returns the steps that it scores, and the steps at which it fails."""
    seen, fails = [], set()

    class Validation:
        warning = ""

        def __init__(self, *arguments):
            self.stoppable = arguments[-1]

        def run(self, counters, *_):
            if counters.step in fails:
                raise RuntimeError("the devices have no memory left")
            seen.append(counters.step)
            return f"step {counters.step}", Scores({"dev_nll": 1.0}, {}), {}

    monkeypatch.setattr(train, "Validation", Validation)
    return seen, fails


class Limit:
    """A time limit that is over after some questions."""

    minutes = 1

    def __init__(self, questions: int) -> None:
        self.questions = questions

    def is_over(self) -> bool:
        self.questions -= 1
        return self.questions < 0
