"""Tokenizers of Hugging Face: text as the ids and the text of transformers, languages, and mistakes."""

import io
import json
import shutil
from pathlib import Path

import pytest
import sentencepiece

from gshard_nmt.data.preparation.vocabulary_growth import grown_together, learn
from gshard_nmt.data.text.vocabulary import BOS, EOS, PAD, Vocabulary
from gshard_nmt.errors import UserError
from gshard_nmt.exchange import huggingface_tokenizer as tokenizer
from gshard_nmt.exchange.huggingface import read_config
from gshard_nmt.exchange.huggingface_tokenizer import (
    parsed,
    read_tokenizer,
    reordered,
    with_new_tokens,
)
from tests.exchange.test_huggingface import FAMILIES, GOLDENS, folder, imported

__all__ = ["folder"]


def vocabularies(name: str, folder: Path):
    """Returns the vocabularies of a golden, read from files as a run folder has them."""
    result = []
    for side, order in imported(name).orders.items():
        (folder / f"{side}.model").write_bytes(order.model)
        result.append(Vocabulary.load(folder / f"{side}.model"))
    return result


@pytest.mark.parametrize("name", FAMILIES)
def test_text_becomes_the_ids_of_transformers_and_ids_become_its_text(name, tmp_path):
    """Also with a piece that is no token, which keeps an id that reads as UNK."""
    model = imported(name)
    source, target = vocabularies(name, tmp_path)
    for sentence in model.sentences:
        (ids,) = source.encode_source([sentence["text"]], "en", "fr")
        assert [int(model.orders["source"].rows[i]) for i in ids] == sentence["source"]
        beam = model.ids("target", sentence["beam"][1:])
        assert target.decode([beam]) == [sentence["translation"]]


@pytest.mark.parametrize("name", ["m2m_100", "nllb_moe"])
def test_a_translation_begins_with_the_tag_of_its_language(name, tmp_path):
    model = imported(name)
    _, target = vocabularies(name, tmp_path)
    first = model.ids("target", [model.sentences[0]["greedy"][1]])
    (ids,) = target.encode(["Le fichier"])
    assert target.first("fr") == first
    assert target.decode([[*first, *ids, EOS]]) == ["Le fichier"]
    assert target.first("pl") == []


@pytest.mark.parametrize(
    ("name", "directions"),
    [
        ("m2m_100", ["de-en", "de-fr", "en-de", "en-fr", "fr-de", "fr-en"]),
        ("nllb_moe", ["de-en", "de-fr", "en-de", "en-fr", "fr-de", "fr-en"]),
        ("marian", ["en-de", "en-fr"]),
    ],
)
def test_the_directions(name, directions):
    tokenizer = read_tokenizer(GOLDENS / name, read_config(GOLDENS / name))
    assert ["-".join(pair) for pair in tokenizer.directions] == directions
    # The decoder begins with a copy of the token that transformers begins with.
    order = tokenizer.orders["target"]
    assert order.rows[BOS] == {"m2m_100": 2, "nllb_moe": 2}.get(name, order.rows[0])
    # PAD of Marian is no token of its softmax.
    assert order.never[:2] == ([PAD, BOS] if name == "marian" else [BOS, *order.never[1:2]])


def read(folder: Path):
    return read_tokenizer(folder, read_config(folder))


def write_json(file: Path, content: object) -> None:
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer_config.json", {"additional_special_tokens": ["__pt__", "__ns__"]}),
        ("tokenizer_config.json", {"extra_special_tokens": ["__pt__", {"content": "__ns__"}]}),
        ("special_tokens_map.json", {"additional_special_tokens": ["</s>", "__pt__", "__ns__"]}),
        ("tokenizer_config.json", "with ids"),
        ("tokenizer.json", "with ids"),
    ],
)
def test_every_place_of_the_languages_is_read(folder, file, content):
    """They follow the words in this order; a token that is a word already keeps its id."""
    words = len(json.loads((folder / "vocab.json").read_text()))
    (folder / "special_tokens_map.json").unlink()
    if content == "with ids":
        entries = {words: {"content": "__pt__"}, words + 1: {"content": "__ns__"}}
        added = [{"id": i, **entry} for i, entry in entries.items()]
        content = {"added_tokens_decoder": entries}
        content = {"added_tokens": added} if file == "tokenizer.json" else content
    write_json(folder / file, content)
    tokenizer = read(folder)
    assert tokenizer.directions == [("ns", "pt"), ("pt", "ns")]
    vocabulary = Vocabulary(tokenizer.orders["source"].model)
    places = [list(tokenizer.orders["source"].rows).index(words + n) for n in (0, 1)]
    assert vocabulary.pieces(places) == ["<pt>", "<ns>"]


