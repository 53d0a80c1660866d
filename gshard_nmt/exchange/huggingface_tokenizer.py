"""The tokenizer files of Hugging Face folders: tokens, languages, and SentencePiece models with our ids.

M2M-100   vocab.json lists the tokens, and the languages `__fr__` follow. A source begins with the token
          of its own language, a translation with that of its language.
NLLB      the token of a piece is one id after the piece of sentencepiece.bpe.model, because `<pad>` comes
          before EOS; tokenizer.json may take its place. The languages `fra_Latn` follow. Sources and
          translations are like those of M2M-100.
Marian    vocab.json lists the tokens of both sides, and each side has a SentencePiece model. A source
          begins with the token `>>fra<<` of the language to translate into, if there are several.

transformers keeps its own list of tokens beside a SentencePiece model. We write both as one SentencePiece
model: the pieces keep their scores, so text is split as before, but they get other ids.

    new id   0     1     2     3                4, 5, ...
    token    PAD   EOS   UNK   what begins a    all tokens but PAD, EOS and UNK, in their
                               translation      old order, then pieces that are no tokens

The rows of the embeddings move with the ids (`Order.rows`). A piece that is no token reads as UNK, as in
transformers, but keeps its id. Token 3 stands twice: a decoder can read it, but must not write it.
"""

import base64
import collections
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sentencepiece

from gshard_nmt import json_shape
from gshard_nmt.data.language_codes import script_of, understand
from gshard_nmt.data.text.vocabulary import (
    PAD,
    SPECIALS,
    UNK,
    UNKNOWN_PENALTY,
    Vocabulary,
    first_tag,
    model_proto,
    source_tag,
    target_tag,
    vocabulary_of,
)
from gshard_nmt.errors import UserError
from gshard_nmt.exchange.huggingface import REMEDY, Order, read_object
from gshard_nmt.json_shape import anything, fields, list_of, mapping_of, text, whole

TOKENIZER_FILES = (
    *("sentencepiece.bpe.model", "vocab.json", "source.spm", "target.spm", "tokenizer.json"),
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
)
"""The files of the tokenizer of a Hugging Face folder. No family has all of them."""
_SPECIAL_PIECES = 3
"""The special pieces of fairseq's SentencePiece models: <unk>, <s>, </s>."""
_FAIRSEQ_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
_FAIRSEQ_LANGUAGE = "__([A-Za-z_]+)__|([a-z]{3}_[A-Z][a-z]{3})"
_MARIAN_LANGUAGE = ">>([A-Za-z0-9_-]+)<<"
_ADDED_LANGUAGE = "(?!madeupword)([A-Za-z][A-Za-z0-9_-]*)"
"""A token of a language without a code, such as code_1, that people have added to a model."""
_SPECIAL_TOKENS = fields(
    {},
    {
        **dict.fromkeys(("additional_special_tokens", "extra_special_tokens"), list_of(anything())),
        "added_tokens_decoder": mapping_of(anything()),
    },
)
_BPE = {"type": text("BPE", "'BPE'"), "vocab": mapping_of(whole()), "merges": list_of(anything())}
_TOKENIZER_JSON = fields({"model": fields(_BPE)})
"""The part of tokenizer.json that can take the place of a SentencePiece model."""


class Tokenizer(NamedTuple):
    """The vocabularies of "source" and "target", and the directions as BCP 47 tags."""

    orders: Mapping[str, Order]
    directions: Sequence[tuple[str, str]]


