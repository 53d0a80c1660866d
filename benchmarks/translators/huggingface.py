"""Hugging Face transformers as a translator of benchmarks/decoding.py: M2M100, or NllbMoe with experts.

The weights are random. A translation has exactly `target_tokens` tokens, because the end of a sentence is
forbidden before (`min_new_tokens`), and the search ends there (`max_new_tokens`). In evaluation NllbMoe's
experts take every token that visits them, so no token is dropped. harness/nllb_moe.py mends its experts.
"""

import torch
import transformers
from harness import huggingface, nllb_moe
from harness.turns import take_turns
from translators.workload import Workload

START = EOS = 2


def main() -> None:
    workload = Workload.of_command_line(__doc__)
    torch.set_num_threads(len(workload.cores))
    nllb_moe.mend()
    model = model_of(workload)
    sources = torch.tensor(workload.sources(EOS))
    mask = torch.ones_like(sources)

    def translate() -> list[int]:
        translations = model.generate(
            input_ids=sources,
            attention_mask=mask,
            num_beams=workload.beam,
            do_sample=False,
            min_new_tokens=workload.target_tokens,
            max_new_tokens=workload.target_tokens,
        )
        return [len(ids) - 1 for ids in translations.tolist()]  # the first id starts the decoder

    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    with torch.inference_mode():
        take_turns(workload.checked(translate), lambda: {"versions": versions})


def model_of(workload: Workload) -> torch.nn.Module:
    torch.manual_seed(1)
    settings = {"decoder_start_token_id": START, "forced_eos_token_id": None}
    # A capacity of 1.0 times the tokens of a batch drops none of them.
    of_experts = {"moe_eval_capacity_token_fraction": 1.0}
    return huggingface.model_of(workload, settings, of_experts).eval()


if __name__ == "__main__":
    main()