def test_codes_of_one_language_stay_apart(folder):
    """If two codes have one BCP 47 tag, both stay as they are, with hyphens."""
    names = ["__pt__", "por_Latn", "__zle_qq__"]
    write_json(folder / "special_tokens_map.json", {"additional_special_tokens": names})
    assert read(folder).directions[:2] == [("por-Latn", "pt"), ("por-Latn", "zle-QQ")]


def test_an_id_beyond_the_model_is_refused(folder):
    config = read_config(folder)
    number = len(json.loads((folder / "vocab.json").read_text())) + len(
        json.loads((folder / "special_tokens_map.json").read_text())["additional_special_tokens"]
    )
    read_tokenizer(folder, config | {"vocab_size": number})
    message = f"the tokenizer has an id {number - 1}, but by config.json the model has {number - 1}"
    with pytest.raises(UserError, match=message):
        read_tokenizer(folder, config | {"vocab_size": number - 1})
    size = config["vocab_size"]
    message = f"pad_token_id is {size}; it must be below vocab_size = {size}"
    with pytest.raises(UserError, match=message):
        read_tokenizer(folder, config | {"pad_token_id": size})


def test_a_marian_model_of_one_direction_needs_no_languages(tmp_path):
    marian = Path(shutil.copytree(GOLDENS / "marian", tmp_path / "marian"))
    words = json.loads((marian / "vocab.json").read_text())
    write_json(
        marian / "vocab.json",
        {w.replace(">>", "x").replace("<<", "x"): i for w, i in words.items()},
    )
    assert read(marian).directions == [("en", "mul")]
    write_json(marian / "tokenizer_config.json", {"source_lang": None, "target_lang": "fr"})
    assert read(marian).directions == [("und", "fr")]
    # It has got a language.
    words = json.loads((marian / "vocab.json").read_text())
    write_json(marian / "vocab.json", words | {">>el<<": len(words)})
    grown = read_config(marian) | {"vocab_size": len(words) + 1}
    assert read_tokenizer(marian, grown).directions == [("und", "el"), ("und", "fr")]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("special_tokens_map.json", b'{"additional_special_tokens": ["__de__"]}',
         "names 1 languages in tokenizer.json"),
        ("sentencepiece.bpe.model", None, "sentencepiece.bpe.model is missing, and the tokenizer"),
        ("sentencepiece.bpe.model", b"\xff", "the SentencePiece file of the folder is damaged"),
        ("vocab.json", b'{"a": 0, "b": 2}', "vocab.json is damaged: its ids are not 0, 1, 2"),
        ("vocab.json", b'{"a": 0, "b": 1}', "its tokens have no <unk>"),
        ("vocab.json", json.dumps({f"w{n}": n for n in range(200)}).encode(),
         "the tokenizer has an id 202, but by config.json the model has"),
    ],
)  # fmt: skip
def test_a_damaged_tokenizer_is_refused(folder, file, content, message):
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content)
    with pytest.raises(UserError) as error:
        read(folder)
    assert message in str(error.value)


def as_tokenizer_json(spm: bytes) -> dict:
    """Returns what transformers 5 writes for a BPE model: its merges, earliest first."""
    names = [piece.piece for piece in parsed(spm).pieces][3:]
    pieces = {name: i for i, name in enumerate(names, start=4)}
    special = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    merges = [
        [name[:cut], name[cut:]]
        for name in pieces
        for cut in range(1, len(name))
        if {name[:cut], name[cut:]} <= pieces.keys()
    ]
    return {"model": {"type": "BPE", "vocab": special | pieces, "merges": merges}}


