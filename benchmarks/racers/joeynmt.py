"""JoeyNMT as a racer, with a recipe for runs of minutes.

It is our choice: smaller batches than in its own configuration for IWSLT14, a higher learning rate with a
warm-up, and less dropout. That configuration is the first trial. There the learning rate falls after six
validations without a better dev BLEU. A race is hardly that long, and JoeyNMT 2.3 gives PyTorch's
scheduler an argument that PyTorch 2.13 no longer has, so in that trial it is constant: a decay of 1.0.
"""

import dataclasses
import json
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import sentencepiece
from racers.plan import (
    DECODER_LAYERS,
    ENCODER_LAYERS,
    HEADS,
    HIDDEN_DIM,
    MODEL_DIM,
    Plan,
    last_number,
)

LOG_EVERY = 5
VALIDATED = 100
"""The dev sentences of a validation. Nothing depends on its score, but JoeyNMT saves only then."""


@dataclasses.dataclass(frozen=True)
class JoeyNMT:
    """JoeyNMT. `changes` has the sections "training" and "model", which is for both stacks."""

    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seed: int = 1
    name: ClassVar[str] = "joeynmt"
    requirements: ClassVar[Path] = Path(__file__).parents[1] / "joeynmt-requirements.txt"
    stop_signal: ClassVar[int] = signal.SIGINT
    # Without assertions: one ends the run if a validation gives an empty translation, which happens
    # while a model is untrained.
    variables: ClassVar[Mapping[str, str]] = {"PYTHONOPTIMIZE": "1", "CUDA_VISIBLE_DEVICES": ""}

    def configuration(self, plan: Plan) -> dict[str, Any]:
        folder, last = plan.folder, max(LOG_EVERY, plan.updates // LOG_EVERY * LOG_EVERY)
        return {
            "name": self.name,
            "model_dir": str(folder / "run"),
            "use_cuda": False,
            "random_seed": self.seed,
            "data": {
                "train": str(plan.text.folder / "train"),
                "dev": str(plan.text.folder / "dev"),
                "dataset_type": "plain",
                "sample_dev_subset": min(VALIDATED, len(plan.text.lines("dev", "en"))),
                "src": self._side(plan, plan.text.source),
                "trg": self._side(plan, "en"),
            },
            "testing": {
                "beam_size": 5,
                "beam_alpha": 1.0,
                "batch_size": 64,
                "batch_type": "sentence",
                "max_output_length": 100,
                "eval_metrics": ["bleu"],
            },
            "training": {
                "optimizer": "adam",
                "loss": "crossentropy",
                "normalization": "tokens",
                "label_smoothing": 0.1,
                "batch_type": "token",
                "batch_size": 1024,
                "adam_betas": [0.9, 0.98],
                "learning_rate": 0.001,
                "scheduling": "warmupinversesquareroot",
                "learning_rate_warmup": max(1, plan.updates // 10),
                "shuffle": True,
                "epochs": 10_000,
                "updates": last,
                "learning_rate_min": 0.0,  # YAML does not take JSON's 1e-08 for a number
                "early_stopping_metric": "bleu",
                "logging_freq": LOG_EVERY,
                "validation_freq": last,
                "keep_best_ckpts": -1,  # all of them
                "print_valid_sents": [0],
                **self.changes.get("training", {}),
            },
            "model": {
                "initializer": "xavier_uniform",
                "embed_initializer": "xavier_uniform",
                "bias_initializer": "zeros",
                "tied_embeddings": True,
                "tied_softmax": True,
                "encoder": self._stack(ENCODER_LAYERS),
                "decoder": self._stack(DECODER_LAYERS),
            },
        }

    def _side(self, plan: Plan, language: str) -> dict[str, Any]:
        return {
            "lang": language,
            "level": "bpe",
            "max_length": 100,
            "voc_file": str(plan.folder / "vocabulary.txt"),
            "tokenizer_type": "sentencepiece",
            "tokenizer_cfg": {"model_file": str(plan.text.vocabulary)},
        }

    def _stack(self, layers: int) -> dict[str, Any]:
        return {
            "type": "transformer",
            "num_layers": layers,
            "num_heads": HEADS,
            "embeddings": {"embedding_dim": MODEL_DIM, "scale": True, "dropout": 0.0},
            "hidden_size": MODEL_DIM,
            "ff_size": HIDDEN_DIM,
            "dropout": 0.1,
            **self.changes.get("model", {}),
        }

    def command(self, plan: Plan) -> list[str]:
        model = sentencepiece.SentencePieceProcessor(str(plan.text.vocabulary))
        pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
        # JoeyNMT reads a piece from each line.
        lines = "".join(f"{piece}\n" for piece in pieces if piece.split() == [piece])
        (plan.folder / "vocabulary.txt").write_text(lines, encoding="utf-8")
        path = plan.folder / "config.yaml"
        # JSON is YAML.
        path.write_text(json.dumps(self.configuration(plan), indent=1), encoding="utf-8")
        return [plan.python, "-m", "joeynmt", "train", str(path), "--skip-test"]

    def updates(self, plan: Plan) -> int:
        return last_number(r"Step: +(\d+)", plan.log_text())

    def validation_seconds(self, plan: Plan) -> float:
        pattern = (
            r"(?:Generation took|Evaluation result .*), ?([\d.]+)\[sec\]|Generation took ([\d.]+)"
        )
        times = re.findall(pattern, plan.log_text())
        return sum(float(first or second) for first, second in times)

    def checkpoints(self, plan: Plan) -> list[int]:
        names = (path.stem for path in (plan.folder / "run").glob("*.ckpt"))
        return sorted(int(name) for name in names if name.isdecimal())

    def decoder(self, plan: Plan, step: int) -> list[str]:
        configuration = self.configuration(plan)
        configuration["testing"]["load_model"] = str(plan.folder / "run" / f"{step}.ckpt")
        path = plan.folder / "translate.yaml"
        path.write_text(json.dumps(configuration, indent=1), encoding="utf-8")
        return [plan.python, "-m", "joeynmt", "translate", str(path)]
