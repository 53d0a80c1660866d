"""A stack of Conformer layers that is split over data and width (GSPMD section 5.3, Table 5).

    python examples/conformer.py --mesh 2x2 --steps 20
    python examples/conformer.py --mesh 2x4 --compile_for v3:2x2

A Conformer reads frames of speech. One layer is a feed-forward layer of half weight, self-attention, a
convolution over time, and another feed-forward layer of half weight (Gulati et al. 2020). With a width
of M it has 23 M * M weights, as in the paper's model: 16 in the feed-forward layers, 4 in the attention
and 3 in the convolution module. The task is made up: to name the sound in each frame of noise.

The letters of the dimensions:

    B   utterances            M   width of the model          N   attention heads
    L   frames                H   width of a feed-forward     D   width of a head
    S   frames as keys        C   channels of the convolution layer
    R   layers                K   frames that the convolution sees
    F   features of a frame   V   sounds
"""

import argparse
import dataclasses
import functools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import trainer
from trainer import Model, Tensors, Weight

from gshard_nmt.errors import UserError
from gshard_nmt.model.stack import Part, scanned
from gshard_nmt.spmd.lowering import ArraySpec
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.sharding import annotate

if TYPE_CHECKING:
    import tensorflow as tf

FEATURES, SOUNDS = 16, 8
SUBSAMPLING = 4
"""The number of input frames of each frame that the layers see."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of the model and of a batch."""

    layers: int = 4
    width: int = 64
    heads: int = 4
    rows: int = 8
    frames: int = 32
    window: int = 7
    """The number of frames that the convolution over time sees."""
    dtype: str = "float32"


def mesh_of(x: int, y: int) -> Mesh:
    """Returns the mesh of GSPMD Table 1, finalized: x splits the rows, y splits the width.

    The rules apply to activations and weights. The overrides apply only to weights, because they have
    names: M is split over x, so a matrix is split over all devices. The scales of norms are whole on
    each device.
    """
    return Mesh(
        ("x", "y"),
        (x, y),
        rules={"B": "x", "M": "y", "H": "y", "N": "y", "C": "y"},
        overrides={"*norm": {"M": None, "C": None}, "*": {"M": "x"}},
    )


def build(sizes: Sizes) -> Model:
    """Returns the model, which the trainer can train.

    Raises:
      UserError: the heads do not divide the width.
    """
    if sizes.width % sizes.heads:
        raise UserError(
            f"--width {sizes.width} does not divide over --heads {sizes.heads}; give a width that is "
            "a multiple of the heads."
        )
    features = (sizes.rows, sizes.frames * SUBSAMPLING, FEATURES)
    return Model(
        weights=_weights(sizes),
        batch={
            "features": ArraySpec(features, np.dtype(np.float32), "BLF"),
            "sounds": ArraySpec((sizes.rows, sizes.frames), np.dtype(np.int32), "BL"),
        },
        loss=functools.partial(_loss, sizes),
        make_batch=functools.partial(_made_speech, sizes),
        learning_rate=0.05,
    )


def _weights(sizes: Sizes) -> dict[str, Weight]:
    m, f = sizes.width, SUBSAMPLING * FEATURES
    return {
        **{f"layers/{name}": weight for name, weight in _layer_weights(sizes).items()},
        "subsampling": Weight("FM", (f, m), f),
        "out": Weight("MV", (m, SOUNDS), m),
    }