def test_the_tokenizer_of_nllb_may_be_a_tokenizer_json(tmp_path):
    """transformers 5 writes no SentencePiece model of NLLB."""
    folder = Path(shutil.copytree(GOLDENS / "nllb_moe", tmp_path / "model"))
    expected = read(folder)
    content = as_tokenizer_json((folder / "sentencepiece.bpe.model").read_bytes())
    write_json(folder / "tokenizer.json", content)
    (folder / "sentencepiece.bpe.model").unlink()
    tokenizer = read(folder)
    assert tokenizer.directions == expected.directions
    ours, theirs = (Vocabulary(t.orders["source"].model) for t in (tokenizer, expected))
    assert ours.keys() == theirs.keys()
    lines = [*Path(__file__).read_text().splitlines(), "Le  dossier est vide \u2603"]
    assert ours.encode(lines) == theirs.encode(lines)
    for change, message in (
        ({"type": "Unigram"}, "model.type is \"Unigram\"; it must be 'BPE'"),
        ({"vocab": {"<s>": 0}}, r"its ids of <s>, <pad>, </s>, <unk> are \[0, None, None, None\]"),
        ({"merges": [1]}, "a merge or a normalizer is damaged"),
    ):
        write_json(folder / "tokenizer.json", {"model": content["model"] | change})
        with pytest.raises(
            UserError, match=f"bpe.model is missing, and tokenizer.json .*{message}"
        ):
            read(folder)


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
    *pieces, missing = [old.id_to_piece(i) for i in range(3, old.get_piece_size())]
    names = ["</s>", "<unk>", *pieces, "__xx__", "dad bad", "<pad>"]
    pad = len(names) - 1
    tags = {names.index("__xx__"): "<xx>"}
    order = reordered(old.serialized_model_proto(), names, [pad, 0, 1, pad], tags, size=40)
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


@pytest.mark.parametrize(
    ("name", "tags", "token"),
    [
        ("m2m_100", {"source": "<el>", "target": "<begin:el>"}, "__el__"),
        ("nllb_moe", {"source": "<myv>", "target": "<begin:myv>"}, "myv_Cyrl"),
        ("marian", {"source": "<2el>", "target": "<2el>"}, ">>el<<"),
    ],
)
def test_new_tokens_are_in_the_files_that_are_written(name, tags, token, tmp_path):
    model, text = imported(name), ["λόγος", "λόγου δύο"]
    olds = dict(zip(("source", "target"), vocabularies(name, tmp_path), strict=True))
    pieces = learn(olds["target"], text * 20, set(), 10) if name == "marian" else {}
    news = grown_together(olds, {"source": {}, "target": pieces}, tags)
    folder = Path(shutil.copytree(GOLDENS / name, tmp_path / "written"))
    grown = with_new_tokens(folder, model.layout.config, news)
    for file, content in {**grown.files, "config.json": json.dumps(grown.config).encode()}.items():
        (folder / file).write_bytes(content)
    tokenizer = read_tokenizer(folder, read_config(folder))
    assert ("en", tags["source"].strip("<>2")) in tokenizer.directions
    # Text has the same tokens of the folder, old ones and new ones.
    rows = dict(enumerate(grown.orders["target"].rows.tolist()))
    for side, order in tokenizer.orders.items():
        (tmp_path / "again.model").write_bytes(order.model)
        again = Vocabulary.load(tmp_path / "again.model")
        lines = [*text, *(sentence["text"] for sentence in model.sentences)]
        for ours, theirs in zip(news[side].encode(lines), again.encode(lines), strict=True):
            assert [rows[i] for i in ours] == [int(order.rows[i]) for i in theirs]
        if side == "source" or name != "marian":
            assert rows[news[side].tag(tags[side])] == int(order.rows[again.tag(tags[side])])
    assert any(token.encode() in content for content in grown.files.values())
    if pieces:
        assert news["target"].decode(news["target"].encode(text)) == text


def test_new_tokens_do_not_go_into_lists_that_are_not_there(tmp_path):
    write_json(tmp_path / "tokenizer_config.json", {"additional_special_tokens": None})
    write_json(tmp_path / "tokenizer.json", {"version": "1.0"})
    written = tokenizer._fairseq_files(tmp_path, {"__el__": 9})
    assert "tokenizer_config.json" not in written
    assert json.loads(written["tokenizer.json"])["added_tokens"][0]["content"] == "__el__"


def test_a_language_without_a_code_that_people_added_is_offered(tmp_path):
    folder = Path(shutil.copytree(GOLDENS / "nllb_moe", tmp_path / "model"))
    special = json.loads((folder / "special_tokens_map.json").read_text())
    special["additional_special_tokens"].append("code_1")
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    config = read_config(folder)
    tokenizer = read_tokenizer(folder, config | {"vocab_size": config["vocab_size"] + 1})
    assert ("code-1", "fr") in tokenizer.directions
