"""This package as a racer: with experts, and dense."""

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

EXPERTS = 8
ROWS = 16
COOLDOWN = 0.4
"""The share of a run in which the learning rate falls to 0, as in configs/experiments/demo.gin."""
WARMUP = 0.05
"""The share of a run in which the learning rate rises, about as in configs/runs/demo.gin."""
LEARNING_RATE = 1.0
"""That of configs/runs/demo.gin.

The 1.5 of the demo is for half this width. With 2.0 the loss hardly falls here.
"""


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
    """A model of this package. Its settings are those of the demo, but for its size and its length.

    Attributes:
      experts: the experts of every second layer; 0 for a dense model.
    """

    experts: int
    requirements: ClassVar[Path | None] = None
    stop_signal: ClassVar[int] = signal.SIGINT
    variables: ClassVar[Mapping[str, str]] = {}

    @property
    def name(self) -> str:
        return "experts" if self.experts else "dense"

    @property
    def label(self) -> str:
        return f"gshard-nmt, {self.experts} experts" if self.experts else "gshard-nmt, dense"

    def settings(self, plan: Plan) -> dict[str, Any]:
        # Two devices are faster than two threads of one. The number must divide the groups and experts.
        devices = max(n for n in (1, 2, 4, 8) if n <= plan.cores)
        settings = data_settings(plan.text.source) | {
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
            "Optimizer.cooldown_steps": round(COOLDOWN * plan.updates),
            "Train.log_every": 5,
            "Train.dev_every": 0,
            "Train.bleu_sentences": 0,
            "Train.checkpoint_every": plan.every,
            "Train.keep_every": plan.every,
        }
        if self.experts:
            settings |= {"EXPERTS": self.experts, "Model.expert_hidden_dim": HIDDEN_DIM}
        return settings

    def command(self, plan: Plan) -> list[str]:
        config = "demo" if self.experts else "baseline"
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
