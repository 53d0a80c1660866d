"""Compares two Hugging Face folders of the same model: the logits that transformers computes.

    python -m scripts.compare_transformers FOLDER OTHER

FOLDER has an `expected.json` of scripts/make_import_goldens.py, with sentences. Prints the largest
difference; the exit code is 1 if it is above 0.00001, or if tensors are missing. It needs torch and
transformers.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.harness import nllb_moe

TOLERANCE = 1e-5
_OWN = ("embed_positions",)
"""Tensors that transformers computes itself."""


def model_in(folder: Path) -> Any:
    """Returns the model of a folder in float32."""
    model, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32
    )
    wrong = [
        f"{kind}: {name}"
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
        for name in report[kind]
        if not any(own in str(name) for own in _OWN)
    ]
    if wrong:
        raise SystemExit(f"{folder}: {', '.join(wrong)}")
    return model.eval()


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    nllb_moe.mend()
    folders = [Path(name) for name in sys.argv[1:3]]
    models = [model_in(folder) for folder in folders]
    # A file may hold its sinusoids as float16. If it has none, transformers computes them as float32.
    sinusoids = {
        name: array
        for name, array in models[1].state_dict().items()
        if any(own in name for own in _OWN)
    }
    models[0].load_state_dict(sinusoids, strict=False)
    sentences = json.loads((folders[0] / "expected.json").read_text())["sentences"]
    worst = 0.0
    for sentence in sentences:
        source, target = (torch.tensor([sentence[name]]) for name in ("source", "greedy"))
        first, second = (m(input_ids=source, decoder_input_ids=target).logits for m in models)
        worst = max(worst, (first - second).abs().max().item())
    print(f"{folders[1]}: the largest difference of logits is {worst:.1e}")
    sys.exit(int(worst > TOLERANCE))


if __name__ == "__main__":
    main()
