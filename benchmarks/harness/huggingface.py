"""The two models of Hugging Face transformers that benchmarks compare with, with random weights."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
import transformers


class Sizes(Protocol):
    """The sizes of a model, as `Workload` has them."""

    vocabulary: int
    model_dim: int
    hidden_dim: int
    layers: int
    heads: int
    experts: int


def model_of(
    sizes: Sizes, settings: Mapping[str, Any], of_experts: Mapping[str, Any]
) -> torch.nn.Module:
    """Returns M2M100, or NllbMoe with experts in every second layer.

    Args:
      sizes: the sizes. With 0 experts the model is dense.
      settings: further settings of both models.
      of_experts: further settings of NllbMoe.
    """
    whole: dict[str, Any] = {
        "vocab_size": sizes.vocabulary,
        "d_model": sizes.model_dim,
        "max_position_embeddings": 128,
        **settings,
    }
    for stack in ("encoder", "decoder"):
        whole |= {
            f"{stack}_layers": sizes.layers,
            f"{stack}_attention_heads": sizes.heads,
            f"{stack}_ffn_dim": sizes.hidden_dim,
            f"{stack}_layerdrop": 0.0,
        }
    if not sizes.experts:
        return transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(**whole))
    config = transformers.NllbMoeConfig(
        **whole,
        num_experts=sizes.experts,
        encoder_sparse_step=2,
        decoder_sparse_step=2,
        second_expert_policy="all",
        **of_experts,
    )
    return transformers.NllbMoeForConditionalGeneration(config)
