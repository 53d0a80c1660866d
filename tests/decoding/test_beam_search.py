"""Flat beam search against scripted decoders, worked cases and a plain beam search."""

import dataclasses
import functools
import re

import jax
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from gshard_nmt.decoding.beam_search import BeamSearch, Hypotheses, flat_beam_search
from gshard_nmt.settings.config import EXPANSIONS, LENGTH_NORMS
from gshard_nmt.spmd.lowering import ArraySpec, as_jax_function, lower
from tests.decoding.beam_search_oracle import (
    EOS,
    VOCABULARY,
    WIDTH,
    attention_weights,
    flat_attention,
    flat_table,
    plain_attention,
    plain_beam_search,
    plain_table,
    table_of,
    write,
)

MAX_STEPS = 6
FIELDS = Hypotheses._fields


def texts(result, row: int = 0) -> list[list[int]]:
    """Returns the n-best of a row without the missing ones."""
    ids, lengths = np.asarray(result.ids)[row], np.asarray(result.lengths)[row]
    return [line[:length].tolist() for line, length in zip(ids, lengths, strict=True) if length > 0]


def poisoned(step):
    """Returns a decoder that first spoils every slot that no beam may see, and then is `step`."""

    def poisoned_step(ids, mask, i, cache):
        seen = tf.reduce_max(mask, axis=1)[..., None] > 0
        poison = {"keys": 3e4, "values": -7e5}
        cache = {name: tf.where(seen, cache[name], poison[name]) for name in cache}
        return step(ids, mask, i, cache)

    return poisoned_step


@functools.cache
def attention_search(search: BeamSearch, poison: bool):
    """Returns a search of two rows with the same weights, compiled once for all examples."""

    @tf.function(jit_compile=True, autograph=False)
    def run(weights, limits, prefix):
        empty = tf.zeros([2, search.beam * search.max_steps, WIDTH])
        step = flat_attention(weights)
        step = poisoned(step) if poison else step
        cache = {"keys": empty, "values": empty}
        hypotheses = flat_beam_search(step, cache, search, [True, True], limits, prefix)
        return {name: getattr(hypotheses, name) for name in FIELDS}

    def search_of(weights, limits, prefixes=((), ())):
        padded = [[*prefix, *[0] * (MAX_STEPS - len(prefix))] for prefix in prefixes]
        return Hypotheses(**run(weights, tf.constant(limits), tf.constant(padded)))

    return search_of


RULES = [
    (1, 3, "gnmt", "eos_aside"),
    (2, 4, "none", "eos_aside"),
    (4, 2, "lingvo", "eos_aside"),
    (3, 3, "gnmt", "lingvo"),
]
PREFIXES = st.lists(st.sampled_from([2, *range(4, VOCABULARY)]), max_size=3)


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**16),
    rules=st.sampled_from(RULES),
    limit=st.integers(1, MAX_STEPS),
    prefixes=st.tuples(PREFIXES, PREFIXES.map(lambda ids: [*ids, EOS])) | st.just(([], [])),
)
def test_it_equals_a_plain_beam_search_hypothesis_by_hypothesis(seed, rules, limit, prefixes):
    beam, nbest, norm, expansion = rules
    search = BeamSearch(beam, MAX_STEPS, nbest, norm, expansion=expansion)
    weights = attention_weights(seed)
    hypotheses = attention_search(search, False)(weights, [MAX_STEPS, limit], prefixes)
    for row, longest in enumerate([MAX_STEPS, limit]):
        empty = (np.zeros([0, WIDTH], "f"),) * 2
        expected, closest = plain_beam_search(
            plain_attention(weights), empty, search, longest, prefixes[row]
        )
        assume(closest > 1e-4)  # rounding may decide between hypotheses that are closer
        count = len(expected)
        assert texts(hypotheses, row) == [plain.ids for plain in expected]
        scores, values = hypotheses.scores.numpy()[row], [plain.score for plain in expected]
        np.testing.assert_allclose(scores[:count], values, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(scores[count:], -1e9)
        ids, lengths = hypotheses.ids.numpy()[row], hypotheses.lengths.numpy()[row]
        padding = np.arange(MAX_STEPS) >= lengths[:, np.newaxis]
        assert (ids[padding] == 0).all()
        assert (ids[np.arange(count), lengths[:count] - 1] == EOS).all()


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 2**16))
def test_what_masked_slots_hold_does_not_matter(seed):
    search = BeamSearch(4, MAX_STEPS, 2, "lingvo")
    weights = attention_weights(seed)
    clean = attention_search(search, False)(weights, [MAX_STEPS, 3])
    spoilt = attention_search(search, True)(weights, [MAX_STEPS, 3])
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(clean, name), getattr(spoilt, name))


