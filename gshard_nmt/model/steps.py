"""The steps of a run as pure functions of arrays: initialize, train_step, eval_step.

The training state is one flat mapping: `parameters/NAME`, `moments/NAME` (of Adafactor), `step`,
`tokens` (the tokens of each language so far) and `guard/NAME` (the usual gradient norm). With `Train.ema`
it also has `ema/NAME`, the moving average of the weights.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from gshard_nmt.model import (
    accumulation,
    counter_random,
    expert_use,
    figures,
    guard,
    products,
    token_counts,
    transformer,
)
from gshard_nmt.model import optimizer as adafactor
from gshard_nmt.model.accumulation import Arrays, Forward, WholeBatch
from gshard_nmt.model.config import Model
from gshard_nmt.model.expert_use import UseCounter
from gshard_nmt.model.figures import LayerCounter
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.loss import token_loss
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.parameters import ZEROS, Parameter, initial_values, scoped, within
from gshard_nmt.model.stack import SUMS, run_time_zeros
from gshard_nmt.spmd.sharding import annotate, annotate_gradient, exchange_parts, own_part

BATCH_ARRAYS = (
    "source_ids",
    "source_segments",
    "source_positions",
    "source_languages",
    "target_inputs",
    "target_labels",
    "target_segments",
    "target_positions",
    "target_languages",
)
"""The arrays of a batch, int32[B, L] each. Segments count from 1, and 0 is padding. Positions count from
0 in each segment. Languages count from 1, in the order of the run's languages, and 0 is padding."""


def _at_matmul_precision(step: Callable[..., Any]) -> Callable[..., Any]:
    """Lets a step of `StepFunctions` multiply at the precision of its model, also in its gradients."""

    @functools.wraps(step)
    def at_precision(self: "StepFunctions", *inputs: Any) -> Any:
        with products.precision(self.model.matmul_precision):
            return step(self, *inputs)

    return at_precision


