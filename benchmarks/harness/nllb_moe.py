"""Hugging Face's NllbMoe, with its experts as its authors meant them.

In transformers 5.23 the layer of experts reads the router's mask, 0 or 1 for each token and expert, as
numbers of experts. So expert 1 gets each token once, and expert 0 gets it `num_experts - 1` times; the
other experts get nothing, and a token costs `num_experts` visits instead of two.
"""

import torch
from transformers.models.nllb_moe import modeling_nllb_moe


def mend() -> None:
    modeling_nllb_moe.NllbMoeExperts.forward = _visit_experts


def _visit_experts(
    experts: torch.nn.ModuleDict,
    hidden_states: torch.Tensor,
    router_mask: torch.Tensor,  # noqa: ARG001 (has only the first choices)
    router_probs: torch.Tensor,
) -> torch.Tensor:
    outputs = torch.zeros_like(hidden_states)
    for number in range(experts.num_experts):
        expert = experts[f"expert_{number}"]
        tokens = router_probs[:, number].nonzero().squeeze(1)
        weights = router_probs[tokens, number, None]
        visits = expert(hidden_states[tokens]) * weights
        if experts.moe_token_dropout and experts.training:
            visits = experts.token_dropout(visits)
        elif experts.moe_token_dropout:
            visits = visits * (1 - experts.moe_token_dropout)
        outputs.index_add_(0, tokens, visits.to(outputs.dtype))
    return outputs