def table_search(search: BeamSearch, rows: int = 2):
    def run(inputs):
        step, cache = flat_table(inputs["table"]), tf.zeros([rows, search.beam * search.max_steps])
        hypotheses = flat_beam_search(step, cache, search, tf.fill([rows], True), inputs["limits"])
        return [{name: getattr(hypotheses, name) for name in FIELDS}]

    return run


@functools.cache
def compiled_table_search(search: BeamSearch):
    run = tf.function(table_search(search), jit_compile=True, autograph=False)
    return lambda table, limits: Hypotheses(**run({"table": table, "limits": limits})[0])


def check_same(a: Hypotheses, b: Hypotheses):
    for name in FIELDS:
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-6, err_msg=name)


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 2**16),
    rules=st.sampled_from([(4, 3, "gnmt", "eos_aside"), (3, 2, "none", "lingvo")]),
    limit=st.integers(1, MAX_STEPS),
)
def test_the_first_of_equal_hypotheses_wins_and_an_early_stop_changes_nothing(seed, rules, limit):
    """The plain search has no early stop."""
    beam, nbest, norm, expansion = rules
    search = BeamSearch(beam, MAX_STEPS, nbest, norm, expansion=expansion)
    table, limits = table_of(seed), tf.constant([limit, MAX_STEPS])
    hypotheses = compiled_table_search(search)(table, limits)
    for row, longest in enumerate([limit, MAX_STEPS]):
        expected, _ = plain_beam_search(plain_table(table), 0, search, longest)
        count = len(expected)
        assert texts(hypotheses, row) == [plain.ids for plain in expected]
        scores = hypotheses.scores.numpy()[row, :count]
        np.testing.assert_allclose(scores, [plain.score for plain in expected], rtol=1e-6)
        assert (np.diff(scores) <= 0).all()
        assert len({tuple(ids) for ids in texts(hypotheses, row)}) == count


def test_eager_compiled_lowered_and_partitioned_searches_agree():
    search, rows = BeamSearch(beam=4, max_steps=MAX_STEPS, nbest=3), 4
    inputs = {"table": table_of(5), "limits": np.array([6, 2, 5, 1], np.int32)}
    run = table_search(search, rows=rows)
    eager = Hypotheses(**run(inputs)[0])
    check_same(eager, Hypotheses(**tf.function(run, jit_compile=True, autograph=False)(inputs)[0]))

    specs = {name: ArraySpec(array.shape, array.dtype) for name, array in inputs.items()}
    program = lower(run, [specs], [{}], None)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
    by_row, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["x"], []))
    function = jax.jit(as_jax_function(program), in_shardings=(by_row, whole), out_shardings=by_row)
    compiled = function.lower(inputs["limits"], inputs["table"]).compile()
    results = dict(zip(sorted(FIELDS), compiled(inputs["limits"], inputs["table"]), strict=True))
    check_same(eager, Hypotheses(**results))
    found = re.findall(
        r" = (.+?) (all-[\w-]+|collective-permute|reduce-scatter)\(", compiled.as_text()
    )
    # Rows meet only in the question whether any row continues.
    assert found == [("pred[]", "all-reduce")]


# Scripted decoders, run eagerly.


def scripted(rule, vocabulary: int, calls: list | None = None):
    """Returns a decoder with log-probabilities float[V] `rule(tokens that the mask shows)`."""

    def step(ids, mask, i, cache):
        cache = write(cache, ids, i)
        fed, visible = cache.numpy(), mask.numpy() > 0
        if calls is not None:
            calls.append((ids.numpy(), int(i), mask.numpy()))
        rows = [[rule(fed[b, beam].tolist()) for beam in visible[b]] for b in range(len(fed))]
        return tf.constant(np.array(rows).reshape([*ids.shape, vocabulary]), tf.float32), cache

    return step


def run_script(rule, search: BeamSearch, vocabulary: int, calls=None, rows=1, **kwargs):
    cache = tf.zeros([rows, search.beam * search.max_steps], tf.int32)
    limits = {"live": tf.fill([rows], True), "max_lengths": tf.fill([rows], search.max_steps)}
    return flat_beam_search(scripted(rule, vocabulary, calls), cache, search, **limits | kwargs)


def log_of(probabilities: dict[int, float], vocabulary: int) -> np.ndarray:
    """Returns log-probabilities of a vocabulary; tokens that are not named are impossible."""
    with np.errstate(divide="ignore"):
        return np.log([probabilities.get(v, 0.0) for v in range(vocabulary)])


# Like the test decoders of the authors: the likeliest token is the next number by a rule, then the four
# numbers above it with falling probability. After a number with a digit 9 the end (0) is likely. If two
# tokens are equally likely, the smaller number is a bit likelier.
NEXT = {"+1": lambda seen: seen[-1] + 1, "sum": sum, "fib": lambda seen: sum(seen[-2:])}


