"""Vocabularies in our order of ids: the worked example of the module, for both algorithms."""

import io

import pytest
import sentencepiece

from gshard_nmt.data.text.vocabulary import Vocabulary
from gshard_nmt.errors import UserError
from gshard_nmt.exchange.foreign_vocabulary import Tokens, piece_names, reordered


def trained(kind: str) -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a bad cab", "a dab", "bad dad"]),
        model_writer=model,
        vocab_size=16,
        hard_vocab_limit=False,
        model_type=kind,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_text_is_split_as_before_into_other_ids(kind, tmp_path):
    """The tokens are EOS, UNK, all pieces but the last, a tag, a word that is no piece, and PAD."""
    old = trained(kind)
    *pieces, missing = piece_names(old.serialized_model_proto())[3:]
    names = ["</s>", "<unk>", *pieces, "__xx__", "dad bad", "<pad>"]
    pad = len(names) - 1
    tags = {names.index("__xx__"): "<xx>"}
    tokens = Tokens(names, pad=pad, eos=0, unk=1, start=pad, tags=tags)
    order = reordered(old.serialized_model_proto(), tokens, size=40)
    (tmp_path / "source.model").write_bytes(order.model)
    new = Vocabulary.load(tmp_path / "source.model")
    assert new.size == len(order.rows) == 40
    assert order.rows[:6].tolist() == [pad, 0, 1, pad, 2, 3]
    # The piece that is no token, and the ids without a piece, read as UNK.
    assert order.rows[len(names) + 1 :].tolist() == [1] * (40 - len(names) - 1)
    assert list(order.never) == [3, *range(len(names) + 1, 40)]
    for text in ("bad dad cab", "dad bad", missing.replace("▁", " "), "__xx__ <xx>"):
        (ids,) = new.encode([text])
        assert new.pieces(ids) == [
            "<unk>" if old.is_unknown(i) else piece
            for i, piece in zip(old.encode(text), old.encode(text, out_type=str), strict=True)
        ]
    assert new.tag("<xx>") == 4 + len(names) - 5
    word = 4 + len(names) - 4
    assert new.decode([[word]]) == ["dad bad" if kind == "unigram" else ""]
    assert new.decode([[2]]) == [""]


def test_a_file_that_is_no_model_is_refused():
    with pytest.raises(UserError, match="SentencePiece file of the folder is damaged"):
        reordered(b"\xff\xff", Tokens(["a"], 0, 0, 0, 0, {}))
