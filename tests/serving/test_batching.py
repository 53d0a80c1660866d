import asyncio
import contextlib

import pytest
from starlette.exceptions import HTTPException

from gshard_nmt.serving.batching import Batcher
from tests.serving.fake_translator import FakeTranslator


def run(test, rows=4, queue=10):
    """Runs a test in an event loop, with a translator that is held in a batch with the line "first"."""

    async def everything():
        translator = FakeTranslator()
        batcher = Batcher(translator, rows, queue)
        translator.gate.clear()

        def submit(source, target, *lines):
            return asyncio.ensure_future(batcher.translate((source, target), lines))

        first = submit("fr", "en", "first")
        while not translator.batches:
            await asyncio.sleep(0.001)
        try:
            async with asyncio.timeout(20):
                await test(batcher, translator, submit)
        finally:
            translator.gate.set()
            with contextlib.suppress(HTTPException):
                await first
            assert batcher.unfinished == []
            assert batcher.is_idle(20)

    asyncio.run(everything())


async def best(request):
    return [nbest[0].text for nbest in await request]


async def refusal(request):
    with pytest.raises(HTTPException) as caught:
        await request
    return caught.value


def test_a_short_request_does_not_wait_for_a_long_one():
    async def test(_, translator, submit):
        long = submit("fr", "en", *(f"l{i}" for i in range(8)))
        short, pair = submit("fr", "en", "s"), submit("fr", "en", "p0", "p1")
        await asyncio.sleep(0)
        translator.gate.set()
        assert await best(short) == ["S>en"]
        assert await best(pair) == ["P0>en", "P1>en"]
        assert await best(long) == [f"L{i}>en" for i in range(8)]
        assert [lines for lines, *_ in translator.batches[1:]] == [
            ["l0", "s", "p0", "l1"],
            ["p1", "l2", "l3", "l4"],
            ["l5", "l6", "l7"],
        ]

    run(test)


def test_directions_take_turns():
    async def test(_, translator, submit):
        requests = [submit("fr", "en", *"abc"), submit("de", "en", *"def"), submit("fr", "de", "g")]
        await asyncio.sleep(0)
        translator.gate.set()
        results = [await best(request) for request in requests]
        assert results == [["A>en", "B>en", "C>en"], ["D>en", "E>en", "F>en"], ["G>de"]]
        assert translator.batches[1:] == [
            (["a", "b"], "fr", "en"),
            (["d", "e"], "de", "en"),
            (["g"], "fr", "de"),
            (["c"], "fr", "en"),
            (["f"], "de", "en"),
        ]

    run(test, rows=2)


def test_a_full_queue_refuses_and_lines_that_are_taken_back_make_place():
    async def test(batcher, translator, submit):
        gone = submit("de", "en", "gone")
        busy = await refusal(submit("fr", "en", "b"))
        assert (busy.status_code, busy.headers) == (429, {"Retry-After": "1"})
        assert busy.detail.startswith("the server is busy: 2 requests wait.")
        gone.cancel()
        await asyncio.wait([gone])
        assert len(batcher.unfinished) == 1
        request = submit("de", "en", "a")
        await asyncio.sleep(0)
        translator.gate.set()
        assert await best(request) == ["A>en"]
        assert translator.batches[1:] == [(["a"], "de", "en")]

    run(test, queue=2)


def test_a_request_that_is_taken_back_in_its_batch_harms_nobody():
    async def test(_, translator, submit):
        translator.gate.set()
        gone, request = submit("fr", "en", "a"), submit("fr", "en", "b")
        while len(translator.batches) < 2:
            await asyncio.sleep(0)
        gone.cancel()
        assert await best(request) == ["B>en"]

    run(test)


def test_a_batch_that_fails_ends_no_other(capsys):
    async def test(_, translator, submit):
        failing, other = submit("fr", "en", "b", "fail"), submit("de", "en", "c")
        await asyncio.sleep(0)
        translator.gate.set()
        failure = await refusal(failing)
        assert failure.status_code == 500
        assert failure.detail == "the model failed to translate this text. Try again."
        assert await best(other) == ["C>en"]
        assert await best(submit("fr", "en", "d")) == ["D>en"]

    run(test)
    err = capsys.readouterr().err
    assert "the translator failed: ValueError" in err
    assert "in translate\n" in err
    assert "fail'" not in err


def test_a_batcher_that_closes_refuses_all_that_waits():
    async def test(batcher, translator, submit):
        request = submit("fr", "en", "a")
        await asyncio.sleep(0)
        batcher.close()
        assert (await refusal(request)).status_code == 503
        assert (await refusal(submit("fr", "en", "b"))).detail.startswith("the server is stopping")
        assert len(translator.batches) == 1

    run(test)
