"""The weights of a model as decoding reads them: by layer, and in the precision that the user chose.

Each step of a search multiplies a few rows by every weight. So the weights are put into the best order
once for each batch, before the loop of the search:

- A layer has its own arrays. If the loop cut them out of the stack, each step would copy all weights.
- The dimensions that a product sums over come last. XLA's kernels for CPUs then run at their full speed,
  and each row of a product has the same bits for any number of rows above one.
"""

from collections.abc import Mapping

from gshard_nmt.model.config import Model
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.packed import pack

EXPERTS = ("wi", "wi_linear", "wo")
"""The matrices of experts."""

SUMMED: Mapping[str, tuple[str, str]] = {
    "query": ("MND", "M"),
    "key": ("MND", "M"),
    "value": ("MND", "M"),
    "output": ("NDM", "ND"),
    "wi": ("MH", "M"),
    "wi_linear": ("MH", "M"),
    "wo": ("HM", "H"),
}
"""The letters of each matrix, and those that its product sums over, by the last word of its name."""


def prepare(model: Model, p: Mapping[str, "tf.Tensor"], precision: str) -> dict:
    """Returns the weights for decoding.

    Args:
      model: the settings of the model.
      p: all parameters of the model.
      precision: "model" keeps the precision of the model's activations. "bfloat16" rounds the operands of
        all products with weights except the gate, and sums them in float32.

    Returns:
      The same names. Every array of a block is a list, with an entry for each repeat of the block. The
      weights of SUMMED are packed, and experts are bfloat16 if the products are. `output_embedding` is
      the target embedding, packed for the logits. An encoder that is a loop keeps its stacked arrays.
    """
    prepared: dict = {}
    for name, weight in p.items():
        stack, is_block, place = name.partition("/block/")
        if not is_block or (stack == "encoder" and model.stack == "scan"):
            prepared[name] = weight
            continue
        word = name.rpartition("/")[2]
        layers = [weight[repeat] for repeat in range(weight.shape[0])]
        if place.startswith("moe_") and word in EXPERTS:
            low = precision == "bfloat16"
            prepared[name] = [tf.cast(layer, tf.bfloat16) for layer in layers] if low else layers
        elif word in SUMMED:
            prepared[name] = [pack(layer, *SUMMED[word], precision) for layer in layers]
        else:
            prepared[name] = layers
    prepared["output_embedding"] = pack(p["target_embedding"], "VM", "M", precision)
    return prepared
