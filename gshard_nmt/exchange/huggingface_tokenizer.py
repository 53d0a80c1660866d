"""The tokenizer files of Hugging Face folders: their tokens, languages and directions of translation.

M2M-100   vocab.json lists the tokens, and the languages `__fr__` follow. A source begins with the token
          of its own language, a translation with that of its language.
NLLB      the token of a piece is one id after the piece of sentencepiece.bpe.model, because `<pad>` comes
          before EOS; tokenizer.json may take its place. The languages `fra_Latn` follow. Sources and
          translations are like those of M2M-100.
Marian    vocab.json lists the tokens of both sides, and each side has a SentencePiece model. A source
          begins with the token `>>fra<<` of the language to translate into, if there are several.
"""

import collections
import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gshard_nmt import json_shape
from gshard_nmt.data.language_codes import understand
from gshard_nmt.data.text.vocabulary import PAD, Vocabulary, first_tag, source_tag, target_tag
from gshard_nmt.errors import UserError
from gshard_nmt.exchange.foreign_vocabulary import Order, Tokens, of_bpe, piece_names, reordered
from gshard_nmt.exchange.huggingface import REMEDY, own_order, read_object
from gshard_nmt.json_shape import anything, fields, list_of, mapping_of, text, whole

# fmt: off
TOKENIZER_FILES = (
    "sentencepiece.bpe.model", "vocab.json", "source.spm", "target.spm", "target_vocab.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
)
# fmt: on
"""The files of the tokenizer of a Hugging Face folder. No family has all of them."""
IMPORTED = "imported"
"""The folder of an imported run that keeps config.json and these files."""
FACTS = "gshard_nmt.json"
"""The file of an export that says which model it has."""
SIDES = {"source": "source.model", "target": "target.model"}
"""The SentencePiece model files of a model that was trained here."""

_SPECIAL_PIECES = 3
"""The special pieces of fairseq's SentencePiece models: <unk>, <s>, </s>."""
_FAIRSEQ_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
_FAIRSEQ_LANGUAGE = "__([a-z_]+)__|([a-z]{3}_[A-Z][a-z]{3})"
_MARIAN_LANGUAGE = ">>([A-Za-z_-]+)<<"
_LIST = list_of(anything())
_OWN_FACTS = fields(
    {"directions": list_of(list_of(text(), least=2), least=1), "never": list_of(whole())}
)
_BPE = fields(
    {"type": text("BPE", "'BPE'"), "vocab": mapping_of(whole()), "merges": list_of(anything())}
)
"""The part of tokenizer.json that can take the place of a SentencePiece model."""


class Tokenizer(NamedTuple):
    """The vocabularies of "source" and "target", and the directions as BCP 47 tags."""

    orders: Mapping[str, Order]
    directions: Sequence[tuple[str, str]]