def number_decoder(rule):
    def log_probs(seen):
        logits = -np.arange(100) / 4950 / 100
        for extra in range(5):
            logits[(NEXT[rule](seen) + extra) % 100] += 5 - extra
        logits[0] += 9 * ("9" in str(seen[-1]))
        return logits - np.log(np.exp(logits).sum())

    return log_probs


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("+1", ["2 3 4 5 6 7 8 9", "2 3 4 5 6 7 9", "2 3 4 5 6 8 9", "2 3 4 5 7 8 9"]),
        ("sum", ["1 2 4 9", "1 2 5 9", "1 2 4 8 16 32 64 29", "1 2 4 8 16 32 65 29"]),
        ("fib", ["1 2 3 5 9", "1 2 3 6 9", "1 2 3 5 8 13 21 34 55 89", "1 2 3 5 8 13 21 34 55 90"]),
    ],
)
@pytest.mark.parametrize("expansion", EXPANSIONS)
def test_the_outputs_of_a_scripted_decoder_follow_its_rule(expansion, rule, expected):
    search = BeamSearch(4, 20, 4, "lingvo", 0.8, expansion, eos=0, bos=1)
    found = texts(run_script(number_decoder(rule), search, 100))
    assert found == [[*map(int, numbers.split()), 0] for numbers in expected]


@pytest.mark.parametrize(
    ("expansion", "steps", "expected"),
    [("eos_aside", 3, [1]), ("fairseq", 3, [4, 1]), ("fairseq", 1, [1])],
)
def test_by_the_rule_of_fairseq_the_end_must_be_among_the_best(expansion, steps, expected):
    """[1] has probability 0.45 and [4, 1] 0.55 * 0.7, but 4 is a better first token than the end."""

    def rule(seen):
        return log_of({4: 0.55, 1: 0.45} if len(seen) == 1 else {1: 0.7, 4: 0.3}, 5)

    search = BeamSearch(1, steps, 1, "none", expansion=expansion)
    assert texts(run_script(rule, search, 5)) == [expected]


def test_by_the_authors_rule_the_end_takes_a_place_and_a_copy_of_the_other_continues():
    calls = []
    search = BeamSearch(2, 3, 3, "none", expansion="lingvo")
    rule = {1: [0, 0.6, 0.1, 0, 0.3], 2: [0, 0.2, 0.5, 0, 0.3], 3: [0, 0.9, 0.1, 0, 0]}
    with np.errstate(divide="ignore"):
        logs = {length: np.log(probabilities) for length, probabilities in rule.items()}
    hypotheses = run_script(lambda seen: logs[len(seen)], search, 5, calls)
    # The end and 4 are the two best of both beams, so both continue with 4. Then 2 and 4 are the best.
    assert [ids.tolist() for ids, _, _ in calls] == [[[3, 3]], [[4, 4]], [[2, 4]]]
    assert texts(hypotheses) == [[1], [4, 2, 1], [4, 4, 1]]
    expected = np.log([0.6, 0.3 * 0.5 * 0.9, 0.3 * 0.3 * 0.9])
    np.testing.assert_allclose(hypotheses.scores[0], expected, rtol=1e-5)


def test_a_copy_that_the_authors_rule_needs_is_no_translation():
    search = BeamSearch(2, 2, 3, "none", expansion="lingvo")
    hypotheses = run_script(lambda _: log_of({1: 0.6, 4: 0.3, 2: 0.1}, 5), search, 5)
    assert texts(hypotheses) == [[1], [4, 1]]
    greedy = run_script(
        lambda _: log_of({1: 0.6, 4: 0.4}, 5), BeamSearch(1, 4, 2, expansion="lingvo"), 5
    )
    assert texts(greedy) == [[1]]  # nothing is left that could continue


def test_a_prefix_is_the_beginning_of_every_translation_and_its_end_is_the_only_one():
    def rule(seen):
        return log_of({1: 0.5, 2: 0.3, 4: 0.2}, 5)

    calls, search = [], BeamSearch(2, 4, 3, "none")
    prefix = tf.constant([[4, 2, 0, 0], [4, 1, 0, 0], [0, 0, 0, 0], [2, 4, 2, 4]])
    hypotheses = run_script(rule, search, 5, calls, rows=4, prefix=prefix)
    assert [texts(hypotheses, row) for row in range(4)] == [
        [[4, 2, 1], [4, 2, 2, 1], [4, 2, 4, 1]],
        [[4, 1]],
        [[1], [2, 1], [4, 1]],
        [],  # no step is left for the end
    ]
    expected = np.log([0.2 * 0.3 * 0.5, 0.2 * 0.3 * 0.3 * 0.5, 0.2 * 0.3 * 0.2 * 0.5])
    np.testing.assert_allclose(hypotheses.scores[0], expected, rtol=1e-5)
    np.testing.assert_allclose(hypotheses.scores[1, 0], np.log(0.2 * 0.5), rtol=1e-5)
    assert texts(run_script(rule, search, 5, prefix=tf.constant([[3, 0, 0, 0]]))) == []


