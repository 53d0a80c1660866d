"""The programs of a run, as pure functions of arrays: initialise, train, evaluate.

The state is one flat mapping: `parameters/NAME`, `moments/NAME` (Adafactor's) and `step`.
"""

import dataclasses
from collections.abc import Mapping

from gshard_nmt.model import counter_random, transformer
from gshard_nmt.model import optimizer as adafactor
from gshard_nmt.model.config import Model
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.loss import token_loss
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.parameters import ZEROS, Parameter, initial_values, scoped, within
from gshard_nmt.spmd.sharding import annotate

Arrays = Mapping[str, "tf.Tensor"]

BATCH_ARRAYS = (
    "source_ids",
    "source_segments",
    "source_positions",
    "target_inputs",
    "target_labels",
    "target_segments",
    "target_positions",
)


@dataclasses.dataclass(frozen=True)
class StepFunctions:
    """What a run computes: a model of two vocabularies and its optimiser.

    Attributes:
      model: the Transformer.
      optimizer: Adafactor.
      source_vocabulary, target_vocabulary: sizes.
    """

    model: Model
    optimizer: Optimizer
    source_vocabulary: int
    target_vocabulary: int

    def declare_parameters(self) -> dict[str, Parameter]:
        """Every weight of the model."""
        return transformer.declare(self.model, self.source_vocabulary, self.target_vocabulary)

    def declare_state(self) -> dict[str, Parameter]:
        """Every array of the training state."""
        declared = self.declare_parameters()
        moments = {
            name: dataclasses.replace(p, initializer=ZEROS)
            for name, p in adafactor.declare_moments(self.optimizer, declared).items()
        }
        step = {"step": Parameter((), "", ZEROS, "int32")}
        return scoped("parameters", declared) | scoped("moments", moments) | step

    def initialize(self, control: Arrays) -> list[Arrays]:
        """The state of step 0 from `seed` uint32[2]; each device draws its own shards."""
        key = counter_random.Key.from_seed(control["seed"])
        declared = self.declare_state()
        values = initial_values(declared, key)
        return [{k: annotate(v, declared[k].letters, k) for k, v in values.items()}]

    def train_step(self, state: Arrays, batch: Arrays, control: Arrays) -> list[Arrays]:
        """One training step.

        Args:
          state: as `declare_state`.
          batch: int32[B, L] each, see BATCH_ARRAYS.
          control: `seed` uint32[2], the run's; `last_step` int32[]; `one` float32[], 1.0: the
            gradient's seed is a run-time value, or constant folding would build global tensors on
            the host.

        Returns:
          The new state, and metrics float32[]: loss, nll, tokens (real target tokens), those of
          `_router_metrics`, learning_rate, gradient_norm.
        """
        parameters = within(state, "parameters")
        step = state["step"] + 1
        gradients, metrics = self.gradients(parameters, batch, control, step)
        rate = adafactor.learning_rate(self.optimizer, step, control["last_step"])
        with tf.name_scope("adafactor"):
            values, moments = adafactor.update(
                self.optimizer,
                self.declare_parameters(),
                parameters,
                gradients,
                within(state, "moments"),
                step,
                rate,
            )
        squares = [tf.reduce_sum(tf.square(g)) for g in gradients.values()]
        metrics |= {"learning_rate": rate, "gradient_norm": tf.sqrt(tf.add_n(squares))}
        new_state = scoped_values("parameters", values) | scoped_values("moments", moments)
        return [{**new_state, "step": step}, metrics]

    def gradients(
        self, parameters: Arrays, batch: Arrays, control: Arrays, step: "tf.Tensor"
    ) -> tuple[dict[str, "tf.Tensor"], dict[str, "tf.Tensor"]]:
        """The gradient of every weight in a training step, int32[] from 1 on, and its metrics."""
        key = counter_random.Key(control["seed"][0], control["seed"][1] ^ tf.cast(step, tf.uint32))
        mode = Mode(training=True, key=key)
        with tf.GradientTape() as tape:
            tape.watch(parameters)
            total, metrics = self._loss(parameters, batch, mode)
        gradients = tape.gradient(total, parameters, output_gradients=control["one"])
        return {name: tf.convert_to_tensor(g) for name, g in gradients.items()}, metrics

    def eval_step(self, parameters: Arrays, batch: Arrays) -> list[Arrays]:
        """Sum of the negative log-likelihood in nats and number of real target tokens of a batch."""
        _, metrics = self._loss(parameters, batch, Mode())
        return [{"nll_sum": metrics["nll"] * metrics["tokens"], "tokens": metrics["tokens"]}]

    def _loss(self, parameters: Arrays, batch: Arrays, mode: Mode):
        model = self.model
        batch = {name: annotate(array, "BL", name) for name, array in batch.items()}
        moe = model.moe(mode.training) if model.experts else None
        memory: tf.Tensor | None = None
        encoder: Arrays = {}
        if model.encoder_layers:
            memory, encoder = transformer.encode(model, parameters, batch, mode, moe)
        logits, decoder = transformer.decode(model, parameters, memory, batch, mode, moe)
        with tf.name_scope("loss"):
            loss = token_loss(
                logits,
                batch["target_labels"],
                batch["target_segments"] > 0,
                model.label_smoothing,
                model.z_loss_weight,
            )
        totals = {k: v + encoder[k] if k in encoder else v for k, v in decoder.items()}
        metrics = {
            "loss": loss.loss,
            "nll": loss.nll,
            "tokens": loss.tokens,
            **_router_metrics(model, totals),
        }
        total = loss.loss
        if totals:
            total += model.aux_loss_weight * totals["aux_loss"]
        if totals and model.router_z_loss_weight:
            total += model.router_z_loss_weight * totals["z_loss"]
        return total, metrics


def scoped_values(prefix: str, values: Arrays) -> dict[str, "tf.Tensor"]:
    """The same arrays under `prefix/`."""
    return {f"{prefix}/{name}": value for name, value in values.items()}


def _router_metrics(model: Model, totals: Arrays) -> dict[str, "tf.Tensor"]:
    """Means over MoE layers, float32[]; 0 for a dense model.

    aux_loss, overflow_fraction; with experts also router_z_loss, router_entropy (nats a token), and
    busiest_expert, the share of first choices of the expert that gets most, times E: 1 at balance.
    """
    if not totals:
        return {"aux_loss": tf.zeros([]), "overflow_fraction": tf.zeros([])}
    layers = totals["layers"]
    return {
        "aux_loss": totals["aux_loss"] / layers,
        "overflow_fraction": totals["overflow_fraction"] / layers,
        "router_z_loss": totals["z_loss"] / layers,
        "router_entropy": totals["entropy"] / layers,
        "busiest_expert": tf.reduce_max(totals["load"]) / layers * model.experts,
    }
