"""Makes the goldens of gshard-import: tiny models of transformers, and what transformers does with them.

    python -m scripts.make_import_goldens tests/exchange/goldens

It needs torch, transformers and sentencepiece, which the project itself does not install. Each model
learns for a few seconds to write a simple random language, so that its translations end and differ. The
weights are then rounded to the dtype of their file, and everything else is computed from these.

transformers 5.23 sends the tokens of NllbMoe to wrong experts. `benchmarks/harness/nllb_moe.py` explains
this and mends it, and the goldens come from the mended model.
"""

import dataclasses
import io
import json
import random
import sys
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers
from safetensors.torch import save_file
from transformers.models.nllb_moe import modeling_nllb_moe

from benchmarks.harness import nllb_moe

SIZES = {
    "d_model": 16,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 32,
    "init_std": 0.2,
}
TEXT = """
The file was not found. Open another file, please! Is the folder empty? No, it has three files.
Le fichier est introuvable. Ouvrez un autre fichier ! Le dossier est vide ? Non, il a trois fichiers.
Die Datei wurde nicht gefunden. Der Ordner ist leer. Файл не найден. Папка пуста.
"""
SENTENCES = ("The file is empty.", "Open  the third folder ☃ now!", "Le dossier")
MOST_TOKENS = 16


@dataclasses.dataclass
class Golden:
    """A model and its way to write sentences.

    Attributes:
      name: the name of its folder.
      model: the model.
      dtype: the dtype of the weights in the file.
      files: further files, by name.
      begin: the ids that a source begins with.
      end: the ids that a source ends with.
      first: the first id of each translation; None if it is free.
    """

    name: str
    model: Any
    dtype: torch.dtype
    files: dict[str, bytes]
    begin: list[int]
    end: list[int]
    first: int | None


def pieces(text: str, size: int, kind: str) -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.strip().splitlines()),
        model_writer=model,
        vocab_size=size,
        hard_vocab_limit=False,
        model_type=kind,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def names(processor: sentencepiece.SentencePieceProcessor) -> list[str]:
    return [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]


def m2m_100() -> Golden:
    """A dense model with the layout of M2M-100: a dictionary, then 100 languages, then 8 made-up words.

    The dictionary lacks a piece of the SentencePiece model, and has a word that is no piece.
    """
    processor = pieces(TEXT, 110, "bpe")
    words = ["<s>", "<pad>", "</s>", "<unk>", *names(processor)[:5], *names(processor)[6:], "zzz"]
    languages = ["__de__", "__en__", "__fr__"]
    config = transformers.M2M100Config(
        vocab_size=len(words) + len(languages) + 8, encoder_layers=2, decoder_layers=2, **SIZES
    )
    files = {
        "sentencepiece.bpe.model": processor.serialized_model_proto(),
        "vocab.json": as_json({word: i for i, word in enumerate(words)}),
        "special_tokens_map.json": as_json({"additional_special_tokens": languages}),
    }
    model = transformers.M2M100ForConditionalGeneration(config)
    source, target = (len(words) + languages.index(name) for name in ("__en__", "__fr__"))
    return Golden("m2m_100", model, torch.float32, files, [source], [2], target)


def nllb() -> Golden:
    processor = pieces(TEXT, 100, "bpe")
    words = ["<s>", "<pad>", "</s>", "<unk>", *names(processor)]
    languages = ["deu_Latn", "eng_Latn", "fra_Latn"]
    config = transformers.NllbMoeConfig(
        vocab_size=len(words) + len(languages) + 3,
        encoder_layers=4,
        decoder_layers=2,
        encoder_sparse_step=2,
        decoder_sparse_step=2,
        num_experts=4,
        moe_token_dropout=0.2,
        moe_eval_capacity_token_fraction=1.0,
        **SIZES,
    )
    files = {
        "sentencepiece.bpe.model": processor.serialized_model_proto(),
        "special_tokens_map.json": as_json({"additional_special_tokens": languages}),
    }
    nllb_moe.mend()
    model = transformers.NllbMoeForConditionalGeneration(config)
    source, target = (len(words) + languages.index(name) for name in ("eng_Latn", "fra_Latn"))
    return Golden("nllb_moe", model, torch.bfloat16, files, [source], [2], target)


def marian() -> Golden:
    """A model with the layout of OPUS-MT: two SentencePiece models, and one dictionary for both."""
    lines = TEXT.strip().splitlines()
    source, target = (pieces(line, 48, "unigram") for line in lines[:2])
    words = list(dict.fromkeys([*names(source), *names(target)]))
    words = ["</s>", "<unk>", *words, ">>de<<", ">>fr<<", "<pad>"]
    pad = len(words) - 1
    config = transformers.MarianConfig(
        vocab_size=len(words),
        encoder_layers=2,
        decoder_layers=2,
        activation_function="swish",
        scale_embedding=True,
        pad_token_id=pad,
        eos_token_id=0,
        forced_eos_token_id=None,
        decoder_start_token_id=pad,
        **SIZES,
    )
    files = {
        "source.spm": source.serialized_model_proto(),
        "target.spm": target.serialized_model_proto(),
        "vocab.json": as_json({word: i for i, word in enumerate(words)}),
        "tokenizer_config.json": as_json({"source_lang": "en", "target_lang": "mul"}),
    }
    model = transformers.MarianMTModel(config)
    model.generation_config.bad_words_ids = [[pad]]
    model.generation_config.renormalize_logits = True
    files["generation_config.json"] = model.generation_config.to_json_string().encode()
    model.final_logits_bias += torch.randn(model.final_logits_bias.shape) / 4
    # Marian has no PAD: the row of PAD stays 0, as it gets no gradient.
    model.final_logits_bias[0, pad] = -100.0
    begin = [words.index(">>fr<<")]
    return Golden("marian", model, torch.float16, files, begin, [0], None)


