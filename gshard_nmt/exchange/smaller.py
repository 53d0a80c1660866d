"""A smaller model for some languages: rows of the vocabulary and experts that these do not use are cut.

A BPE vocabulary splits a word by merges, so the pieces that a merge passes through stay too. Then all
text that the cut was made with is split as before, and its tokens have the same embeddings.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from gshard_nmt.data.text.vocabulary import (
    SPACE,
    SPECIALS,
    Vocabulary,
    first_tag,
    source_tag,
    target_tag,
)
from gshard_nmt.decoding.expert_use import ExpertUse
from gshard_nmt.model.config import Model
from gshard_nmt.model.figures import moe_layer_name
from gshard_nmt.model.parameters import Parameter


def used_ids(vocabulary: Vocabulary, texts: Iterable[Sequence[str]]) -> set[int]:
    """Returns the ids that occur in blocks of lines, with the ids that their merges pass through.

    The ids of single characters in the text are among them, so that new words have few bytes.
    """
    used: set[int] = set()
    # Spelled in bytes, SentencePiece's space would not become a space again.
    characters = {SPACE}
    for lines in texts:
        for line, ids in zip(lines, vocabulary.encode(lines), strict=True):
            used.update(ids)
            characters.update(line)
    scores = {piece: score for piece, (_, score) in vocabulary.subwords.items()}
    pieces = [piece for piece in vocabulary.pieces(sorted(used)) if piece in scores]
    # A vocabulary may replace characters before it splits a text.
    characters.update(itertools.chain.from_iterable(pieces))
    needed = {character for character in characters if character in scores}
    if vocabulary.algorithm == "bpe":
        for piece in pieces:
            needed |= merges(piece, scores)
    return used | {vocabulary.subwords[piece][0] for piece in needed}


def merges(piece: str, scores: Mapping[str, float]) -> set[str]:
    """Returns the pieces that BPE makes on its way to a piece, with the piece itself.

    Each step merges the two neighbours whose piece has the highest score; of equal ones the first.
    """
    symbols = list(piece)
    merged: set[str] = set()
    while True:
        joined = [a + b for a, b in itertools.pairwise(symbols)]
        known = [i for i, text in enumerate(joined) if text in scores]
        if not known:
            return merged
        best = max(known, key=lambda i: (scores[joined[i]], -i))
        symbols[best : best + 2] = [joined[best]]
        merged.add(joined[best])


def kept_ids(
    vocabulary: Vocabulary, used: Collection[int], dropped_languages: Collection[str]
) -> np.ndarray:
    """Returns the ids that stay, int64[V'], in rising order.

    Special ids, bytes and all tags stay, but those of languages that are dropped.
    """
    tags = {
        tag(language)
        for language in dropped_languages
        for tag in (source_tag, target_tag, first_tag)
    }
    kept = [
        i
        for i, (kind, piece) in enumerate(vocabulary.keys())
        if i < SPECIALS or i in used or kind == "byte" or (kind == "control" and piece not in tags)
    ]
    return np.array(kept)


def cut_vocabulary(vocabulary: Vocabulary, kept: np.ndarray) -> bytes:
    """Returns the content of a SentencePiece model that has only some of the ids, in their order."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(vocabulary.content)
    pieces = [model.pieces[int(i)] for i in kept]
    copies = [type(piece).FromString(piece.SerializeToString()) for piece in pieces]
    names = {piece.piece for piece in copies}
    del model.pieces[:]
    model.pieces.extend(copies)
    symbols = [symbol for symbol in model.trainer_spec.control_symbols if symbol in names]
    del model.trainer_spec.control_symbols[:]
    model.trainer_spec.control_symbols.extend(symbols)
    model.trainer_spec.vocab_size = len(copies)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def kept_experts(use: ExpertUse, share: float) -> tuple[np.ndarray, float]:
    """Returns the experts of each layer that stay, int64[layers, E'], in rising order.

    All layers keep as many. E' is the smallest number with which each layer keeps `share` of the
    weight of its router's choices. An expert that many tokens choose second, with small weights,
    changes less than its number of choices says. The second result is the least part of the weight that
    a layer keeps.
    """
    # Shape: [layers, directions, A, E] -> [layers, E]
    weight = use.weight.sum(axis=1)
    order = np.argsort(-weight, axis=1, kind="stable")
    sums = np.cumsum(np.take_along_axis(weight, order, axis=1), axis=1)
    missing = sums < share * sums[:, -1:]
    # A layer needs two experts, one for each choice.
    count = max(2, int(missing.sum(axis=1).max()) + 1)
    experts = np.sort(order[:, :count], axis=1)
    kept = np.take_along_axis(weight, experts, axis=1).sum(axis=1)
    return experts, float((kept / weight.sum(axis=1)).min())


def cut_weights(
    model: Model,
    declared: Mapping[str, Parameter],
    weights: Mapping[str, np.ndarray],
    ids: Mapping[str, np.ndarray],
    experts: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Returns the weights of a smaller model, made of those of the whole model.

    Of "source" and "target" the `ids` int64[V'] stay, and of each MoE layer, such as "decoder_3", the
    `experts` int64[E']; all if it is empty.
    """
    smaller = {}
    for name, array in weights.items():
        values, letters = np.asarray(array), declared[name].letters
        if name in ("source_embedding", "target_embedding", "output_bias"):
            values = values[ids["source" if name == "source_embedding" else "target"]]
        # The gate is [R, M, E], and the letter of its last dimension is not E.
        is_gate = name.endswith("/gate")
        if experts and "/moe_" in name and (is_gate or "E" in letters):
            axis = 1 if is_gate else letters.index("E") - 1
            stack = name.split("/")[0]
            kept = [experts[moe_layer_name(model, stack, r)] for r in range(len(values))]
            values = np.stack([np.take(*pair, axis) for pair in zip(values, kept, strict=True)])
        smaller[name] = values
    return smaller