def read_tokenizer(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """Reads the tokenizer of a folder with this config.json; raises UserError if they do not match."""
    return _marian(folder, config) if config["model_type"] == "marian" else _fairseq(folder, config)


def _fairseq(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    spm = _fairseq_pieces(folder)
    if (folder / "vocab.json").is_file():
        names = _listed(folder)
    else:
        own = [piece.piece for piece in parsed(spm).pieces]
        names = [*_FAIRSEQ_TOKENS, *own[_SPECIAL_PIECES:]]
    pieces = len(names)
    names = _with_special_tokens(folder, names, config["vocab_size"])
    languages = _languages(names, _FAIRSEQ_LANGUAGE, pieces)
    if len(languages) < 2:
        raise UserError(
            f"--from {folder} names {len(languages)} languages in tokenizer.json, tokenizer_config.json "
            "and special_tokens_map.json; a model of this kind has at least two. Copy these files too."
        )
    special, orders = _special_ids(folder, names, config), {}
    for side, tag in (("source", source_tag), ("target", first_tag)):
        tags = {i: tag(language) for i, language in languages.items()}
        orders[side] = reordered(spm, names, special, tags)
    known = sorted(languages.values())
    return Tokenizer(orders, [(a, b) for a in known for b in known if a != b])


def _fairseq_pieces(folder: Path) -> bytes:
    """Returns the SentencePiece model; transformers 5 writes the one of NLLB as tokenizer.json."""
    file = folder / "sentencepiece.bpe.model"
    content = {} if (folder / "vocab.json").is_file() else read_object(folder / "tokenizer.json")
    if file.is_file() or not content:
        return _bytes(file)
    if not (problem := json_shape.problem(_TOKENIZER_JSON, content)):
        ids = [content["model"]["vocab"].get(name) for name in _FAIRSEQ_TOKENS]
        problem = f"its ids of {', '.join(_FAIRSEQ_TOKENS)} are {ids}, not 0 to 3"
        if ids == [0, 1, 2, 3]:
            try:
                return _of_bpe(content)
            except (AttributeError, TypeError, ValueError) as error:
                problem = f"a merge or a normalizer is damaged ({error})"
    raise UserError(
        f"{file} is missing, and tokenizer.json cannot take its place: {problem}. Copy "
        f"{file.name} from where the model was published."
    )


def _of_bpe(tokenizer: Mapping[str, Any]) -> bytes:
    """Returns a SentencePiece model that splits text as the BPE model of a tokenizer.json.

    SentencePiece merges the neighbours whose piece has the highest score, and tokenizer.json those with
    the earliest merge. Three special pieces come first, as in fairseq's models.
    """
    bpe = tokenizer["model"]
    names = sorted(bpe["vocab"], key=bpe["vocab"].__getitem__)[len(_FAIRSEQ_TOKENS) :]
    ranks: dict[str, int] = {}
    for merge in bpe["merges"]:
        # Older files have "a b" for ["a", "b"].
        ranks.setdefault("".join(merge.split(" ") if isinstance(merge, str) else merge), len(ranks))
    model = model_proto(b"")
    model.trainer_spec.model_type = model.trainer_spec.BPE
    model.pieces.add(piece="<unk>", type=model.SentencePiece.UNKNOWN)
    for name in ("<s>", "</s>"):
        model.pieces.add(piece=name, type=model.SentencePiece.CONTROL)
    for i, name in enumerate(names):
        model.pieces.add(piece=name, score=-float(ranks.get(name, len(ranks) + i)))
    normalizer = tokenizer.get("normalizer") or {}
    for step in (normalizer, *normalizer.get("normalizers", ())):
        if charsmap := step.get("precompiled_charsmap"):
            model.normalizer_spec.precompiled_charsmap = base64.b64decode(charsmap)
    return bytes(model.SerializeToString(deterministic=True))


def _marian(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    names = _with_special_tokens(folder, _listed(folder), config["vocab_size"])
    languages = _languages(names, _MARIAN_LANGUAGE, len(names))
    tags = {"source": {i: target_tag(tag) for i, tag in languages.items()}, "target": {}}
    special, least, orders = _special_ids(folder, names, config), 0, {}
    # Both sides use one embedding, so they need the same number of ids.
    for side in ("source", "target", "source", "target"):
        order = reordered(_bytes(folder / f"{side}.spm"), names, special, tags[side], least)
        least = max(least, len(order.rows))
        # Marian has no PAD: transformers added it, with a logit of 0.
        orders[side] = order._replace(never=[PAD, *order.never])
    settings = read_object(folder / "tokenizer_config.json")
    source, target = (_tag(str(settings.get(f"{s}_lang") or "und")) for s in ("source", "target"))
    targets = set(languages.values())
    # PAD has the last id. What comes later was added to a model of one language, which has no token.
    if all(i > config["pad_token_id"] for i in languages):
        targets.add(target)
    return Tokenizer(orders, [(source, language) for language in sorted(targets)])


def _special_ids(folder: Path, names: Sequence[str], config: Mapping[str, Any]) -> list[int]:
    """Returns the ids of PAD, EOS, UNK and of the token that the decoder reads first."""
    if "<unk>" not in names:
        raise UserError(f"--from {folder}: its tokens have no <unk>. {REMEDY}")
    ids = {name: config[f"{name}_token_id"] for name in ("pad", "eos", "decoder_start")}
    for name, i in ids.items():
        if i >= len(names):
            raise UserError(
                f"in config.json {name}_token_id is {i}; it must be below vocab_size = {len(names)}. "
                f"{REMEDY}"
            )
    return [ids["pad"], ids["eos"], names.index("<unk>"), ids["decoder_start"]]


def _with_special_tokens(folder: Path, names: Sequence[str], size: int) -> list[str]:
    """Returns the token of each id: pieces, then languages and other special tokens, then fillers."""
    settings: dict[str, Any] = {}
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        content = {key: value for key, value in read_object(folder / file).items() if value}
        if problem := json_shape.problem(_SPECIAL_TOKENS, content):
            raise UserError(f"{folder / file} is damaged: {problem}. {REMEDY}")
        settings |= content

    def name(entry: object) -> str:
        return str(entry.get("content", "")) if isinstance(entry, dict) else str(entry)

    path = folder / "tokenizer.json"
    added = read_object(path).get("added_tokens") or []
    if problem := json_shape.problem(list_of(fields({"id": whole()})), added):
        raise UserError(f"{path} is damaged: in added_tokens, {problem}. {REMEDY}")
    by_id = {entry["id"]: name(entry) for entry in added}
    decoder = settings.get("added_tokens_decoder", {}).items()
    by_id |= {int(i): name(entry) for i, entry in decoder if i.isdecimal()}
    path = folder / "added_tokens.json"
    if problem := json_shape.problem(mapping_of(whole()), tokens := read_object(path)):
        raise UserError(f"{path} is damaged: {problem}. {REMEDY}")
    by_id |= {i: token for token, i in tokens.items()}
    # What is listed without an id comes after the pieces.
    known = {*names, *by_id.values()}
    keys = ("additional_special_tokens", "extra_special_tokens")
    listed = next((settings[key] for key in keys if key in settings), ())
    new = dict(enumerate((t for t in map(name, listed) if t not in known), len(names)))
    beyond = {i: token for i, token in by_id.items() if i >= len(names)}
    token_of = dict(enumerate(names)) | new | beyond
    if max(token_of) >= size:
        raise UserError(
            f"--from {folder}: the tokenizer has an id {max(token_of)}, but by config.json the model has "
            f"{size} ids. Take all files from the same model."
        )
    return [token_of.get(i, f"<filler {i}>") for i in range(size)]


def _languages(names: Sequence[str], pattern: str, pieces: int) -> dict[int, str]:
    """Returns the BCP 47 tags of the tokens that name languages, by id. No two are equal.

    The first tokens are `pieces` of text.
    """
    codes = {}
    for i, name in enumerate(names):
        match = re.fullmatch(pattern, name)
        if not match and i >= pieces:
            match = re.fullmatch(_ADDED_LANGUAGE, name)
        if match:
            codes[i] = next(group for group in match.groups() if group)
    tags = {i: _tag(code) for i, code in codes.items()}
    times = collections.Counter(tags.values())
    return {i: tag if times[tag] == 1 else codes[i].replace("_", "-") for i, tag in tags.items()}


def _tag(code: str) -> str:
    """Returns the BCP 47 tag of a code; the code itself if it is none, such as mul or ROMANCE."""
    language = understand(code)
    return language.tag if language else code.replace("_", "-")


def _listed(folder: Path) -> list[str]:
    """Returns the tokens of vocab.json in the order of their ids."""
    file = folder / "vocab.json"
    _bytes(file)
    by_name = json_shape.read(file, mapping_of(whole()), REMEDY)
    names = sorted(by_name, key=by_name.__getitem__)
    if [by_name[name] for name in names] != list(range(len(names))) or not names:
        raise UserError(f"{file} is damaged: its ids are not 0, 1, 2 ... {REMEDY}")
    return names


def _bytes(file: Path) -> bytes:
    if not file.is_file():
        raise UserError(
            f"{file} is missing, and the tokenizer needs it. Copy it from where the model was published; "
            "save_pretrained of transformers may not write it."
        )
    return file.read_bytes()


_START = "<start>"


def reordered(
    spm: bytes, names: Sequence[str], special: Sequence[int], tags: Mapping[int, str], size: int = 0
) -> Order:
    """Returns a vocabulary that splits text as a SentencePiece model, with new ids (see the table above).

    By old ids, `names` are their names, `special` are those of PAD, EOS, UNK and of what begins a
    translation, and `tags` the symbols that replace some names, such as `<fr>`. There are at least `size`
    new ids; those without a piece read as UNK.
    """
    model = parsed(spm)
    known = {p.piece: p for p in model.pieces if p.type not in (p.CONTROL, p.UNKNOWN)}
    lowest = min((p.score for p in known.values() if p.type == p.NORMAL), default=0.0)
    is_bpe = model.trainer_spec.model_type == model.trainer_spec.BPE
    rows, pieces = [*special, *(i for i in range(len(names)) if i not in special[:3])], []
    for new, old in enumerate(rows):
        name = _START if new == SPECIALS - 1 else tags.get(old, names[old])
        if new >= SPECIALS and old not in tags and name in known:
            pieces.append(known.pop(name))
        else:
            pieces.append(_new_piece(model, name, new, lowest, is_bpe))
    pieces += [piece for piece in known.values() if piece.piece not in tags.values()]
    unused = (f"<unused{n}>" for n in range(len(pieces), size))
    pieces += [_new_piece(model, name, SPECIALS, lowest, is_bpe) for name in unused]
    never = [SPECIALS - 1, *range(len(rows), len(pieces))]
    rows = [*rows, *[special[UNK]] * (len(pieces) - len(rows))]
    spec = model.trainer_spec
    for kind, new in (("pad", 0), ("eos", 1), ("unk", 2), ("bos", 3)):
        setattr(spec, f"{kind}_id", new)
        setattr(spec, f"{kind}_piece", pieces[new].piece)
    spec.vocab_size, spec.unk_surface = len(pieces), ""
    kept = [type(piece).FromString(piece.SerializeToString()) for piece in pieces]
    del model.pieces[:]
    model.pieces.extend(kept)
    return Order(model.SerializeToString(deterministic=True), np.array(rows, np.int32), never)


def _new_piece(model: Any, name: str, new: int, lowest: float, is_bpe: bool) -> Any:
    """Returns the piece of a token that is none of the SentencePiece model.

    transformers looks up unknown characters among the tokens. So a token of one character gets the score
    of an unknown character, which is 10 below the lowest. No text is split into longer tokens. In a
    unigram model they are UNUSED, and still have their text. BPE would first merge characters to an
    unused piece and then take it apart, so there they are control symbols, whose text is lost.
    """
    piece = model.SentencePiece(piece=name, score=0.0)
    piece.type = piece.CONTROL
    if new == UNK:
        piece.type = piece.UNKNOWN
    elif new >= SPECIALS and len(name) == 1:
        piece.type, piece.score = piece.NORMAL, lowest - UNKNOWN_PENALTY
    elif new >= SPECIALS and not is_bpe and not re.fullmatch("<[^<>]+>", name):
        piece.type = piece.UNUSED
    return piece


def parsed(spm: bytes) -> Any:
    """Returns a SentencePiece model as a protocol message; raises UserError if it is damaged."""
    try:
        # SentencePiece takes an empty text as no model at all.
        sentencepiece.SentencePieceProcessor(model_proto=spm or b"empty")
    except RuntimeError as error:
        raise UserError(
            f"the SentencePiece file of the folder is damaged: {error}. {REMEDY}"
        ) from None
    return model_proto(spm)


class Grown(NamedTuple):
    """A model of a folder that has got new tokens here."""

    config: dict[str, Any]  # config.json
    orders: dict[str, Order]
    files: dict[str, bytes]  # the files of the tokenizer that change, by name


def with_new_tokens(
    folder: Path, config: Mapping[str, Any], vocabularies: Mapping[str, Vocabulary]
) -> Grown:
    """Returns a model with the ids that its vocabularies have after those of the folder.

    All old ids stay. New pieces of Marian come into vocab.json and the SentencePiece models; a new
    language of M2M-100 or NLLB becomes a special token, as `add_special_tokens` of transformers does it.
    """
    orders, size = read_tokenizer(folder, config).orders, config["vocab_size"]
    old_size = len(orders["target"].rows)
    new = [vocabularies[side].keys()[old_size:] for side in ("source", "target")]
    is_marian = config["model_type"] == "marian"
    names = [_name(is_marian, pair) for pair in zip(*new, strict=True)]
    ids = {name: size + i for i, name in enumerate(names)}
    rows = np.arange(size, size + len(names), dtype=np.int32)
    grown = {s: o._replace(rows=np.append(o.rows, rows)) for s, o in orders.items()}
    sizes = dict.fromkeys({"vocab_size", "decoder_vocab_size"} & config.keys(), size + len(names))
    if is_marian:
        changed = _marian_files(folder, orders, vocabularies, ids)
    else:
        changed = _fairseq_files(folder, {n: i for n, i in ids.items() if not n.startswith("<")})
    return Grown({**config, **sizes}, grown, changed if names else {})


def _name(is_marian: bool, keys: Sequence[tuple[str, str]]) -> str:
    """Returns the name in a folder of a new id, of its kinds and pieces in source and target."""
    (kind, source), (_, target) = keys
    if kind != "control" or source.startswith("<spare"):
        return source
    if source.startswith("<unused:"):
        return target
    code = source.strip("<>").removeprefix("2" if is_marian else "").replace("-", "_")
    if is_marian:
        return f">>{code}<<"
    is_of_nllb = re.fullmatch("[a-z]{3}", code)
    return f"{code}_{script_of(code)}" if is_of_nllb else f"__{code}__"


def _marian_files(
    folder: Path,
    orders: Mapping[str, Order],
    vocabularies: Mapping[str, Vocabulary],
    ids: Mapping[str, int],
) -> dict[str, bytes]:
    listed = {name: i for i, name in enumerate(_listed(folder))}
    changed = {"vocab.json": _json({**listed, **ids})}
    for side, vocabulary in vocabularies.items():
        file = folder / f"{side}.spm"
        model = parsed(_bytes(file))
        known = vocabulary_of(orders[side].model).subwords
        for piece, (_, score) in vocabulary.subwords.items():
            if piece not in known:
                model.pieces.add(piece=piece, score=score, type=model.SentencePiece.NORMAL)
        model.trainer_spec.vocab_size = len(model.pieces)
        changed[file.name] = model.SerializeToString(deterministic=True)
    return changed


def _fairseq_files(folder: Path, ids: Mapping[str, int]) -> dict[str, bytes]:
    """Returns the files that list special tokens, with more of them."""
    changed = {"added_tokens.json": {**read_object(folder / "added_tokens.json"), **ids}}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    entries = {i: {"content": name, **flags, "special": True} for name, i in ids.items()}
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        content = read_object(folder / file)
        for key in ("additional_special_tokens", "extra_special_tokens"):
            if isinstance(content.get(key), list):  # it may be null, or an object with names
                changed[file] = content
                content[key] = [*content[key], *ids]
        if isinstance(content.get("added_tokens_decoder"), dict):
            changed[file] = content
            content["added_tokens_decoder"] |= {str(i): entry for i, entry in entries.items()}
    if content := read_object(folder / "tokenizer.json"):
        added = [{"id": i, **entry} for i, entry in entries.items()]
        content["added_tokens"] = [*(content.get("added_tokens") or ()), *added]
        changed["tokenizer.json"] = content
    return {name: _json(content) for name, content in changed.items()}


def _json(content: object) -> bytes:
    return (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode()
