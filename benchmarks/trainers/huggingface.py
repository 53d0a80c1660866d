"""Hugging Face transformers as a trainer of benchmarks/training.py: M2M100, or NllbMoe with experts.

The optimizer is PyTorch's Adafactor with the update rule of this package: factored second moments, and
updates that are clipped at 1 and scaled by the parameter. The loss is the model's own: cross-entropy, and
with experts the load-balancing loss. Attention is the library's default: PyTorch's scaled dot product in
M2M100, and plain products in NllbMoe, which has no other. bfloat16 comes by autocast; by weights, so that
all values are bfloat16; or by products, which then round the operands of float32 as this package does.
"""

from collections.abc import Callable

import torch
import transformers
from harness import huggingface, nllb_moe
from harness.turns import take_turns
from torch.utils.flop_counter import FlopCounterMode
from trainers.workload import Workload, checked

START = EOS = 2


def main() -> None:
    workload = Workload.of_command_line(__doc__)
    torch.set_num_threads(len(workload.cores))
    train, facts = prepared(workload, [])
    take_turns(train, facts)


def prepared(
    workload: Workload, losses: list[float], device: str = "cpu"
) -> tuple[Callable[[], None], Callable[[], dict]]:
    """Returns the work of one turn, which appends its losses, and a function that returns the facts."""
    is_low = workload.precision == "bfloat16"
    if workload.variant == "products":
        torch.set_float32_matmul_precision("medium")
    if workload.variant != "released":
        nllb_moe.mend()
    model = model_of(workload)
    if workload.variant == "weights":
        model = model.to(torch.bfloat16)
    model = model.to(device)
    optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-2)
    source, target = (
        torch.tensor(workload.sentences(side), device=device) for side in ("source", "target")
    )
    # Flash attention, which PyTorch has on GPUs, takes no mask, and no token is padding.
    mask = torch.ones_like(source) if device == "cpu" else None
    is_autocast = is_low and workload.variant not in ("weights", "products")
    low = torch.autocast(device, torch.bfloat16, enabled=is_autocast)
    forward = torch.compile(model) if workload.variant == "compiled" else model

    def step(forward: Callable) -> None:
        optimizer.zero_grad()
        with low:
            outputs = forward(input_ids=source, attention_mask=mask, labels=target, use_cache=False)
        outputs.loss.backward()
        optimizer.step()
        losses.append(outputs.loss.item())

    def train() -> None:
        for _ in range(workload.steps):
            step(forward)

    def facts() -> dict:
        # Half-precision and compiled products are the same products.
        with FlopCounterMode(display=False) as counter:
            step(model)
        flops = counter.get_total_flops() * workload.steps
        while workload.variant == "weights" and len(losses) < 20:
            step(model)  # a loss in bfloat16 moves in steps of 0.06
        return facts_of(model) | {"gflop": flops / 1e9, "losses": checked(losses)}

    return train, facts


def facts_of(model: torch.nn.Module) -> dict:
    return {
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
        "parameters": sum(p.numel() for p in model.parameters()),
        "embeddings": model.get_input_embeddings().weight.numel(),
    }


def model_of(workload: Workload) -> torch.nn.Module:
    torch.manual_seed(1)
    settings = {
        "decoder_start_token_id": START,
        "dropout": workload.dropout,
        "attention_dropout": workload.dropout,
        "activation_dropout": 0.0,
        "use_cache": False,
    }
    # The capacity is twice the tokens of a batch, over all experts.
    of_experts = {
        "expert_capacity": 2 * workload.rows * workload.length // max(workload.experts, 1),
        "moe_token_dropout": 0.0,
        "output_router_logits": True,
        "router_aux_loss_coef": 0.01,
    }
    return huggingface.model_of(workload, settings, of_experts).train()


if __name__ == "__main__":
    main()
