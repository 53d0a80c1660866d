"""gshard-serve on a real socket of this machine, with a translator that writes in capitals."""

import concurrent.futures
import contextlib
import http.client
import json
import socket
import time
import urllib.error

import libretranslatepy
import pytest

from gshard_nmt.serve import Server, serve
from gshard_nmt.serving.requests import Limits
from tests.serving.fake_translator import DIRECTIONS, FakeTranslator
from tests.soak.hostile_requests import LONGEST_WAIT, attack

SECONDS = 20
RIGHT = {"q": "un", "source": "fr", "target": "en"}


@contextlib.contextmanager
def serving(**limits):
    translator, log = FakeTranslator(), []
    server = Server(translator, DIRECTIONS, 4, ("127.0.0.1", 0), Limits(**limits), log=log.append)
    try:
        yield server, translator, log
    finally:
        translator.gate.set()
        assert server.stop(SECONDS)


@pytest.fixture(scope="module")
def shared():
    with serving() as everything:
        yield everything


def connect(server):
    return http.client.HTTPConnection("127.0.0.1", server.port, timeout=SECONDS)


def post(connection, fields):
    connection.request(
        "POST", "/translate", json.dumps(fields), {"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def wait_for(condition):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_client_of_libretranslate_is_served(shared):
    server, _, _ = shared
    client = libretranslatepy.LibreTranslateAPI(server.url)
    assert client.translate("où?\nlà & ici + 1", "fr", "en") == "OÙ?>en\nLÀ & ICI + 1>en"
    assert {"code": "fr", "name": "French", "targets": ["de", "en"]} in client.languages()
    assert client.detect("Le fichier que vous cherchez est introuvable.")[0]["language"] == "fr"
    with pytest.raises(urllib.error.HTTPError) as caught:
        client.translate("un", "fr", "qqq")
    with caught.value as error:
        assert error.code == 400
        assert "qqq is not supported" in json.load(error)["error"]


def test_a_connection_without_a_request_is_closed(shared, monkeypatch):
    server, _, _ = shared
    monkeypatch.setattr(server._server.config, "timeout_keep_alive", 1)
    with socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) as silent:
        assert silent.recv(100) == b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) as silent:
        silent.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        while not silent.recv(1000).endswith(b'"ok"}'):
            pass
        silent.sendall(b"G")
        assert silent.recv(100) == b""


def test_a_request_that_is_not_http_harms_nobody(shared):
    server, _, _ = shared
    with socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) as raw:
        raw.sendall(b"\x16\x03\x01\x00nonsense\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400 ")
    with contextlib.closing(connect(server)) as connection:
        assert post(connection, RIGHT) == (200, {"translatedText": "UN>en"})


def test_hostile_bodies_make_no_other_client_wait():
    with serving() as (server, _, _):
        tried = attack(server.port, seed=0, enough=60)
    assert tried.requests == 60
    assert {200} < tried.statuses <= {200, 400, 413, 415, 429}
    # Other tests run beside this one. `make soak` has the bound itself.
    assert tried.longest_wait < 10 * LONGEST_WAIT


def test_fifty_clients_get_their_own_answers_from_shared_batches():
    with serving() as (server, translator, log):
        translator.gate.clear()

        def ask(i):
            with contextlib.closing(connect(server)) as connection:
                return post(connection, RIGHT | {"q": [f"a{i}", f"b{i}\nc{i}"]})

        with concurrent.futures.ThreadPoolExecutor(50) as clients:
            answers = [clients.submit(ask, i) for i in range(50)]
            wait_for(lambda: len(server._batcher.unfinished) == 50)
            translator.gate.set()
            for i, answer in enumerate(answers):
                text = [f"A{i}>en", f"B{i}>en\nC{i}>en"]
                assert answer.result() == (200, {"translatedText": text})
        sizes = [len(lines) for lines, *_ in translator.batches]
        assert sum(sizes) == 150
        assert set(sizes[1:-1]) == {4}
        wait_for(lambda: len(log) == 50)


def test_a_server_that_stops_does_not_wait_for_ever():
    with serving() as (server, translator, _):
        translator.gate.clear()
        with concurrent.futures.ThreadPoolExecutor() as threads:
            connection = connect(server)
            answer = threads.submit(post, connection, RIGHT)
            wait_for(lambda: len(server._batcher.unfinished) == 1)
            assert not server.stop(grace=0.01, closing=0.3)
            status, content = answer.result()
            assert status == 503
            assert content == {"error": "the server is stopping. Try again later."}
            connection.close()


@pytest.mark.parametrize("ending", ["a second signal", "a batch that goes on"])
def test_a_translator_that_is_at_work_ends_with_the_process(capsys, monkeypatch, ending):
    class Exited(Exception):
        pass

    class Busy:
        url = "http://a"

        def wait(self):
            raise KeyboardInterrupt

        def stop(self):
            if ending == "a second signal":
                raise KeyboardInterrupt
            return False

    def leave(code):
        raise Exited(code)

    monkeypatch.setattr("os._exit", leave)
    with pytest.raises(Exited, match="130"):
        serve(Busy(), "a model")
    assert capsys.readouterr().err.endswith("gshard-serve: stopped in the middle of a batch\n")
