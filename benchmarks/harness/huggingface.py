"""The two models of Hugging Face transformers that benchmarks compare with, with random weights."""

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from harness.job import ModelJob


def model_of(
    job: ModelJob, settings: Mapping[str, Any], of_experts: Mapping[str, Any]
) -> torch.nn.Module:
    whole: dict[str, Any] = {
        "vocab_size": job.vocabulary,
        "d_model": job.model_dim,
        "max_position_embeddings": 128,
        **settings,
    }
    for stack in ("encoder", "decoder"):
        whole |= {
            f"{stack}_layers": job.layers,
            f"{stack}_attention_heads": job.heads,
            f"{stack}_ffn_dim": job.hidden_dim,
            f"{stack}_layerdrop": 0.0,
        }
    if not job.experts:
        return transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(**whole))
    config = transformers.NllbMoeConfig(
        **whole,
        num_experts=job.experts,
        encoder_sparse_step=2,
        decoder_sparse_step=2,
        second_expert_policy="all",
        **of_experts,
    )
    return transformers.NllbMoeForConditionalGeneration(config)
