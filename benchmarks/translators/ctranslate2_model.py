"""CTranslate2 as a translator of benchmarks/decoding.py: the dense model of Hugging Face, converted.

A translation has exactly `target_tokens` tokens, because `min_decoding_length` and `max_decoding_length`
are equal. Until then the search forbids the end of a sentence.
"""

import subprocess
import sys
from pathlib import Path

import ctranslate2
from harness.turns import take_turns
from translators.workload import Workload

START = END = "</s>"
SPECIAL = ("<s>", "<pad>", END, "<unk>")


def main() -> None:
    workload = Workload.of_command_line(__doc__)
    folder = Path(workload.folder) / "ctranslate2-model"
    if not (folder / "model.bin").exists():
        # PyTorch and CTranslate2 each bring a library of threads, so they do not share a process.
        command = [sys.executable, "-P", "-m", "translators.ctranslate2_model"]
        subprocess.run([*command, *sys.argv[1:], "--convert"], check=True)
    threads = len(workload.cores)
    model = ctranslate2.Translator(
        str(folder),
        device="cpu",
        compute_type=workload.precision,
        inter_threads=workload.parts,
        intra_threads=threads // workload.parts,
    )
    vocabulary = tokens_of(workload)
    sources = [[vocabulary[i] for i in ids] for ids in workload.sources(SPECIAL.index(END))]

    def translate() -> list[int]:
        translations = model.translate_batch(
            sources,
            max_batch_size=-(-len(sources) // workload.parts),
            beam_size=workload.beam,
            min_decoding_length=workload.target_tokens,
            max_decoding_length=workload.target_tokens,
        )
        return [len(translation.hypotheses[0]) for translation in translations]

    take_turns(
        workload.checked(translate), lambda: {"versions": {"ctranslate2": ctranslate2.__version__}}
    )


def tokens_of(workload: Workload) -> list[str]:
    return [*SPECIAL, *(f"word{i}" for i in range(len(SPECIAL), workload.vocabulary))]


def convert(workload: Workload) -> None:
    from ctranslate2.converters.transformers import M2M100Loader
    from translators.huggingface import model_of

    spec = M2M100Loader().get_model_spec(model_of(workload))
    spec.register_source_vocabulary(tokens_of(workload))
    spec.register_target_vocabulary(tokens_of(workload))
    spec.config.decoder_start_token = START
    spec.validate()
    folder = Path(workload.folder) / "ctranslate2-model"
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


if __name__ == "__main__":
    if sys.argv[-1] == "--convert":
        sys.argv.pop()
        convert(Workload.of_command_line(__doc__))
    else:
        main()