def _layer_weights(sizes: Sizes) -> dict[str, Weight]:
    """Returns the weights of the layers. Each has a first dimension R, with an index for each layer."""
    r, m, n, k = sizes.layers, sizes.width, sizes.heads, sizes.window
    h, d = 4 * m, m // n
    return {
        "first/norm": Weight("RM", (r, m), constant=1),
        "first/in": Weight("RMH", (r, m, h), m),
        "first/out": Weight("RHM", (r, h, m), h),
        "attention/norm": Weight("RM", (r, m), constant=1),
        "attention/query": Weight("RMND", (r, m, n, d), m),
        "attention/key": Weight("RMND", (r, m, n, d), m),
        "attention/value": Weight("RMND", (r, m, n, d), m),
        "attention/out": Weight("RNDM", (r, n, d, m), m),
        "convolution/norm": Weight("RM", (r, m), constant=1),
        "convolution/in": Weight("RMC", (r, m, m), m),
        "convolution/gate": Weight("RMC", (r, m, m), m),
        "convolution/over_time": Weight("RKC", (r, k, m), k),
        "convolution/inner_norm": Weight("RC", (r, m), constant=1),
        "convolution/out": Weight("RCM", (r, m, m), m),
        "second/norm": Weight("RM", (r, m), constant=1),
        "second/in": Weight("RMH", (r, m, h), m),
        "second/out": Weight("RHM", (r, h, m), h),
        "norm": Weight("RM", (r, m), constant=1),
    }


