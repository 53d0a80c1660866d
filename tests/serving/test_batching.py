import contextlib

import pytest

from gshard_nmt.serving.batching import Batcher, Refusal
from tests.serving.fake_translator import FakeTranslator

SECONDS = 20


@contextlib.contextmanager
def batching(rows=4, queue=10):
    """A batcher whose translator is held in the middle of a batch with the line "first"."""
    translator = FakeTranslator(nbest=1)
    batcher = Batcher(translator, rows, queue)
    translator.hold()
    batcher.submit("fr", "en", ["first"])
    assert translator.started.wait(SECONDS)
    try:
        yield batcher, translator
    finally:
        translator.gate.set()
        batcher.close()
        assert batcher.join(SECONDS)


def test_a_short_request_does_not_wait_for_a_long_one():
    with batching() as (batcher, translator):
        long = batcher.submit("fr", "en", [f"l{i}" for i in range(8)])
        short = batcher.submit("fr", "en", ["s"])
        pair = batcher.submit("fr", "en", ["p0", "p1"])
        translator.gate.set()
        assert short.result(SECONDS) == [["S>en"]]
        assert pair.result(SECONDS) == [["P0>en"], ["P1>en"]]
        assert long.result(SECONDS) == [[f"L{i}>en"] for i in range(8)]
        assert [lines for lines, *_ in translator.batches[1:]] == [
            ["l0", "s", "p0", "l1"],
            ["p1", "l2", "l3", "l4"],
            ["l5", "l6", "l7"],
        ]


def test_directions_take_turns():
    with batching(rows=2) as (batcher, translator):
        futures = [
            batcher.submit("fr", "en", ["a", "b", "c"]),
            batcher.submit("de", "en", ["d", "e", "f"]),
            batcher.submit("fr", "de", ["g"]),
        ]
        translator.gate.set()
        assert futures[2].result(SECONDS) == [["G>de"]]
        assert futures[1].result(SECONDS)[2] == ["F>en"]
        assert futures[0].result(SECONDS)[2] == ["C>en"]
        assert translator.batches[1:] == [
            (["a", "b"], "fr", "en"),
            (["d", "e"], "de", "en"),
            (["g"], "fr", "de"),
            (["c"], "fr", "en"),
            (["f"], "de", "en"),
        ]


def test_a_full_queue_refuses():
    with batching(queue=2) as (batcher, translator):
        future = batcher.submit("fr", "en", ["a"])
        with pytest.raises(Refusal, match="busy: 2 requests wait") as caught:
            batcher.submit("fr", "en", ["b"])
        assert caught.value.status == 429
        assert caught.value.retry_after == 1
        translator.gate.set()
        assert future.result(SECONDS) == [["A>en"]]
        assert batcher.submit("fr", "en", ["b"]).result(SECONDS) == [["B>en"]]


def test_lines_that_are_taken_back_are_not_translated():
    with batching(queue=2) as (batcher, translator):
        assert batcher.submit("de", "en", ["gone"]).cancel()
        assert batcher.unfinished == 1
        future = batcher.submit("de", "en", ["a"])
        translator.gate.set()
        future.result(SECONDS)
        assert translator.batches[1:] == [(["a"], "de", "en")]


def test_a_request_that_is_taken_back_in_its_batch_harms_nobody():
    with batching() as (batcher, translator):
        futures = [batcher.submit("fr", "en", [word]) for word in ("a", "b")]
        translator.started.clear()
        translator.gate.set()
        assert translator.started.wait(SECONDS)
        futures[0].cancel()
        assert futures[1].result(SECONDS) == [["B>en"]]


def test_a_line_that_fails_makes_no_other_request_fail(capsys):
    with batching() as (batcher, translator):
        futures = [batcher.submit("fr", "en", lines) for lines in (["a"], ["b", "fail"], ["c"])]
        translator.gate.set()
        assert futures[0].result(SECONDS) == [["A>en"]]
        assert futures[2].result(SECONDS) == [["C>en"]]
        failure = futures[1].exception(SECONDS)
        assert isinstance(failure, Refusal)
        assert failure.status == 500
        assert batcher.submit("fr", "en", ["d"]).result(SECONDS) == [["D>en"]]
    err = capsys.readouterr().err
    assert "the translator failed: ValueError" in err
    assert "in translate\n" in err
    assert "['b', 'fail']" not in err
    assert failure.message == "the model failed to translate this text. Try another."


def test_a_batcher_that_closes_refuses_all_that_waits():
    with batching() as (batcher, translator):
        future = batcher.submit("fr", "en", ["a"])
        batcher.close()
        assert future.exception(0).status == 503
        with pytest.raises(Refusal, match="the server is stopping"):
            batcher.submit("fr", "en", ["b"])
        assert not batcher.join(0)
        assert len(translator.batches) == 1
