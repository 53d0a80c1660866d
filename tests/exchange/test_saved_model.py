"""SavedModels batch as gshard-decode does. Most searches here copy, and the score says in which batch."""

import numpy as np
import pytest

from gshard_nmt.data.text.vocabulary import (
    LINE_BREAKS,
    Vocabulary,
    VocabularySpec,
    source_tag,
    target_tag,
    train_vocabulary,
)
from gshard_nmt.decoding.source_lines import copied, visible
from gshard_nmt.exchange import saved_model
from gshard_nmt.exchange.saved_model import FEW, TrainedModel
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.mesh import Mesh
from tests.model.examples import LAYERS, WIDTHS

ROWS, SHORT, LONG = 6, 6, 12
CONFIG = load_config("demo").replace(
    mesh=Mesh(),
    model={**LAYERS, **WIDTHS, "expert_hidden_dim": 16, "experts": 4},
    decode={
        "rows": ROWS,
        "source_lengths": (LONG, SHORT),
        "beam": 2,
        "length_ratio": 1.0,
        "length_margin": 3,
    },
)
DIRECTIONS = [("fr", "en"), ("de", "en"), ("de", "fr")]
TAGS = (target_tag("en"), target_tag("fr"), source_tag("de"))


WORDS = {
    "source": ("red", "green", "tree", "house", "is"),
    "target": ("un", "deux", "trois", "six", "dix"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The contents of two vocabularies. They have bytes and tags at the same ids, and other words."""
    folder = tmp_path_factory.mktemp("vocabularies")
    for side, words in WORDS.items():
        text = [f"{word} {other}" for word in words for other in words] * 9
        spec = VocabularySpec(size=300, tags=TAGS, normalization="identity")
        train_vocabulary(text, spec, folder / side)
    return [(folder / side).read_bytes() for side in WORDS]


@pytest.fixture(scope="module")
def vocabularies(files):
    return [Vocabulary(content) for content in files]


def test_tensorflow_text_romanizes_as_the_vocabulary_does(tmp_path):
    import tensorflow_text

    texts = ["Српски језик", "नेपाली फाइल", "naïve", "中文 か\u3099", "فایل"]
    vocabulary = train_vocabulary(
        texts * 9, VocabularySpec(400, normalization="latin"), tmp_path / "a"
    )
    tokenizer = tensorflow_text.SentencepieceTokenizer(model=vocabulary.content)
    assert tokenizer.tokenize(texts).to_list() == vocabulary.encode(texts)
    assert vocabulary.encode([texts[0]]) == vocabulary.encode(["Srpski jezik"])


def copying(shape):
    """A search that copies the source. The score is `score_of`, times the only weight, which is 1."""
    import tensorflow as tf

    @tf.custom_gradient
    def without_gradient(x):
        def gradient(dy):
            raise AssertionError("products of packed matrices in bfloat16 have no gradient")

        return tf.identity(x), gradient

    def search(weights, batch):
        assert weights["one/weight"].dtype == tf.bfloat16
        one = without_gradient(tf.cast(weights["one/weight"], tf.float32))
        (rows,) = {array.shape[0] for array in batch.values()}
        lengths = tf.reduce_sum(batch["source_segments"], axis=1)
        ids = tf.pad(batch["source_ids"], [[0, 0], [0, shape.max_steps - shape.source_length]])
        last = tf.reduce_max(batch["source_positions"], axis=1)
        score = 1000 * rows + 100 * shape.source_length + batch["max_lengths"] + 10_000 * last
        return [
            {
                "ids": ids[:, tf.newaxis],
                "lengths": lengths[:, tf.newaxis],
                "scores": (tf.cast(score, tf.float32) * one)[:, tf.newaxis],
            }
        ]

    return search


def score_of(length: int, rows: int) -> float:
    """The score of a sentence with this number of ids, in a batch of this number of rows."""
    shape = SHORT if length <= SHORT else LONG
    limit = min(length + CONFIG.decode.length_margin, CONFIG.data.target_length)
    return 1000 * rows + 100 * shape + limit + 10_000 * (length - 1)


@pytest.fixture(scope="module")
def loaded(files, vocabularies, tmp_path_factory):
    """The signature of a SavedModel that copies, as a function of Python texts."""
    import tensorflow as tf

    directions = {pair: vocabularies[0].tags(*pair) for pair in DIRECTIONS}
    # Weights of Decode.precision = 'bfloat16' keep their dtype.
    weights = {"one/weight": np.ones((), tf.bfloat16.as_numpy_dtype)}
    folder = tmp_path_factory.mktemp("saved") / "model"
    saved_model.write(TrainedModel(CONFIG, copying, weights, *files, directions), folder)
    return texts_of(tf.saved_model.load(folder))


def texts_of(module):
    """Returns a function of texts and languages that calls the signature of a SavedModel."""
    import tensorflow as tf

    def translate(texts, source, target):
        result = module.signatures["serving_default"](
            text=tf.constant(texts, tf.string, [len(texts)]),
            source=tf.constant(source),
            target=tf.constant(target),
        )
        translations = [text.decode() for text in result["translations"].numpy()]
        return translations, result["scores"].numpy().tolist()

    return translate


TEXTS = [
    *("red tree", "", "green house is red tree is " * 3, " \t ", "tree"),
    *(
        "\u00a0\u2003\u3000\x85\x1c",
        "naïve ﬁ",
        "is",
        "red  house ",
        "green",
        "is red",
        "<2fr>",
        "x",
        " ()\t👍🏽\u00a0",
        "\u00ad",
        "is\u2060 gr\u00adeen\u202d",
    ),
]
"""Lines to copy, lines that fit one of the batches only, and lines that are too long."""


@pytest.mark.parametrize("count", [0, 1, FEW + 1, len(TEXTS)])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_lines_become_batches_as_in_gshard_decode(loaded, vocabularies, direction, count):
    source, target = vocabularies
    texts = TEXTS[:count]
    filled = [text for text in texts if copied(text) is None]
    read = source.encode_source([visible(text) for text in filled], *direction)
    sentences = dict(zip(filled, read, strict=True))
    cut = {t: x if len(x) <= LONG else [*x[: LONG - 1], x[-1]] for t, x in sentences.items()}
    is_short = [len(ids) <= SHORT for ids in cut.values()]
    rows = {short: FEW if is_short.count(short) <= FEW else ROWS for short in (True, False)}
    expected = [copied(text) or target.decode([cut.get(text, [])])[0] for text in texts]
    scores = [
        score_of(len(cut[text]), rows[len(cut[text]) <= SHORT]) if text in cut else 0.0
        for text in texts
    ]
    assert loaded(texts, *direction) == (expected, scores)
    if count == len(TEXTS):
        assert len({len(ids) for ids in sentences.values()} & {SHORT, LONG}) < len(sentences)
        assert any(len(ids) > LONG for ids in sentences.values())
        assert set(rows.values()) == {FEW, ROWS}
        assert len(filled) > ROWS


def test_a_translation_is_one_line(loaded, vocabularies):
    source, target = vocabularies
    texts = [f"red{character}red" for character in LINE_BREAKS]
    # The copied ids spell the line break, byte by byte.
    spelled = [target._processor.decode(ids) for ids in source.encode(texts)]
    assert all(character in text for character, text in zip(LINE_BREAKS, spelled, strict=True))
    (word,) = target.decode(source.encode(["red"]))
    expected = [
        text.replace(character, " ") for character, text in zip(LINE_BREAKS, spelled, strict=True)
    ]
    assert word in expected[0]
    assert loaded(texts, "fr", "en")[0] == expected


@pytest.mark.parametrize(("source", "target"), [("fr", "de"), ("fr", "xx"), ("", "en")])
@pytest.mark.parametrize("texts", [["red"], []])
def test_an_unknown_direction_is_an_error_that_names_the_languages(loaded, source, target, texts):
    import tensorflow as tf

    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        loaded(texts, source, target)
    assert (
        f"there is no direction from {source} to {target} in this model. Its sources are de, fr. Its "
        "targets are en, fr."
    ) in str(error.value)