@dataclasses.dataclass(frozen=True)
class StepFunctions:
    """The step functions of a run, for a model, its two vocabularies and its optimizer."""

    model: Model  # the settings of the Transformer
    optimizer: Optimizer  # the settings of Adafactor
    source_vocabulary: int  # the vocabulary sizes
    target_vocabulary: int  # the vocabulary sizes
    languages: int = 1  # the number of languages whose tokens are counted
    # how far above the usual norm a gradient jumps, see `guard.judge`; 0 allows any
    gradient_jump: float = 100.0
    ema: float = 0.0  # the decay of the moving average of the weights; 0 if there is none
    microbatches: int = 1  # the number of parts into which a training batch is divided
    # the names of the weights that training does not change. They have no moments.
    frozen: Sequence[str] = ()
    # the number of updates that the moments of step 0 have seen in another run
    moment_steps: int = 0

    def declare_parameters(self) -> dict[str, Parameter]:
        return transformer.declare(self.model, self.source_vocabulary, self.target_vocabulary)

    def declare_trained(self) -> dict[str, Parameter]:
        declared = self.declare_parameters()
        return {name: p for name, p in declared.items() if name not in self.frozen}

    def declare_state(self) -> dict[str, Parameter]:
        declared = self.declare_parameters()
        moments = {
            name: dataclasses.replace(p, initializer=ZEROS)
            for name, p in adafactor.declare_moments(self.optimizer, self.declare_trained()).items()
        }
        counts = {
            "step": Parameter((), "", ZEROS, "int32"),
            "tokens": Parameter((self.languages, 2), "__", ZEROS, "uint32"),
        }
        reference = scoped("guard", guard.declare_reference())
        average = scoped("ema", declared) if self.ema else {}
        state = scoped("parameters", declared) | scoped("moments", moments) | counts
        return state | reference | average

    def initialize(self, control: Arrays) -> list[Arrays]:
        """Returns the state of step 0, of which each device draws its own shards.

        The moving average begins as the initial weights.
        """
        key = counter_random.Key.from_seed(control["seed"])
        declared = self.declare_state()
        drawn = dataclasses.replace(self, ema=0.0).declare_state()
        values = initial_values(drawn, key)
        if self.ema:
            values |= scoped("ema", within(values, "parameters"))
        return [{k: annotate(v, declared[k].letters, k) for k, v in values.items()}]

    @_at_matmul_precision
    def train_step(self, state: Arrays, batch: Arrays, control: Arrays) -> list[Arrays]:
        """Computes one training step.

        If the update is bad (see `guard`), the weights, their moving average and all moments keep their
        values.

        Args:
          state: the arrays of `declare_state`.
          batch: the arrays of BATCH_ARRAYS, int32[B, L] each.
          control: `seed` uint32[2], the seed of the run; `max_steps` int32[] and `max_tokens` uint32[2]
            (low and high word; 0 means no limit), the length of the run; `one` float32[], the number
            1.0. The gradient of the loss starts from `one`, because TF2XLA would build global arrays on
            the host from a constant.

        Returns:
          The new state, and the metrics of `gradients` with these:
          `tokens_seen` uint32[languages, 2]: the new `tokens` of the state.
          `last_step` int32[]: the step at which the run will end, as far as is known before this step.
          `learning_rate` and `gradient_norm` float32[].
          `status` int32[]: `guard.FINE`, or why the update was withheld.
          `usual_gradient_norm` float32[]: what the guard compares the norm with; 0 if it is not known.
        """
        parameters, moments = within(state, "parameters"), within(state, "moments")
        step = state["step"] + 1
        gradients, metrics = self.gradients(parameters, batch, control, step)
        trained = self.declare_trained()
        summed = {n: annotate_gradient(g, trained[n].letters, n) for n, g in gradients.items()}
        with tf.name_scope("token_counts"):
            seen = token_counts.to_numbers(state["tokens"])
            tokens = token_counts.to_words(seen + token_counts.count(batch, self.languages))
            max_tokens = token_counts.to_numbers(control["max_tokens"])
            total = tf.reduce_sum(seen)
            last_step = token_counts.last_step(
                state["step"], total, control["max_steps"], max_tokens
            )
        rate = adafactor.learning_rate(self.optimizer, step, last_step)
        moment_step = step + self.moment_steps if self.moment_steps else step
        own = {name: own_part(parameters[name], p.letters, name) for name, p in trained.items()}
        with tf.name_scope("adafactor"):
            update = adafactor.update(
                self.optimizer, trained, own, summed, moments, moment_step, rate
            )
        with tf.name_scope("guard"):
            reference = within(state, "guard")
            verdict = guard.judge(
                self.gradient_jump, reference, metrics["loss"], update.gradient_norm, update.bound
            )
            values = guard.applied(verdict.is_fine, update.values, own)
            values = parameters | {
                name: exchange_parts(value, trained[name].letters, name, control["one"])
                for name, value in values.items()
            }
            moments = guard.applied(verdict.is_fine, update.moments, moments)
        metrics |= {
            "tokens_seen": tokens,
            "last_step": last_step,
            "learning_rate": rate,
            "gradient_norm": update.gradient_norm,
            "status": verdict.status,
            "usual_gradient_norm": verdict.usual_norm,
        }
        new_state = {
            **scoped("parameters", values),
            **scoped("moments", moments),
            **scoped("guard", verdict.reference),
            "step": step,
            "tokens": tokens,
        }
        if self.ema:
            with tf.name_scope("ema"):
                before = within(state, "ema")
                after = adafactor.moving_average(before, values, self.ema, step)
                after = guard.applied(verdict.is_fine, after, before)
            new_state |= scoped("ema", after)
        return [new_state, metrics]

    def gradients(
        self, parameters: Arrays, batch: Arrays, control: Arrays, step: "tf.Tensor"
    ) -> tuple[dict[str, "tf.Tensor"], dict[str, "tf.Tensor"]]:
        """Returns the gradients of the weights that are not frozen, and the metrics of one step.

        `step` is the number of the step, int32[], 1 for the first. The metrics are loss, nll and tokens
        (the number of target tokens), float32[], and those of `figures.router_metrics` and
        `figures.language_metrics`.
        """
        key = counter_random.Key(control["seed"][0], control["seed"][1] ^ tf.cast(step, tf.uint32))
        if self._accumulates:
            return self._accumulated_gradients(parameters, batch, control["one"], key)
        mode = Mode(key)
        trained = {name: p for name, p in parameters.items() if name not in self.frozen}
        with tf.GradientTape() as tape:
            tape.watch(trained)
            total, metrics = self._loss(parameters, batch, mode)
        gradients = tape.gradient(total, trained, output_gradients=control["one"])
        return {name: tf.convert_to_tensor(g) for name, g in gradients.items()}, metrics

    @property
    def _accumulates(self) -> bool:
        """Whether microbatches are computed one after another. A pipeline computes several at once."""
        return self.microbatches > 1 and self.model.stack != "pipeline"

    def _accumulated_gradients(
        self, parameters: Arrays, batch: Arrays, one: "tf.Tensor", key: counter_random.Key
    ) -> tuple[dict[str, "tf.Tensor"], dict[str, "tf.Tensor"]]:
        """Returns the same as `gradients`, from microbatches that are computed one after another."""
        declared = self.declare_trained()
        # A scanned stack adds up its own gradients; see `scanned`.
        adding = [n for n in declared if "/block/" in n] if self.model.stack == "scan" else []
        whole = WholeBatch(self.model, batch, self.microbatches)
        functions = dataclasses.replace(self, model=whole.model_of_microbatch)

        def split(name: str, gradient: "tf.Tensor") -> "tf.Tensor":
            return annotate_gradient(gradient, declared[name].letters, name)

        def add(index: "tf.Tensor", microbatch: Arrays, sums: Arrays) -> Arrays:
            mode = Mode(key.fold("microbatch", index))
            shares = whole.shares(microbatch)
            # The tape sees only tensors of the loop.
            values = {name: tf.identity(value) for name, value in parameters.items()}
            before = {name: tf.identity(sums["gradients"][name]) for name in adding}
            # The "gradient" of a sum is the new sum; see `scanned`.
            sources = {name: before.get(name, values[name]) for name in declared}
            with tf.GradientTape() as tape:
                tape.watch(sources)
                with_sums = values | scoped(SUMS, before)
                counters = whole.counters(shares)
                forward = functions._forward(with_sums, _annotated(microbatch), mode, counters)
                term = whole.term(forward, shares)
                total = functions._objective(term)
            gradients = tape.gradient(total, sources, output_gradients=one)
            with tf.name_scope("accumulation"):
                after = {name: tf.convert_to_tensor(g) for name, g in gradients.items()}
                after |= {n: sums["gradients"][n] + g for n, g in after.items() if n not in before}
                after = {name: split(name, total) for name, total in after.items()}
                return {"gradients": after, "results": whole.added(index, term, sums["results"])}

        zeros = {n: split(n, run_time_zeros(p.shape, tf.float32)) for n, p in declared.items()}
        start = {"gradients": zeros, "results": whole.zeros()}
        sums = accumulation.for_each(batch, self.microbatches, start, add)
        with tf.name_scope("figures"):
            metrics = self._metrics(batch, whole.result(sums["results"]))
        return sums["gradients"], metrics

    @_at_matmul_precision
    def eval_step(self, parameters: Arrays, batch: Arrays) -> list[Arrays]:
        """Returns two sums over a batch, float32[]: `nll_sum` in nats, and the target `tokens`."""
        if not self._accumulates:
            return [self._sums(parameters, batch)]
        model = WholeBatch(self.model, batch, self.microbatches).model_of_microbatch
        functions = dataclasses.replace(self, model=model)

        def add(_: "tf.Tensor", microbatch: Arrays, sums: Arrays) -> Arrays:
            terms = functions._sums(parameters, microbatch)
            return {name: total + terms[name] for name, total in sums.items()}

        start = {"nll_sum": tf.zeros([]), "tokens": tf.zeros([])}
        return [accumulation.for_each(batch, self.microbatches, start, add)]

    def _sums(self, parameters: Arrays, batch: Arrays) -> dict[str, "tf.Tensor"]:
        _, metrics = self._loss(parameters, batch, Mode())
        return {"nll_sum": metrics["nll"] * metrics["tokens"], "tokens": metrics["tokens"]}

    @_at_matmul_precision
    def expert_use(self, parameters: Arrays, batch: Arrays) -> list[Arrays]:
        """Counts which experts the tokens of each language choose, as `expert_use.together` says.

        Tokens choose as in decoding, so no choice is dropped. The decoder reads the reference.

        Args:
          batch: the arrays of BATCH_ARRAYS. Its languages may be more than those of the run: `languages`
            of these functions is their number.
        """
        batch = _annotated(batch)
        counters = [
            UseCounter(batch[f"{side}_languages"], self.languages, self.model.experts)
            for side in token_counts.SIDES
        ]
        _, *totals = transformer.encode_and_decode(self.model, parameters, batch, Mode(), counters)
        stacks = dict(zip(token_counts.SIDES, totals, strict=True))
        tokens = {
            side: tf.cast(token_counts.count_side(batch, side, self.languages), tf.float32)
            for side in stacks
        }
        return [expert_use.together(stacks, tokens)]

    def _loss(
        self, parameters: Arrays, batch: Arrays, mode: Mode
    ) -> tuple["tf.Tensor", dict[str, "tf.Tensor"]]:
        """Returns the loss with the auxiliary losses (GShard section 2.2), and the metrics."""
        batch = _annotated(batch)
        forward = self._forward(parameters, batch, mode)
        with tf.name_scope("figures"):
            metrics = self._metrics(batch, forward)
        return self._objective(forward), metrics

    def _forward(
        self,
        parameters: Arrays,
        batch: Arrays,
        mode: Mode,
        counters: Sequence[LayerCounter | None] = (None, None),
    ) -> Forward:
        """Computes the model and the loss of its target tokens; one of `counters` for each stack."""
        model, microbatches = self.model, self.microbatches
        if model.experts and not mode.training:
            microbatches = 0  # stages cannot dispatch by blocks, so a pipeline works as in decoding
        logits, *stacks = transformer.encode_and_decode(
            model, parameters, batch, mode, counters, microbatches
        )
        with tf.name_scope("loss"):
            loss = token_loss(
                logits,
                batch["target_labels"],
                batch["target_segments"] > 0,
                model.label_smoothing,
                model.z_loss_weight,
            )
        return Forward(loss, *stacks)

    def _objective(self, forward: Forward) -> "tf.Tensor":
        model, stacks = self.model, (forward.encoder, forward.decoder)
        total = forward.loss.loss
        if model.experts:
            total += model.aux_loss_weight * figures.loss_total(*stacks, "aux_loss")
        if model.experts and model.router_z_loss_weight:
            total += model.router_z_loss_weight * figures.loss_total(*stacks, "z_loss")
        return total

    def _metrics(self, batch: Arrays, forward: Forward) -> dict[str, "tf.Tensor"]:
        model, loss, stacks = self.model, forward.loss, (forward.encoder, forward.decoder)
        return {
            "loss": loss.loss,
            "nll": loss.nll,
            "tokens": loss.tokens,
            **figures.router_metrics(model, *stacks),
            **figures.language_metrics(model, batch, self.languages, loss.token_nll, *stacks),
        }


def _annotated(batch: Arrays) -> dict[str, "tf.Tensor"]:
    return {name: annotate(array, "BL", name) for name, array in batch.items()}