def as_json(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=0) + "\n").encode()


def chain(first: int) -> list[int]:
    """Returns a random sentence of the language that the models learn.

    Two tokens can follow a token. A sentence has at least 4 tokens, and mostly ends after a multiple
    of 4. So greedy search and beam search give different translations, and these end.
    """
    tokens = [4 + 5 * first % 16]
    while len(tokens) < 4 or (len(tokens) < 10 and random.random() > 0.7 - 0.2 * (tokens[-1] % 4)):
        factor, shift = (5, 3) if random.random() < 0.6 else (7, 1)
        tokens.append(4 + (factor * tokens[-1] + shift) % 16)
    return tokens


def learn(golden: Golden) -> None:
    model = golden.model.train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    start, eos = model.config.decoder_start_token_id, model.config.eos_token_id
    first = [] if golden.first is None else [golden.first]
    for _ in range(400):
        sources = [[random.randrange(4, 40)] * 5 for _ in range(16)]
        targets = [[*first, *chain(source[0]), eos] for source in sources]
        length = max(map(len, targets))
        inputs = torch.tensor([[start, *t[:-1]] + [4] * (length - len(t)) for t in targets])
        labels = torch.tensor([t + [-100] * (length - len(t)) for t in targets])
        ids = torch.tensor([[*golden.begin, *source, *golden.end] for source in sources])
        logits = model(input_ids=ids, decoder_input_ids=inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{golden.name}: loss {loss.item():.3f}")


def encoded(golden: Golden, text: str) -> list[int]:
    model = next(
        v for k, v in golden.files.items() if k in ("sentencepiece.bpe.model", "source.spm")
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    if "vocab.json" in golden.files:
        words = json.loads(golden.files["vocab.json"])
        ids = [words.get(piece, words["<unk>"]) for piece in processor.encode(text, out_type=str)]
    else:
        ids = [i + 1 if i > 2 else 3 for i in processor.encode(text)]
    return [*golden.begin, *ids, *golden.end]


def decoded(golden: Golden, ids: list[int]) -> str:
    model = next(
        v for k, v in golden.files.items() if k in ("sentencepiece.bpe.model", "target.spm")
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    if "vocab.json" in golden.files:
        words = list(json.loads(golden.files["vocab.json"]))
    else:
        words = ["<s>", "<pad>", "</s>", "<unk>", *names(processor)]
    special = {"<s>", "<pad>", "</s>", "<unk>"}
    texts = [words[i] for i in ids if i < len(words) and words[i] not in special]
    return processor.decode_pieces(texts).replace("▁", " ").strip()


@torch.no_grad()
def expected(golden: Golden, text: str) -> dict[str, Any]:
    model, ids = golden.model, encoded(golden, text)
    inputs = torch.tensor([ids])
    search = {"input_ids": inputs, "max_new_tokens": MOST_TOKENS, "length_penalty": 0.0}
    if golden.first is not None:
        search["forced_bos_token_id"] = golden.first
    greedy = model.generate(**search, num_beams=1, do_sample=False)[0].tolist()
    beam = model.generate(**search, num_beams=4, do_sample=False, early_stopping="never")[
        0
    ].tolist()
    experts: list[list[list[int]]] = []

    def note(_layer: Any, _inputs: Any, outputs: Any) -> None:
        experts.append(torch.topk(outputs[1], 2).indices.tolist())

    routers = [m for m in model.modules() if isinstance(m, modeling_nllb_moe.NllbMoeTop2Router)]
    handles = [router.register_forward_hook(note) for router in routers]
    logits = model(input_ids=inputs, decoder_input_ids=torch.tensor([greedy])).logits[0]
    for handle in handles:
        handle.remove()
    result = {"text": text, "source": ids, "greedy": greedy, "beam": beam}
    result |= {"translation": decoded(golden, beam), "experts": experts}
    return result | {"logits": [[round(x, 6) for x in row] for row in logits.tolist()]}


def write(golden: Golden, folder: Path) -> None:
    learn(golden)
    model = golden.model.eval()
    if golden.name == "marian":
        # In a folder of OPUS-MT, the logit of PAD is always 0, wherever the other logits are.
        pad = model.config.pad_token_id
        model.final_logits_bias -= 16
        model.final_logits_bias[0, pad] = 0
        assert not model.model.shared.weight[pad].any()
    # The sinusoids are in no file, or are not read from it, so they keep their precision.
    for name, tensor in model.state_dict().items():
        if "embed_positions" not in name:
            tensor.copy_(tensor.to(golden.dtype))
    shared = model.model.shared.weight.data_ptr()
    tensors = {
        name: tensor.to(golden.dtype).contiguous()
        for name, tensor in model.state_dict().items()
        if tensor.data_ptr() != shared or name == "model.shared.weight"
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = {k: v for k, v in model.config.to_dict().items() if v is not None}
    for name, content in {**golden.files, "config.json": as_json(config)}.items():
        (folder / name).write_bytes(content)
    sentences = [expected(golden, text) for text in SENTENCES]
    (folder / "expected.json").write_text(json.dumps({"sentences": sentences}) + "\n")


def main() -> None:
    torch.set_num_threads(1)
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for make in (m2m_100, nllb, marian):
        torch.manual_seed(seed)
        random.seed(seed)
        golden = make()
        write(golden, Path(sys.argv[1]) / golden.name)


if __name__ == "__main__":
    main()
