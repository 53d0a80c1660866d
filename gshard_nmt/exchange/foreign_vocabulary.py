"""The vocabulary of a Hugging Face folder as SentencePiece models with our special ids.

transformers keeps its own list of tokens beside a SentencePiece model. We write both as one SentencePiece
model: the pieces keep their scores, so text is split as before, but they get other ids.

    new id   0     1     2     3                4, 5, ...
    token    PAD   EOS   UNK   what begins a    all tokens but PAD, EOS and UNK, in their
                               translation      old order, then pieces that are no tokens

The rows of the embeddings move with the ids (`Order.rows`). A piece that is no token reads as UNK, as in
transformers, but keeps its id. Token 3 stands twice: a decoder can read it, but must not write it.
"""

import base64
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import sentencepiece

from gshard_nmt.data.text.vocabulary import SPECIALS, UNK
from gshard_nmt.errors import UserError

NEVER = -100.0
"""The bias of the logit of an id that is never written. In float32 it adds nothing to the softmax, and it
is small enough for a loss with label smoothing."""

_START = "<start>"
_UNKNOWN_PENALTY = 10.0
"""SentencePiece gives an unknown character a score that is lower than all others by this number."""


class Tokens(NamedTuple):
    """The tokens of a folder: the name of each old id, and those of the special ones.

    The decoder reads `start` first. `tags` are the symbols that replace some names, such as `<fr>`.
    """

    names: Sequence[str]
    pad: int
    eos: int
    unk: int
    start: int
    tags: Mapping[int, str]


@dataclasses.dataclass(frozen=True)
class Order:
    """A SentencePiece model, and the rows of its embedding: int32[V], the old id of each new id.

    `never` are the new ids that are no tokens of the decoder. Their probability is 0.
    """

    model: bytes
    rows: np.ndarray
    never: Sequence[int]


def reordered(spm: bytes, tokens: Tokens, size: int = 0) -> Order:
    """Returns a vocabulary that splits text as a SentencePiece model, with new ids (see the table above).

    It has at least `size` ids. Ids without a piece read as UNK.
    """
    model = _parsed(spm)
    known = {p.piece: p for p in model.pieces if p.type not in (p.CONTROL, p.UNKNOWN)}
    lowest = min((p.score for p in known.values() if p.type == p.NORMAL), default=0.0)
    is_bpe = model.trainer_spec.model_type == model.trainer_spec.BPE
    first = [tokens.pad, tokens.eos, tokens.unk, tokens.start]
    rows, pieces = first + [i for i in range(len(tokens.names)) if i not in first[:3]], []
    for new, old in enumerate(rows):
        name = _START if new == SPECIALS - 1 else tokens.tags.get(old, tokens.names[old])
        if new >= SPECIALS and old not in tokens.tags and name in known:
            pieces.append(known.pop(name))
        else:
            pieces.append(_new_piece(model, name, new, lowest, is_bpe))
    pieces += [piece for piece in known.values() if piece.piece not in tokens.tags.values()]
    pieces += [
        _new_piece(model, f"<unused{n}>", SPECIALS, lowest, is_bpe)
        for n in range(len(pieces), size)
    ]
    never = [SPECIALS - 1, *range(len(rows), len(pieces))]
    rows = [*rows, *[tokens.unk] * (len(pieces) - len(rows))]
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
        piece.type, piece.score = piece.NORMAL, lowest - _UNKNOWN_PENALTY
    elif new >= SPECIALS and not is_bpe and not re.fullmatch("<[^<>]+>", name):
        piece.type = piece.UNUSED
    return piece


def of_bpe(tokenizer: Mapping[str, Any], first: int) -> bytes:
    """Returns a SentencePiece model that splits text as the BPE model of a tokenizer.json.

    SentencePiece merges the neighbours whose piece has the highest score, and tokenizer.json those with
    the earliest merge. `first` is the first id of a piece of text. The model has 3 special pieces before
    it, as fairseq's.
    """
    from sentencepiece import sentencepiece_model_pb2

    bpe = tokenizer["model"]
    names = sorted(bpe["vocab"], key=bpe["vocab"].__getitem__)[first:]
    ranks: dict[str, int] = {}
    for merge in bpe["merges"]:
        # Older files have "a b" for ["a", "b"].
        ranks.setdefault("".join(merge.split(" ") if isinstance(merge, str) else merge), len(ranks))
    model = sentencepiece_model_pb2.ModelProto()
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


def piece_names(spm: bytes) -> list[str]:
    return [piece.piece for piece in _parsed(spm).pieces]


def _parsed(spm: bytes) -> Any:
    from sentencepiece import sentencepiece_model_pb2

    try:
        # SentencePiece takes an empty text as no model at all.
        sentencepiece.SentencePieceProcessor(model_proto=spm or b"empty")
    except RuntimeError as error:
        raise UserError(
            f"the SentencePiece file of the folder is damaged: {error}. Copy it again from where the "
            "model was published."
        ) from None
    return sentencepiece_model_pb2.ModelProto.FromString(spm)