@pytest.mark.parametrize("expansion", EXPANSIONS)
def test_an_id_that_is_never_written_keeps_its_probability_if_it_is_forced(expansion):
    """Without the likely id 2, the search takes 4; no other probability changes."""

    def rule(_):
        return log_of({1: 0.1, 2: 0.6, 3: 0.1, 4: 0.2}, 5)

    search = BeamSearch(2, 3, 1, "none", expansion=expansion, never=(0, 2, 3))
    prefix = tf.constant([[0, 0, 0], [4, 1, 0], [2, 1, 0]])
    hypotheses = run_script(rule, search, 5, rows=3, prefix=prefix)
    assert [texts(hypotheses, row)[0] for row in (1, 2)] == [[4, 1], [2, 1]]
    assert {*texts(hypotheses)[0]} <= {1, 4}
    np.testing.assert_allclose(hypotheses.scores[1:, 0], np.log([0.2 * 0.1, 0.6 * 0.1]), 1e-5)
    hypotheses = run_script(rule, dataclasses.replace(search, tags=1), 5, rows=3, prefix=prefix)
    np.testing.assert_allclose(hypotheses.scores[1:, 0], np.log([0.1, 0.1]), 1e-5)


@pytest.mark.parametrize(
    ("norm", "alpha", "steps", "best"),
    [
        ("none", 0.6, 1, [1]),
        ("gnmt", 0.6, 1, [1]),  # -2.30 / (25 / 6) ** 0.6 = -0.98 < -0.11
        ("gnmt", 3.0, 20, [4] * 19 + [1]),  # -2.30 / (25 / 6) ** 3 = -0.03 > -0.11
        ("lingvo", 3.0, 20, [4] * 19 + [1]),
    ],
)
def test_the_loop_ends_when_no_length_could_help_and_not_before(norm, alpha, steps, best):
    def rule(seen):
        return log_of({1: 0.9, 4: 0.1} if len(seen) == 1 else {4: 1.0}, 5)

    def ending(seen):
        return rule(seen) if len(seen) < 20 else log_of({1: 1.0}, 5)

    calls, search = [], BeamSearch(2, 20, length_norm=norm, alpha=alpha)
    assert texts(run_script(ending, search, 5, calls)) == [best]
    assert len(calls) == steps


def test_rows_that_do_not_matter_and_limits_hold_up_nothing():
    def rule(seen):
        return log_of({1: 0.6, 2: 0.3, 4: 0.1}, 5)

    calls, search = [], BeamSearch(beam=2, max_steps=9, length_norm="none")
    live, limits = tf.constant([False, True, True]), tf.constant([9, 3, 0])
    hypotheses = run_script(rule, search, 5, calls, rows=3, live=live, max_lengths=limits)
    assert len(calls) == 1  # no later end can be likelier than the first
    assert [texts(hypotheses, row) for row in range(3)] == [[[1]]] * 3

    def late(seen):
        return log_of({1: 0.5, 4: 0.5} if len(seen) > 2 else {2: 0.9, 4: 0.1}, 5)

    calls.clear()
    hypotheses = run_script(late, search, 5, calls, rows=3, live=live, max_lengths=limits)
    assert len(calls) == 3
    assert [texts(hypotheses, row) for row in range(3)] == [[], [[2, 2, 1]], []]


def test_if_there_are_fewer_continuations_than_beams_the_others_are_missing():
    search = BeamSearch(beam=4, max_steps=30, nbest=4, alpha=2.0)
    only = run_script(lambda _: log_of({0: 0.5, 1: 0.5}, 2), search, 2)
    assert texts(only) == [[0] * n + [1] for n in (29, 28, 27, 26)]
    short = run_script(
        lambda _: log_of({0: 0.5, 1: 0.5}, 2), search, 2, max_lengths=tf.constant([2])
    )
    assert sorted(texts(short)) == [[0, 1], [1]]
    assert short.scores.numpy()[0, 2:].tolist() == [-1e9, -1e9]
    assert texts(run_script(lambda _: np.full(5, np.nan), search, 5)) == []


def test_every_length_norm_that_settings_allow_is_known():
    for name in LENGTH_NORMS:
        norms = BeamSearch(max_steps=3, length_norm=name, alpha=1.0).norms()
        assert norms.shape == (4,)
        # A longer translation never has a smaller norm: early stopping relies on it.
        assert (np.diff(norms) >= 0).all()
