"""The examples on meshes: they equal one device, they learn, and they exchange what they should."""

import functools

import conformer
import numpy as np
import pytest
import tensorflow as tf
import trainer
import unet3d

from tests.multidevice.collectives import collectives

EXAMPLES = {
    "conformer": (
        conformer.build(conformer.Sizes(layers=2, width=16, frames=8)),
        conformer.mesh_of,
    ),
    "unet3d": (unet3d.build(unet3d.Sizes(image=8, levels=2, filters=2)), unet3d.mesh_of),
}
CASES = [("unet3d", (2, 4)), pytest.param("conformer", (2, 4), marks=pytest.mark.slow)]


@functools.cache
def compiled(name, shape):
    model, mesh_of = EXAMPLES[name]
    return model, *trainer.compile_step(model, mesh_of(*shape))


def one_device(model, steps=1):
    """Takes steps on the first batch with TensorFlow alone, which ignores all annotations."""
    weights = {name: tf.constant(w) for name, w in model.initial_weights(seed=0).items()}
    velocities = {name: tf.zeros_like(weight) for name, weight in weights.items()}
    batch = model.make_batch(trainer.data_numbers(seed=0))
    tensors = {name: tf.constant(array) for name, array in batch.items()}
    for _ in range(steps):
        weights, velocities, metrics = trainer.train_step(model)(weights, velocities, tensors)
    return weights, velocities, metrics


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_a_step_equals_that_of_one_device(name, shape):
    """The velocities were zero before the step, so after it they are the gradients."""
    model, devices, program = compiled(name, shape)
    (loss,), *arrays = trainer.train(model, devices, program, steps=1)
    *expected, metrics = one_device(model)
    assert loss == pytest.approx(float(metrics["loss"]), rel=1e-5)
    for group, reference in zip(arrays, expected, strict=True):
        for array, value in reference.items():
            atol = max(2e-5 * np.abs(value).max(), 1e-7)
            np.testing.assert_allclose(group[array], value, 1e-4, atol, err_msg=array)


def test_training_lowers_the_loss():
    losses, *_ = trainer.train(*compiled("unet3d", (2, 4)), steps=12)
    assert np.mean(losses[-2:]) < 0.8 * losses[0]


def test_a_conformer_learns_a_batch_on_one_device():
    model, _ = EXAMPLES["conformer"]
    losses = [float(one_device(model, steps)[2]["loss"]) for steps in (1, 4)]
    assert losses[1] < 0.9 * losses[0]


def test_a_u_net_sends_halos_and_sums_and_gathers_no_image():
    _, devices, program = compiled("unet3d", (2, 4))
    counts = collectives(program.executable.as_text(), devices.mesh)
    assert counts["collective-permute", "space"] > 0
    assert {kind for kind, _ in counts} == {"collective-permute", "all-reduce"}
