"""A 3D U-Net whose images are split over space (GSPMD section 5.6, Table 8).

    python examples/unet3d.py --mesh 2x2 --steps 20
    python examples/unet3d.py --mesh 1x8 --compile_for v3:2x2

A U-Net labels each voxel of an image. It halves the image a few times, doubles it again as often, and
joins each size on the way up with the same size on the way down (Çiçek et al. 2016). One image can be
larger than the memory of a device. So the mesh has an axis for data and one for space: the first
splits the batch, and the second splits the depth of each image. Each device then needs a few planes of
its neighbors for a convolution. The compiler sends them as halos, by collective-permutes.

Only the two inputs are annotated. The sharding of every other tensor follows from them, because all
layers share the dimensions of space. The task is made up: to find full and hollow balls in noise.

The letters of the dimensions:

    B       images                 I, O   channels, into and out of a convolution
    D H W   depth, height, width   C      channels of the image
    d h w   the same of a kernel   V      labels of a voxel
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
from gshard_nmt.spmd.lowering import ArraySpec
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.sharding import annotate

if TYPE_CHECKING:
    import tensorflow as tf

LABELS = 3


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of the model and of a batch."""

    image: int = 16
    rows: int = 4
    levels: int = 3
    filters: int = 4
    """The channels of the first convolution. Each level has twice as many as the level above it."""
    dtype: str = "float32"


def mesh_of(data: int, space: int) -> Mesh:
    """Returns a mesh whose first axis splits the images, and whose second axis splits their depth."""
    return Mesh(("data", "space"), (data, space), rules={"B": "data", "D": "space"})


def build(sizes: Sizes) -> Model:
    """Returns the model, which the trainer can train.

    Raises:
      UserError: an image cannot be halved as often as the levels ask.
    """
    halvings = sizes.levels - 1
    if sizes.image % 2**halvings:
        raise UserError(
            f"--image {sizes.image} cannot be halved {halvings} times, which --levels {sizes.levels} "
            f"needs; give a multiple of {2**halvings}."
        )
    shape = (sizes.rows, sizes.image, sizes.image, sizes.image)
    return Model(
        weights=_weights(sizes),
        batch={
            "images": ArraySpec((*shape, 1), np.dtype(np.float32), "BDHWC"),
            "labels": ArraySpec(shape, np.dtype(np.int32), "BDHW"),
        },
        loss=functools.partial(_loss, sizes),
        make_batch=functools.partial(_made_scans, sizes),
        learning_rate=0.03,
    )


def _weights(sizes: Sizes) -> dict[str, Weight]:
    """Returns the weights of both sides of the U: two convolutions a level, and one that doubles."""
    weights: dict[str, Weight] = {}

    def convolution(name: str, inputs: int, outputs: int) -> int:
        weights[f"{name}/kernel"] = Weight("dhwIO", (3, 3, 3, inputs, outputs), 27 * inputs)
        weights[f"{name}/scale"] = Weight("O", (outputs,), constant=1)
        weights[f"{name}/shift"] = Weight("O", (outputs,))
        return outputs

    channels, widths = 1, []
    for level in range(sizes.levels):
        width = sizes.filters * 2**level
        channels = convolution(f"down{level}/first", channels, width)
        channels = convolution(f"down{level}/second", channels, 2 * width)
        widths.append(channels)
    for level in reversed(range(sizes.levels - 1)):
        # The kernel of a transposed convolution has its outputs before its inputs.
        weights[f"up{level}/double"] = Weight("dhwOI", (2, 2, 2, channels, channels), channels)
        channels = convolution(f"up{level}/first", channels + widths[level], widths[level])
        channels = convolution(f"up{level}/second", channels, widths[level])
    weights["out"] = Weight("IV", (channels, LABELS), channels)
    return weights