def _loss(sizes: Sizes, weights: Tensors, batch: Tensors) -> "tf.Tensor":
    """Returns the mean cross-entropy of the sounds of all frames."""
    import tensorflow as tf

    layers = {
        name.removeprefix("layers/"): weight
        for name, weight in weights.items()
        if name.startswith("layers/")
    }
    # The subsampling is a convolution whose windows do not overlap: a product for each window.
    # [B, 4L, F] -> [B, L, 4F]
    b, frames, f = batch["features"].shape
    windows = tf.reshape(batch["features"], [b, frames // SUBSAMPLING, SUBSAMPLING * f])
    x = tf.einsum("BLF,FM->BLM", windows, weights["subsampling"])
    x = annotate(tf.cast(x, sizes.dtype), "BLM")
    # The loop over the layers is compiled once. It keeps the input of each layer, and the backward pass
    # computes the rest again. Matrices are cast to the dtype of x. The gradients of all layers are
    # annotated like the weights.
    letters = {name: weight.letters for name, weight in _layer_weights(sizes).items()}
    matrices = [name for name in letters if layers[name].shape.rank > 2]
    x, _ = scanned(
        [Part(list(letters), _layer, matrices)],
        layers,
        lambda name, gradient: annotate(gradient, letters[name], name),
        x,
        shared=[],
        totals={},
    )
    logits = tf.einsum("BLM,MV->BLV", tf.cast(x, tf.float32), weights["out"])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["sounds"], logits)
    return tf.reduce_mean(losses)


def _layer(values: Tensors, x: "tf.Tensor", *_: object) -> tuple["tf.Tensor", dict]:
    """Returns one Conformer layer of x[B, L, M], and no totals."""
    x += 0.5 * _feed_forward(values, "first", x)
    x += _attention(values, x)
    x += _convolution(values, x)
    x += 0.5 * _feed_forward(values, "second", x)
    return annotate(_norm(x, values["norm"]), "BLM"), {}


def _feed_forward(values: Tensors, name: str, x: "tf.Tensor") -> "tf.Tensor":
    import tensorflow as tf

    x = _norm(x, values[f"{name}/norm"])
    hidden = tf.nn.silu(tf.einsum("BLM,MH->BLH", x, values[f"{name}/in"]))
    hidden = annotate(hidden, "BLH")
    return annotate(tf.einsum("BLH,HM->BLM", hidden, values[f"{name}/out"]), "BLM")


def _attention(values: Tensors, x: "tf.Tensor") -> "tf.Tensor":
    """Returns the self-attention of x[B, L, M]. The heads are split over devices."""
    import tensorflow as tf

    x = _norm(x, values["attention/norm"])
    query, key, value = (
        annotate(tf.einsum("BLM,MND->BLND", x, values[f"attention/{name}"]), "BLND")
        for name in ("query", "key", "value")
    )
    scores = tf.einsum("BLND,BSND->BNLS", query, key) * query.shape[-1] ** -0.5
    shares = tf.cast(tf.nn.softmax(tf.cast(scores, tf.float32)), x.dtype)
    context = annotate(tf.einsum("BNLS,BSND->BLND", shares, value), "BLND")
    return annotate(tf.einsum("BLND,NDM->BLM", context, values["attention/out"]), "BLM")


def _convolution(values: Tensors, x: "tf.Tensor") -> "tf.Tensor":
    """Returns the convolution module of x[B, L, M]. The channels are split over devices.

    Each channel has a convolution over time of its own, so the devices exchange nothing for it.
    """
    import tensorflow as tf

    x = _norm(x, values["convolution/norm"])
    inside, gate = (
        annotate(tf.einsum("BLM,MC->BLC", x, values[f"convolution/{name}"]), "BLC")
        for name in ("in", "gate")
    )
    inside *= tf.sigmoid(gate)
    # TensorFlow has this convolution only over images, so we add a dimension of one row.
    # [B, L, C] -> [B, 1, L, C];  [K, C] -> [1, K, C, 1]
    kernel = tf.cast(values["convolution/over_time"], x.dtype)[tf.newaxis, :, :, tf.newaxis]
    inside = tf.nn.depthwise_conv2d(inside[:, tf.newaxis], kernel, [1, 1, 1, 1], "SAME")
    inside = annotate(tf.squeeze(inside, 1), "BLC")
    inside = tf.nn.silu(_norm(inside, values["convolution/inner_norm"]))
    return annotate(tf.einsum("BLC,CM->BLM", inside, values["convolution/out"]), "BLM")


def _norm(x: "tf.Tensor", scale: "tf.Tensor") -> "tf.Tensor":
    """Normalizes the last dimension to a mean of 0 and a variance of 1, in float32."""
    import tensorflow as tf

    wide = tf.cast(x, tf.float32)
    mean, variance = tf.nn.moments(wide, axes=[-1], keepdims=True)
    return tf.cast((wide - mean) * tf.math.rsqrt(variance + 1e-6) * scale, x.dtype)


def _made_speech(sizes: Sizes, numbers: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns a batch: each sound lasts 4 frames, and its features are drowned in noise.

    A single frame does not tell its sound. Its neighbors, which the convolution sees, have the same.
    """
    rows, frames = sizes.rows, sizes.frames
    lasting = numbers.integers(SOUNDS, size=(rows, -(-frames // 4)))
    sounds = np.repeat(lasting, 4, axis=1)[:, :frames].astype(np.int32)
    voices = np.random.default_rng(1).standard_normal((SOUNDS, FEATURES), np.float32)
    clean = np.repeat(voices[sounds], SUBSAMPLING, axis=1)
    noise = 2 * numbers.standard_normal(clean.shape, np.float32)
    return {"features": clean + noise, "sounds": sounds}


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains a Conformer on made speech, or compiles it."""
    parser = trainer.flags(__doc__.split("\n\n")[0])
    defaults = Sizes()
    trainer.sizes(
        parser,
        layers=(defaults.layers, "the number of layers"),
        width=(defaults.width, "the width M of the model"),
        heads=(defaults.heads, "the number of attention heads"),
        rows=(defaults.rows, "the number of utterances in a batch"),
        frames=(defaults.frames, "the frames of an utterance that the layers see"),
        window=(defaults.window, "the frames that the convolution over time sees"),
    )

    def model_and_mesh(options: argparse.Namespace) -> tuple[Model, Mesh]:
        fields = [field.name for field in dataclasses.fields(Sizes)]
        sizes = Sizes(**{name: getattr(options, name) for name in fields})
        return build(sizes), mesh_of(*trainer.mesh_shape(options.mesh))

    return trainer.run(parser, model_and_mesh, arguments)


if __name__ == "__main__":
    sys.exit(main())
