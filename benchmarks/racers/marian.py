"""Marian as a racer, with the settings that its examples recommend for a Transformer.

Two of them depend on the length of a run, so they are ours: the learning rate rises for a tenth of the
updates (16,000 updates would be more than the whole run), to 0.001, and a batch has 1,024 words.
"""

import dataclasses
import re
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
    Plan,
    last_number,
)


@dataclasses.dataclass(frozen=True)
class Marian:
    """Marian, from the wheel of pymarian."""

    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seed: int = 1
    name: ClassVar[str] = "marian"
    requirements: ClassVar[Path] = Path(__file__).parents[1] / "marian-requirements.txt"
    stop_signal: ClassVar[int] = signal.SIGTERM
    variables: ClassVar[Mapping[str, str]] = {"CUDA_VISIBLE_DEVICES": ""}

    def command(self, plan: Plan) -> list[str]:
        text, warmup = plan.text, str(max(1, plan.updates // 10))
        options = {
            "model": plan.folder / "model.npz",
            "train-sets": (text.file("train", text.source), text.file("train", "en")),
            "vocabs": (vocabulary(plan),) * 2,
            "type": "transformer",
            "dim-emb": MODEL_DIM,
            "transformer-dim-ffn": HIDDEN_DIM,
            "transformer-heads": HEADS,
            "enc-depth": ENCODER_LAYERS,
            "dec-depth": DECODER_LAYERS,
            "tied-embeddings-all": (),
            "transformer-dropout": 0.1,
            "label-smoothing": 0.1,
            "exponential-smoothing": (),
            "optimizer-params": (0.9, 0.98, 1e-09),
            "learn-rate": 0.001,
            "lr-warmup": warmup,
            "lr-decay-inv-sqrt": warmup,
            "cost-type": "ce-mean-words",
            "clip-norm": 5,
            "max-length": 100,
            "maxi-batch": 1000,
            "mini-batch": 1000,
            "mini-batch-words": 1024,
            "workspace": 1000,
            "cpu-threads": plan.cores,
            "sync-sgd": (),
            "shuffle-in-ram": (),
            "disp-freq": 5,
            "save-freq": plan.updates,
            "after-batches": plan.updates,
            "seed": self.seed,
        }
        return [*program(plan), "train", *flags(options | dict(self.changes))]

    def updates(self, plan: Plan) -> int:
        return last_number(r"Up\. ([\d,]+)", plan.log_text())

    def validation_seconds(self, plan: Plan) -> float:
        del plan
        return 0.0

    def checkpoints(self, plan: Plan) -> list[int]:
        if "Saving training checkpoint" not in plan.log_text():
            return []
        names = [path.name for path in plan.folder.glob("model.iter*.npz")]
        steps = {int(step) for name in names for step in re.findall(r"iter(\d+)\.npz$", name)}
        progress = plan.folder / "model.npz.progress.yml"
        last = progress.read_text(encoding="utf-8") if progress.exists() else ""
        return sorted(steps | {int(step) for step in re.findall(r"(?m)^batches: (\d+)", last)})

    def decoder(self, plan: Plan, step: int) -> list[str]:
        model = plan.folder / f"model.iter{step}.npz"
        options = {
            "models": model if model.exists() else plan.folder / "model.npz",
            "vocabs": (vocabulary(plan),) * 2,
            "beam-size": 6,
            "normalize": 1.0,
            "mini-batch": 32,
            "maxi-batch": 100,
            "max-length": 1000,
            "cpu-threads": plan.cores,
            "quiet": (),
        }
        return [*program(plan), "decode", *flags(options)]


def vocabulary(plan: Plan) -> Path:
    path = plan.folder / "vocabulary.spm"
    if not path.exists():
        path.write_bytes(plan.text.vocabulary.read_bytes())
    return path


def program(plan: Plan) -> list[str]:
    return [plan.python, "-m", "pymarian"]


def flags(options: Mapping[str, object]) -> list[str]:
    words = []
    for name, value in options.items():
        values = value if isinstance(value, tuple) else (value,)
        words += [f"--{name}", *map(str, values)]
    return words