def read_tokenizer(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """Reads the tokenizer of a folder with this config.json.

    Raises:
      UserError: a file is missing or damaged, or has other tokens than the model.
    """
    return _marian(folder, config) if config["model_type"] == "marian" else _fairseq(folder, config)


def own_tokenizer(folder: Path) -> Tokenizer | None:
    """Returns the vocabularies and directions of a folder that `gshard-export` wrote, else None.

    An imported model is exported with the tokenizer files of its family, so this is None for it too.
    """
    if not (folder / FACTS).is_file() or not (folder / SIDES["target"]).is_file():
        return None
    facts = json_shape.read(folder / FACTS, _OWN_FACTS, "Export the model again.")
    orders = {
        side: own_order(Vocabulary.load(folder / file), facts["never"])
        for side, file in SIDES.items()
    }
    return Tokenizer(orders, [(pair[0], pair[1]) for pair in facts["directions"]])


def _fairseq(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    spm = _fairseq_pieces(folder)
    if (folder / "vocab.json").is_file():
        names = _listed(folder, "vocab.json")
    else:
        names = [*_FAIRSEQ_TOKENS, *piece_names(spm)[_SPECIAL_PIECES:]]
    names = _with_special_tokens(folder, names, config["vocab_size"])
    languages = _languages(names, _FAIRSEQ_LANGUAGE)
    if len(languages) < 2:
        raise UserError(
            f"--from {folder} names {len(languages)} languages in tokenizer.json, tokenizer_config.json "
            "and special_tokens_map.json; a model of this kind has at least two. Copy these files too."
        )
    orders = {}
    for side, tag in (("source", source_tag), ("target", first_tag)):
        tags = {i: tag(language) for i, language in languages.items()}
        orders[side] = reordered(spm, _tokens(folder, names, config, tags))
    known = sorted(languages.values())
    return Tokenizer(orders, [(a, b) for a in known for b in known if a != b])


def _fairseq_pieces(folder: Path) -> bytes:
    """Returns the SentencePiece model; transformers 5 writes the one of NLLB as tokenizer.json."""
    file = folder / "sentencepiece.bpe.model"
    content = {} if (folder / "vocab.json").is_file() else read_object(folder / "tokenizer.json")
    if file.is_file() or not content:
        return _bytes(file)
    if not (problem := json_shape.problem(_BPE, content.get("model", {}))):
        ids = [content["model"]["vocab"].get(name) for name in _FAIRSEQ_TOKENS]
        if ids == [0, 1, 2, 3]:
            return of_bpe(content, len(ids))
        problem = f"its ids of {', '.join(_FAIRSEQ_TOKENS)} are {ids}, not 0 to 3"
    raise UserError(
        f"{file} is missing, and tokenizer.json cannot take its place: in model, {problem}. Copy "
        f"{file.name} from where the model was published; save_pretrained of transformers may not write "
        "it."
    )


def _marian(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    is_shared = config.get("share_encoder_decoder_embeddings", True)
    size = config["vocab_size"]
    sizes = {"source": size, "target": config.get("decoder_vocab_size", size)}
    files = {"source": "vocab.json", "target": "vocab.json" if is_shared else "target_vocab.json"}
    names = {
        s: _padded(folder, dict(enumerate(_listed(folder, files[s]))), sizes[s]) for s in sizes
    }
    languages = _languages(names["source"], _MARIAN_LANGUAGE)
    tags = {"source": {i: target_tag(tag) for i, tag in languages.items()}, "target": {}}

    def order(side: str, least: int = 0) -> Order:
        tokens = _tokens(folder, names[side], config, tags[side])
        # Marian has no PAD: transformers added it, with a logit of 0.
        order = reordered(_bytes(folder / f"{side}.spm"), tokens, least)
        return dataclasses.replace(order, never=[PAD, *order.never])

    orders = {side: order(side) for side in sizes}
    if is_shared:
        # Both sides use one embedding, so they need the same number of ids.
        most = max(len(each.rows) for each in orders.values())
        orders = {side: order(side, most) for side in sizes}
    settings = read_object(folder / "tokenizer_config.json")
    source, target = (
        _tag(str(settings.get(f"{side}_lang") or "und")) for side in ("source", "target")
    )
    targets = sorted(languages.values()) or [target]
    return Tokenizer(orders, [(source, language) for language in targets])


def _tokens(
    folder: Path, names: Sequence[str], config: Mapping[str, Any], tags: Mapping[int, str]
) -> Tokens:
    """Returns the tokens of a side, with the ids of the special ones."""
    if "<unk>" not in names:
        raise UserError(f"--from {folder}: its tokens have no <unk>. {REMEDY}")
    names_of = ("pad", "eos", "decoder_start")
    special = [config[f"{name}_token_id"] for name in names_of]
    for name, i in zip(names_of, special, strict=True):
        if i >= len(names):
            raise UserError(
                f"in config.json {name}_token_id is {i}; it must be below vocab_size = {len(names)}. "
                f"{REMEDY}"
            )
    pad, eos, start = special
    return Tokens(names, pad, eos, names.index("<unk>"), start, tags)


def _with_special_tokens(folder: Path, names: Sequence[str], size: int) -> list[str]:
    """Returns the token of each id: pieces, then languages and other special tokens, then fillers."""

    def part(file: str, key: str, shape: json_shape.Shape = _LIST) -> Any:
        value = read_object(folder / file).get(key) or ()
        if value and (problem := json_shape.problem(shape, value)):
            raise UserError(f"in {folder / file} {key} is wrong: {problem}. {REMEDY}")
        return value

    def name(entry: object) -> str:
        return str(entry.get("content", "")) if isinstance(entry, dict) else str(entry)

    settings = "tokenizer_config.json"
    added = part("tokenizer.json", "added_tokens", list_of(fields({"id": whole()})))
    decoder = part(settings, "added_tokens_decoder", mapping_of(anything()))
    by_id = {entry["id"]: name(entry) for entry in added}
    by_id |= {int(i): name(entry) for i, entry in dict(decoder).items() if i.isdecimal()}
    beyond = {i: token for i, token in by_id.items() if i >= len(names)}
    if not beyond:
        listed = (
            part("special_tokens_map.json", "additional_special_tokens")
            or part(settings, "additional_special_tokens")
            or part(settings, "extra_special_tokens")
        )
        new = [token for token in map(name, listed) if token not in names]
        beyond = dict(enumerate(new, len(names)))
    return _padded(folder, dict(enumerate(names)) | beyond, size)


def _padded(folder: Path, tokens: Mapping[int, str], size: int) -> list[str]:
    """Returns the token of each id below `size`; an id without one gets a name of its own."""
    if max(tokens) >= size:
        raise UserError(
            f"--from {folder}: the tokenizer has an id {max(tokens)}, but by config.json the model has "
            f"{size} ids. Take all files from the same model."
        )
    return [tokens.get(i, f"<filler {i}>") for i in range(size)]


def _languages(names: Sequence[str], pattern: str) -> dict[int, str]:
    """Returns the BCP 47 tags of the tokens that name languages, by id. No two are equal."""
    codes = {}
    for i, name in enumerate(names):
        if match := re.fullmatch(pattern, name):
            codes[i] = next(group for group in match.groups() if group)
    tags = {i: _tag(code) for i, code in codes.items()}
    times = collections.Counter(tags.values())
    return {i: tag if times[tag] == 1 else codes[i].replace("_", "-") for i, tag in tags.items()}


def _tag(code: str) -> str:
    """Returns the BCP 47 tag of a code; the code itself if it is none, such as mul or ROMANCE."""
    language = understand(code)
    return language.tag if language else code.replace("_", "-")


def _listed(folder: Path, file: str) -> list[str]:
    """Returns the tokens of vocab.json in the order of their ids."""
    _bytes(folder / file)
    by_name = json_shape.read(folder / file, mapping_of(whole()), REMEDY)
    names = sorted(by_name, key=by_name.__getitem__)
    if [by_name[name] for name in names] != list(range(len(names))) or not names:
        raise UserError(f"{folder / file} is damaged: its ids are not 0, 1, 2 ... {REMEDY}")
    return names


def _bytes(file: Path) -> bytes:
    if not file.is_file():
        raise UserError(f"{file} is missing, and the tokenizer needs it. {REMEDY}")
    return file.read_bytes()