def _loss(sizes: Sizes, weights: Tensors, batch: Tensors) -> "tf.Tensor":
    """Returns the mean cross-entropy of the labels of all voxels."""
    import tensorflow as tf

    x = tf.cast(annotate(batch["images"], "BDHWC"), sizes.dtype)
    labels = annotate(batch["labels"], "BDHW")
    skipped = []
    for level in range(sizes.levels):
        if level:
            x = tf.nn.max_pool3d(x, 2, 2, "VALID")
        x = _convolution(weights, f"down{level}/first", x)
        x = _convolution(weights, f"down{level}/second", x)
        skipped.append(x)
    for level in reversed(range(sizes.levels - 1)):
        fine = skipped[level]
        kernel = tf.cast(weights[f"up{level}/double"], x.dtype)
        doubled = [*fine.shape[:4], x.shape[4]]
        x = tf.nn.conv3d_transpose(x, kernel, doubled, [1, 2, 2, 2, 1], "VALID")
        x = _convolution(weights, f"up{level}/first", tf.concat([x, fine], axis=-1))
        x = _convolution(weights, f"up{level}/second", x)
    logits = tf.einsum("BDHWI,IV->BDHWV", tf.cast(x, tf.float32), weights["out"])
    # TensorFlow's own cross-entropy flattens all voxels into one dimension. No mesh splits that dimension
    # as it splits the images, so the compiler would gather the images.
    of_label = tf.reduce_sum(logits * tf.one_hot(labels, LABELS), axis=-1)
    return tf.reduce_mean(tf.reduce_logsumexp(logits, axis=-1) - of_label)


def _convolution(weights: Tensors, name: str, x: "tf.Tensor") -> "tf.Tensor":
    """Returns a convolution of x[B, D, H, W, I] with a 3 x 3 x 3 kernel, normalized, and a ReLU.

    Each channel is normalized over the batch and over space. The shards of all devices share these
    means, so the compiler makes all-reduces of them.
    """
    import tensorflow as tf

    kernel = tf.cast(weights[f"{name}/kernel"], x.dtype)
    y = tf.nn.conv3d(x, kernel, [1, 1, 1, 1, 1], "SAME")
    mean, variance = tf.nn.moments(tf.cast(y, tf.float32), axes=[0, 1, 2, 3])
    factor = weights[f"{name}/scale"] * tf.math.rsqrt(variance + 1e-5)
    shift = weights[f"{name}/shift"] - mean * factor
    return tf.nn.relu(y * tf.cast(factor, y.dtype) + tf.cast(shift, y.dtype))


def _made_scans(sizes: Sizes, numbers: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns a batch: each image has a full ball (label 1) and a hollow ball (label 2) in noise."""
    places = np.stack(np.meshgrid(*[np.arange(sizes.image)] * 3, indexing="ij"), axis=-1)
    labels = np.zeros((sizes.rows, *places.shape[:3]), np.int32)
    images = np.zeros(labels.shape, np.float32)
    for row in range(sizes.rows):
        for label in (1, 2):
            radius = numbers.uniform(0.2, 0.35) * sizes.image
            distance = np.linalg.norm(places - numbers.uniform(0, sizes.image, 3), axis=-1)
            labels[row][distance < radius] = label
            images[row][distance < radius] = 1
            if label == 2:
                images[row][distance < 0.6 * radius] = 0
    images += 0.3 * numbers.standard_normal(images.shape, np.float32)
    return {"images": images[..., np.newaxis], "labels": labels}


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains a 3D U-Net on made scans, or compiles it."""
    parser = trainer.flags(__doc__.split("\n\n")[0])
    defaults = Sizes()
    trainer.sizes(
        parser,
        image=(defaults.image, "the voxels along each edge of an image"),
        rows=(defaults.rows, "the number of images in a batch"),
        levels=(defaults.levels, "the number of sizes of the image"),
        filters=(defaults.filters, "the channels of the first convolution"),
    )

    def model_and_mesh(options: argparse.Namespace) -> tuple[Model, Mesh]:
        fields = [field.name for field in dataclasses.fields(Sizes)]
        sizes = Sizes(**{name: getattr(options, name) for name in fields})
        return build(sizes), mesh_of(*trainer.mesh_shape(options.mesh))

    return trainer.run(parser, model_and_mesh, arguments)


if __name__ == "__main__":
    sys.exit(main())
