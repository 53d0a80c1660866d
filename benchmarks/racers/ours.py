"""This package as a racer."""

import dataclasses
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from racers.plan import (
    DECODER_LAYERS,
    ENCODER_LAYERS,
    HEADS,
    HIDDEN_DIM,
    MODEL_DIM,
    VOCABULARY,
    Plan,
    last_number,
)

ROWS = 16
COOLDOWN = 0.4
"""The share of a run in which the learning rate falls to 0, as in configs/experiments/demo.gin."""
WARMUP = 0.05
"""The share of a run in which the learning rate rises, about as in configs/runs/demo.gin."""
LEARNING_RATE = 1.5
"""That of configs/experiments/demo.gin, with experts and without."""


def data_settings(source: str) -> dict[str, Any]:
    """Returns the settings that the prepared data and a run share.

    The vocabulary is joint, because the peers recommend one embedding for both sides.
    """
    return {
        "Data.languages": (source,),
        "Data.vocabulary": "joint",
        "Data.source_vocabulary": VOCABULARY,
        "Data.target_vocabulary": VOCABULARY,
    }


@dataclasses.dataclass(frozen=True)
class Ours:
    """A model of this package: the demo's settings, but for its size and its length. Dense by default."""

    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seed: int = 1
    name: ClassVar[str] = "gshard-nmt"
    requirements: ClassVar[Path | None] = None
    stop_signal: ClassVar[int] = signal.SIGINT
    variables: ClassVar[Mapping[str, str]] = {}

    def settings(self, plan: Plan) -> dict[str, Any]:
        # Two devices are faster than two threads of one. The number must divide the groups and experts.
        devices = max(n for n in (1, 2, 4, 8) if n <= plan.cores)
        own = {
            "STEPS": plan.updates,
            "Mesh.shape": (devices,),
            "Model.encoder_layers": ENCODER_LAYERS,
            "Model.decoder_layers": DECODER_LAYERS,
            "Model.model_dim": MODEL_DIM,
            "Model.hidden_dim": HIDDEN_DIM,
            "Model.heads": HEADS,
            "Model.head_dim": MODEL_DIM // HEADS,
            "Data.rows": ROWS,
            "Optimizer.learning_rate": LEARNING_RATE,
            "Optimizer.linear_warmup_steps": max(1, round(WARMUP * plan.updates)),
            "Optimizer.cooldown_steps": COOLDOWN,
            "Train.log_every": 5,
            "Train.dev_every": 0,
            "Train.bleu_sentences": 0,
            "Train.checkpoint_every": plan.updates,
            "Train.seed": self.seed,
        }
        return data_settings(plan.text.source) | own | dict(self.changes)

    def command(self, plan: Plan) -> list[str]:
        config = "demo" if "EXPERTS" in self.changes else "baseline"
        flags = [f"--gin={name} = {value!r}" for name, value in self.settings(plan).items()]
        paths = ["--data", str(plan.text.prepared), "--workdir", str(plan.folder / "run")]
        return [plan.python, "-m", "gshard_nmt", "train", "--config", config, *flags, *paths]

    def updates(self, plan: Plan) -> int:
        return last_number(r"(?m)^step ([\d,]+)", plan.log_text())

    def validation_seconds(self, plan: Plan) -> float:
        del plan
        return 0.0

    def checkpoints(self, plan: Plan) -> list[int]:
        manifests = (plan.folder / "run" / "checkpoints").glob("[0-9]*/manifest.json")
        return sorted(int(path.parent.name) for path in manifests)

    def decoder(self, plan: Plan, step: int) -> list[str]:
        command = [plan.python, "-m", "gshard_nmt", "decode", "--workdir", str(plan.folder / "run")]
        return [*command, "--checkpoint", str(step), "--lang", plan.text.source]
