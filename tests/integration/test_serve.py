"""gshard-serve as a process: it translates as gshard-decode does, and a signal stops it gently."""

import json
import signal
import subprocess
import sys
import threading
import urllib.request

import libretranslatepy

from tests.integration.conftest import command, program, succeed

# The translator announces on stdout that it is at work, and then takes half a second.
PROGRAM = """
import sys, time, types
from gshard_nmt.cli.flags import Command
from gshard_nmt.cli.runner import run
from gshard_nmt.serve import Limits, Server, serve

class Slow:
    keeps_tags = False

    def translate(self, lines, source, target):
        print("at work", flush=True)
        time.sleep(0.5)
        best = [types.SimpleNamespace(text=x.upper(), lost=(), confidence=None) for x in lines]
        return iter([[each] for each in best])

def action(values):
    serve(Server(Slow(), [("fr", "en")], 4, ("127.0.0.1", 0), Limits()), "a model")

sys.exit(run(Command("gshard-serve", "serves.", "gshard-serve", (), lambda flags: None, action), []))
"""


def test_a_signal_ends_the_program_after_the_requests_that_run():
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            address = process.stdout.readline().split()[3]
            body = json.dumps({"q": "un\ndeux", "source": "fr", "target": "en"}).encode()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{address}/translate", body, headers)
            answers = []

            def ask():
                with urllib.request.urlopen(request, timeout=20) as response:
                    answers.append(json.load(response))

            client = threading.Thread(target=ask)
            client.start()
            assert process.stdout.readline() == "at work\n"
            process.send_signal(signal.SIGTERM)
            client.join()
            _, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert answers == [{"translatedText": "UN\nDEUX"}]
    assert process.returncode == 130
    assert err.splitlines()[0] == ("gshard-serve: stopping; requests that have come are answered")
    assert err.splitlines()[-1] == "gshard-serve: stopped"


def test_a_client_gets_what_gshard_decode_gives(trained):
    lines = ["der", " ".join(["neerg"] * 5), "elppa eert", "eulb"]
    flags = ["--workdir", trained, "--trust_programs"]
    decoded = succeed(program("decode", *flags, "--lang", "fr", stdin="\n".join(lines)))
    with subprocess.Popen(
        command("serve", *flags, "--port", 0),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            ready = process.stdout.readline()
            assert ready.endswith("(step 6 (Train.ema), 2 directions)\n"), process.stderr.read()
            client = libretranslatepy.LibreTranslateAPI(ready.split()[3])
            assert f"{client.translate(chr(10).join(lines), 'fr', 'en')}\n" == decoded.stdout
            assert [language["code"] for language in client.languages()] == ["de", "en", "fr"]
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert " POST /translate 200 " in log
    assert "Traceback" not in log
