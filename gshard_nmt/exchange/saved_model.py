"""A trained model as a TensorFlow SavedModel, from text to text.

The graph has three parts. The SentencePiece ops of TensorFlow Text split the text into tokens. The
sentences are put into batches of a few fixed shapes, as `Translator` does; each batch is one call of
the search of gshard-decode, which XLA compiles at the first call. Then the SentencePiece ops make text
of the result. The graph has no op of this package, so tensorflow and tensorflow-text can load it.
"""

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gshard_nmt.data.text.vocabulary import EOS, LINE_BREAKS
from gshard_nmt.decoding.beam_search import Hypotheses
from gshard_nmt.decoding.fitting import BatchShape, batch_shape
from gshard_nmt.decoding.source_lines import INVISIBLE
from gshard_nmt.errors import UserError
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.settings.config import Config
from gshard_nmt.spmd.lowering import silenced_stderr

FEW = 4
"""The number of rows of a small batch. A large batch takes as long for one sentence as for all of its
`Decode.rows` sentences, so that calls with few sentences use small batches."""

# Regular expressions of TensorFlow's RE2: `LINE_BREAKS`, a text that `source_lines.copied` copies, what
# Python's `str.strip` removes (`\s` of RE2 is ASCII only), and `INVISIBLE`.
_LINE_BREAK = "[" + "".join(f"\\x{{{ord(character):x}}}" for character in LINE_BREAKS) + "]"
_COPIED = r"[^\p{L}\p{N}]*"
_ENDS = r"^[\s\p{Z}\x1c-\x1f\x{85}]+|[\s\p{Z}\x1c-\x1f\x{85}]+$"
_INVISIBLE = "[" + re.sub(r"[^-]", lambda c: f"\\x{{{ord(c[0]):x}}}", INVISIBLE) + "]"


class TrainedModel(NamedTuple):
    """All parts of a SavedModel."""

    config: Config
    search: Callable[[BatchShape], Callable]  # `Translator.search`
    # `Translator.prepared_weights`: they are the variables, so no call has to prepare them
    weights: Mapping[str, np.ndarray]
    source_vocabulary: bytes  # the content of a SentencePiece model file
    target_vocabulary: bytes
    # the ids that stand before a source sentence, by source and target language, as BCP 47 tags
    directions: Mapping[tuple[str, str], Sequence[int]]


def write(model: TrainedModel, folder: Path) -> None:
    """Writes a SavedModel into a new folder.

    Its signature `serving_default` takes `text` string[n], `source` string[] and `target` string[], in
    UTF-8. It returns `translations` string[n] and `scores` float32[n].
    """
    tensorflow_text = _tensorflow_text()
    module = tf.Module()
    module.weights = {name: tf.Variable(array) for name, array in model.weights.items()}
    for side, content in (("source", model.source_vocabulary), ("target", model.target_vocabulary)):
        # A process that loads SavedModels keeps one vocabulary for each name, so each has its own.
        name = f"vocabulary_{hashlib.sha256(content).hexdigest()}"
        with silenced_stderr():
            setattr(module, side, tensorflow_text.SentencepieceTokenizer(content, name=name))
    language = tf.TensorSpec([], tf.string)

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.string), language, language], autograph=False
    )
    def translate(text, source, target):
        tags = _tags(model.directions, source, target)
        longest = max(model.config.decode.source_lengths)
        ids, lengths, copies = _sentences(module.source, text, tags, longest)
        translations, scores = _translate(model, module, ids, lengths, copies)
        return {"translations": translations, "scores": scores}

    module.translate = translate
    signature = translate.get_concrete_function()
    # The gradients of experts would only make the graph larger, and products in bfloat16 have none.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    with silenced_stderr():
        tf.saved_model.save(
            module, str(folder), signatures={"serving_default": signature}, options=options
        )


def _tensorflow_text() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        with silenced_stderr():
            import tensorflow_text

            tf.config.list_physical_devices()
    except ImportError as error:
        raise UserError(
            "gshard-export needs TensorFlow and TensorFlow Text, and they cannot be imported "
            f"({error}). Install the same minor version of both: pip install tensorflow tensorflow-text."
        ) from None
    # TensorFlow only traces here, so it must not reserve the memory of a GPU.
    tf.config.set_visible_devices([], "GPU")
    return tensorflow_text


def _tags(directions: Mapping[tuple[str, str], Sequence[int]], source, target):
    """Returns the tags int32[t] of a direction, whose languages are strings []. "" is the only language.

    A direction that the model does not have is an error when the graph runs.
    """
    all_sources, all_targets = zip(*directions, strict=True)
    sources, targets = sorted(set(all_sources)), sorted(set(all_targets))
    if len(sources) == 1:
        source = tf.where(source == "", sources[0], source)
    if len(targets) == 1:
        target = tf.where(target == "", targets[0], target)
    is_source, is_target = tf.constant(all_sources) == source, tf.constant(all_targets) == target
    known = f" in this model. Its sources are {', '.join(sources)}. Its targets are {', '.join(targets)}."
    message = tf.strings.join(
        ["there is no direction from ", source, " to ", target, tf.constant(known)]
    )
    matches = is_source & is_target
    check = tf.debugging.Assert(tf.reduce_any(matches), [message])
    with tf.control_dependencies([check]):
        index = tf.argmax(tf.cast(matches, tf.int32))
    return tf.ragged.constant(list(directions.values()), dtype=tf.int32, ragged_rank=1)[index]


