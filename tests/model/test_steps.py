"""The functions of a run: the state, what a training step adds to the loss, and evaluation."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model import counter_random, guard
from gshard_nmt.model import optimizer as adafactor
from gshard_nmt.model.config import Model
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.parameters import within
from gshard_nmt.model.steps import StepFunctions
from tests.model.examples import CONTROL, DENSE, ONE, SMALL, TWO, WITHOUT_DROPOUT, parameters, rows

SHALLOW = dataclasses.replace(DENSE, encoder_layers=0, decoder_layers=1)


def functions(model: Model) -> StepFunctions:
    return StepFunctions(model, Optimizer(min_factored_size=8), 50, 40, languages=2)


def test_initialize_makes_the_declared_state_of_step_0():
    steps = functions(SMALL)
    (state,) = steps.initialize(CONTROL)
    declared = steps.declare_state()
    assert set(state) == set(declared)
    for name, parameter in declared.items():
        assert tuple(state[name].shape) == parameter.shape, name
        assert state[name].dtype.name == parameter.dtype, name
    assert int(state["step"]) == 0
    assert not any(value.numpy().any() for value in within(state, "moments").values())
    assert state["parameters/target_embedding"].numpy().std() == pytest.approx(1, rel=0.1)


def test_a_training_step_counts_and_reports_its_gradient_and_learning_rate():
    steps, batch = functions(SHALLOW), rows([ONE, TWO], length=8)
    (state,) = steps.initialize(CONTROL)
    gradients, expected = steps.gradients(within(state, "parameters"), batch, CONTROL, 1)
    new_state, metrics = steps.train_step(state, batch, CONTROL)
    assert set(new_state) == set(state)
    assert int(new_state["step"]) == 1
    assert float(metrics["loss"]) == float(expected["loss"])
    assert float(metrics["tokens"]) == len(ONE[1]) + len(TWO[1])
    squares = sum(float(np.square(gradient).sum()) for gradient in gradients.values())
    assert float(metrics["gradient_norm"]) == pytest.approx(np.sqrt(squares), rel=1e-5)
    rate = adafactor.learning_rate(steps.optimizer, tf.constant(1), CONTROL["max_steps"])
    assert float(metrics["learning_rate"]) == float(rate)
    assert int(metrics["status"]) == guard.FINE
    by_language = [len(sentence[0]) + len(sentence[1]) for sentence in (ONE, TWO)]
    assert new_state["tokens"].numpy().tolist() == [[number, 0] for number in by_language]
    assert metrics["tokens_seen"].numpy().tolist() == new_state["tokens"].numpy().tolist()
    for name, value in within(new_state, "parameters").items():
        if np.any(gradients[name]):
            assert np.any(value != state[f"parameters/{name}"]), name


def test_no_product_and_no_factored_weight_has_an_operation_that_is_slow_to_lower():
    """TF2XLA runs an MLIR pipeline for each Einsum, Sqrt and Rsqrt, see `products.einsum`."""
    steps, batch = functions(SMALL), rows([ONE, TWO], length=8)
    (state,) = steps.initialize(CONTROL)
    step = tf.function(lambda state: steps.train_step(state, batch, CONTROL), autograph=False)
    operations = step.get_concrete_function(state).graph.get_operations()
    types = collections.Counter(operation.type for operation in operations)
    assert types["XlaEinsum"]
    assert not types["Einsum"]
    norms = 2 * SMALL.encoder_layers + 3 * SMALL.decoder_layers + 2
    not_factored = sum(name.startswith("moments/full/") for name in state)
    of_the_gradients_and_the_learning_rate = 2
    roots = norms + not_factored + of_the_gradients_and_the_learning_rate
    assert types["Sqrt"] + types["Rsqrt"] == roots


def test_the_last_step_follows_from_the_tokens_of_the_state():
    """A run of 1000 tokens that saw 100 in 5 steps ends at step 50, with 45 steps of cooldown left."""
    steps = StepFunctions(SHALLOW, Optimizer(cooldown_steps=90), 50, 40, languages=2)
    batch = rows([ONE], [TWO], length=8)
    control = CONTROL | {"max_tokens": tf.constant([1000, 0], tf.uint32)}
    (state,) = steps.initialize(control)
    _, metrics = steps.train_step(state, batch, control)
    assert int(metrics["last_step"]) == 100, "nothing has been counted yet"
    state |= {"step": tf.constant(5), "tokens": tf.constant([[60, 0], [40, 0]], tf.uint32)}
    _, metrics = steps.train_step(state, batch, control)
    assert int(metrics["last_step"]) == 50
    rate = adafactor.learning_rate(steps.optimizer, tf.constant(6), tf.constant(50))
    assert float(metrics["learning_rate"]) == float(rate)
    assert float(rate) == pytest.approx(0.01 * 45 / 90)


def test_the_moving_average_is_that_of_the_weights_and_does_not_change_them():
    plain, batch = functions(SHALLOW), rows([ONE, TWO], length=8)
    steps = dataclasses.replace(plain, ema=0.3)
    ((state,), (plain_state,)) = steps.initialize(CONTROL), plain.initialize(CONTROL)
    expected = {k: v.numpy() for k, v in within(plain_state, "parameters").items()}
    for name, value in expected.items():
        np.testing.assert_array_equal(state[f"ema/{name}"], value, err_msg=name)
    for decay in (2 / 11, 3 / 12, 0.3):  # the third would be 4 / 13
        state, _ = steps.train_step(state, batch, CONTROL)
        plain_state, _ = plain.train_step(plain_state, batch, CONTROL)
        for name in expected:
            weight = plain_state[f"parameters/{name}"].numpy()
            np.testing.assert_array_equal(state[f"parameters/{name}"], weight, err_msg=name)
            expected[name] = decay * expected[name] + (1 - decay) * weight
            np.testing.assert_allclose(
                state[f"ema/{name}"], expected[name], rtol=1e-4, atol=1e-6, err_msg=name
            )
    assert set(state) == set(steps.declare_state())


def test_frozen_weights_keep_their_bits_and_have_no_moments():
    plain, batch = functions(SHALLOW), rows([ONE, TWO], length=8)
    frozen = tuple(name for name in plain.declare_parameters() if "attention" in name)
    steps = dataclasses.replace(plain, frozen=frozen, ema=0.5)
    (state,) = steps.initialize(CONTROL)
    before = {name: value.numpy().tobytes() for name, value in state.items()}
    gradients, _ = steps.gradients(within(state, "parameters"), batch, CONTROL, 1)
    expected, _ = plain.gradients(within(state, "parameters"), batch, CONTROL, 1)
    assert gradients.keys() == expected.keys() - set(frozen)
    after, metrics = steps.train_step(state, batch, CONTROL)
    assert set(after) == set(steps.declare_state())
    assert not [name for name in after if name.startswith("moments/") and "attention" in name]
    for name in plain.declare_parameters():
        for group in ("parameters", "ema"):
            is_equal = after[f"{group}/{name}"].numpy().tobytes() == before[f"{group}/{name}"]
            assert is_equal == (name in frozen or not np.any(gradients[name])), name
    squares = sum(float(np.square(gradient).sum()) for gradient in gradients.values())
    assert float(metrics["gradient_norm"]) == pytest.approx(np.sqrt(squares), rel=1e-5)


def test_moments_of_another_run_count_with_their_steps():
    """beta2 of step 1 is 0, so without their steps the first update would forget them."""
    plain, batch = functions(SHALLOW), rows([ONE], [TWO], length=8)
    (state,) = plain.initialize(CONTROL)
    name = "moments/full/decoder/final_norm/scale"
    state |= {name: tf.ones_like(state[name])}
    forgotten, _ = plain.train_step(state, batch, CONTROL)
    assert float(tf.reduce_max(forgotten[name])) < 0.5
    kept, metrics = dataclasses.replace(plain, moment_steps=999).train_step(state, batch, CONTROL)
    share = 1000**-0.8
    expected = (1 - share) + share * forgotten[name].numpy()
    np.testing.assert_allclose(kept[name], expected, rtol=1e-5)
    assert int(kept["step"]) == 1
    rate = adafactor.learning_rate(plain.optimizer, tf.constant(1), CONTROL["max_steps"])
    assert float(metrics["learning_rate"]) == float(rate)


def withheld(steps: StepFunctions, **changes) -> int:
    """Returns the status of a step whose update is withheld, from a changed state of step 0."""
    (state,) = steps.initialize(CONTROL)
    state |= {name.replace("__", "/"): value for name, value in changes.items()}
    new_state, metrics = steps.train_step(state, rows([ONE], [TWO], length=8), CONTROL)
    for name, value in state.items():
        if name.startswith(("parameters/", "moments/", "ema/")):
            np.testing.assert_array_equal(new_state[name], value, err_msg=name)
    assert int(new_state["step"]) == 1
    assert new_state["tokens"].numpy().any()
    return int(metrics["status"])


def test_a_bad_update_is_withheld_and_the_step_still_counts():
    steps = dataclasses.replace(functions(SHALLOW), ema=0.9)
    for size, status in ((1e30, guard.BAD_GRADIENT), (np.nan, guard.BAD_LOSS)):
        embedding = tf.fill([40, SHALLOW.model_dim], size)
        assert withheld(steps, parameters__target_embedding=embedding) == status
    usual = {"guard__log_norm": tf.constant(-9.0), "guard__norms": tf.constant(guard.ARMED_AFTER)}
    assert withheld(steps, **usual) == guard.JUMP
    # A moment that is not finite would spoil the weights, although loss and gradient are fine.
    moment = "moments__row__target_embedding"
    assert withheld(steps, **{moment: tf.fill([SHALLOW.model_dim], np.nan)}) == guard.BAD_UPDATE


@pytest.mark.parametrize("name", WITHOUT_DROPOUT)
def test_dropout_is_the_same_for_one_step_and_another_for_the_next(name):
    model = dataclasses.replace(SHALLOW, **{name: 0.5})
    p, batch = parameters(model), rows([ONE], [TWO], length=8)

    def loss(step: int) -> float:
        _, metrics = functions(model).gradients(p, batch, CONTROL, step)
        return float(metrics["loss"])

    first = loss(1)
    assert first == loss(1)
    assert first != loss(2)


def test_label_smoothing_and_the_z_loss_are_in_the_loss_of_training():
    def added(label_smoothing: float, z_loss_weight: float) -> float:
        settings = {"label_smoothing": label_smoothing, "z_loss_weight": z_loss_weight}
        steps = functions(dataclasses.replace(SHALLOW, **settings))
        p, batch = parameters(steps.model), rows([ONE], [TWO], length=8)
        _, metrics = steps.gradients(p, batch, CONTROL, 1)
        return float(metrics["loss"]) - float(metrics["nll"])

    assert added(0.0, 0.0) == 0
    assert added(0.5, 0.0) != 0
    assert added(0.0, 0.5) > 0


def test_evaluation_adds_up_over_batches_and_draws_nothing():
    model = dataclasses.replace(SHALLOW, residual_dropout=0.5, label_smoothing=0.3)
    p, steps = parameters(model), functions(model)
    (both,) = steps.eval_step(p, rows([ONE], [TWO], length=8))
    singles = [steps.eval_step(p, rows([sentence], length=8))[0] for sentence in (ONE, TWO)]
    for name in ("nll_sum", "tokens"):
        total = sum(float(single[name]) for single in singles)
        assert float(both[name]) == pytest.approx(total, rel=1e-5)
    assert float(both["tokens"]) == len(ONE[1]) + len(TWO[1])


def test_evaluation_drops_no_choice_of_tokens_that_want_the_same_experts():
    # In training, an expert has room for one token of a group: five of six equal rows would lose theirs.
    model = dataclasses.replace(SMALL, capacity=1, num_groups=1)
    p, steps = parameters(model), functions(model)
    (one,) = steps.eval_step(p, rows([ONE], length=8))
    (six,) = steps.eval_step(p, rows(*[[ONE]] * 6, length=8))
    assert float(six["nll_sum"]) == pytest.approx(6 * float(one["nll_sum"]), rel=1e-5)


@pytest.mark.parametrize(("stacks", "layers"), [("both", 3), ("encoder", 2), ("decoder", 1)])
def test_the_auxiliary_losses_are_added_once_for_each_moe_layer(stacks, layers):
    """SMALL has two MoE layers in its encoder and one in its decoder; the metrics are means."""
    model = dataclasses.replace(
        SMALL, aux_loss_weight=0.5, router_z_loss_weight=0.25, expert_stacks=stacks
    )
    p, batch = parameters(model), rows([ONE], [TWO], length=8)
    key = counter_random.Key.from_seed(CONTROL["seed"])
    total, metrics = functions(model)._loss(p, batch, Mode(key=key))
    added = layers * (0.5 * metrics["aux_loss"] + 0.25 * metrics["router_z_loss"])
    assert float(added) > 0.1
    assert float(total) == pytest.approx(float(metrics["loss"] + added), rel=1e-5)