def _sentences(vocabulary, text, tags, longest: int):
    """Returns the lines of a call, string[n], as tokens: ids, lengths and copies.

    The ids, ragged int32[n, None], are the tags, the tokens and EOS. A sentence with more ids than
    `longest` loses its last tokens. The lengths int32[n] are 0 if a line is copied, or has no tokens. The
    copies string[n] are "" for other lines.
    """
    count = tf.shape(text)[0]
    tokens = vocabulary.tokenize(tf.strings.regex_replace(text, _INVISIBLE, ""))
    tags = tf.RaggedTensor.from_tensor(tf.tile(tags[tf.newaxis], [count, 1]))
    ids = tf.concat([tags, tokens], axis=1)[:, : longest - 1]
    ids = tf.concat([ids, tf.RaggedTensor.from_tensor(tf.fill([count, 1], EOS))], axis=1)
    is_copied = tf.strings.regex_full_match(text, _COPIED)
    has_tokens = ~is_copied & (tokens.row_lengths() > 0)
    line = tf.strings.regex_replace(text, _LINE_BREAK, " ")
    copies = tf.where(is_copied, tf.strings.regex_replace(line, _ENDS, ""), "")
    return ids, tf.where(has_tokens, tf.cast(ids.row_lengths(), tf.int32), 0), copies


def _translate(model: TrainedModel, module, all_ids, all_lengths, translations):
    """Returns the translations string[n] and the scores float32[n], which are 0 for a copied line."""
    scores = tf.zeros(tf.shape(all_lengths))
    shorter = 0
    # The smallest batch that holds a sentence depends on the sentence alone.
    for length in sorted(set(model.config.decode.source_lengths)):
        places = tf.where((all_lengths > shorter) & (all_lengths <= length))
        ids = tf.gather(all_ids, places[:, 0]).to_tensor(shape=[None, length])
        lengths = tf.gather(all_lengths, places[:, 0])
        best = _best_of(model, module.weights, ids, lengths)
        tokens = tf.RaggedTensor.from_tensor(best.ids, tf.maximum(best.lengths - 1, 0))
        texts = tf.strings.regex_replace(module.target.detokenize(tokens), _LINE_BREAK, " ")
        translations = tf.tensor_scatter_nd_update(translations, places, texts)
        scores = tf.tensor_scatter_nd_update(scores, places, best.scores)
        shorter = length
    return translations, scores


def _best_of(model: TrainedModel, weights: Mapping[str, Any], ids, lengths) -> Hypotheses:
    """Translates sentences of one shape of batch: ids int32[n, L] and lengths int32[n].

    Returns the best hypothesis of each: ids int32[n, I], lengths int32[n], and scores float32[n].
    """
    shape = batch_shape(model.config, ids.shape[1])
    search = _compiled_search(model, weights, shape)

    def in_batches(rows: int) -> Hypotheses:
        # The last batch may have empty rows at its end.
        count = tf.shape(lengths)[0]
        empty = -count % rows
        # Shape: [n, L] -> [number of batches, rows, L]
        all_ids = tf.pad(ids, [[0, empty], [0, 0]])
        batches = (
            tf.reshape(all_ids, [-1, rows, shape.source_length]),
            tf.reshape(tf.pad(lengths, [[0, empty]]), [-1, rows]),
        )
        signature = Hypotheses(
            tf.TensorSpec([rows, shape.max_steps], tf.int32),
            tf.TensorSpec([rows], tf.int32),
            tf.TensorSpec([rows], tf.float32),
        )
        best = tf.map_fn(lambda batch: search(*batch), batches, signature, parallel_iterations=1)
        # Shape: [number of batches, rows, ...] -> [n, ...]
        return Hypotheses(*(tf.reshape(x, [-1, *x.shape[2:]])[:count] for x in best))

    many = model.config.decode.rows
    if many <= FEW:
        return in_batches(many)
    return tf.cond(tf.shape(lengths)[0] <= FEW, lambda: in_batches(FEW), lambda: in_batches(many))


def _compiled_search(
    model: TrainedModel, weights: Mapping[str, Any], shape: BatchShape
) -> Callable[..., Hypotheses]:
    """Returns a function that XLA compiles: (ids int32[B, L], lengths int32[B]) -> the best hypotheses.

    A row of length 0 has no sentence.
    """
    search = model.search(shape)
    longest = [batch_shape(model.config, n).max_steps for n in range(shape.source_length + 1)]
    limits = np.array([1, *longest[1:]], np.int32)

    @tf.function(jit_compile=True, autograph=False)
    def best_of_batch(ids, lengths):
        segments = tf.sequence_mask(lengths, shape.source_length, tf.int32)
        batch = {
            "source_ids": ids,
            "source_segments": segments,
            "source_positions": segments * tf.range(shape.source_length),
            "max_lengths": tf.gather(limits, lengths),
        }
        values = {name: tf.convert_to_tensor(weight) for name, weight in weights.items()}
        (hypotheses,) = search(values, batch)
        return Hypotheses(*(hypotheses[name][:, 0] for name in Hypotheses._fields))

    return best_of_batch
