"""Two processes decode and evaluate together: they write what one process writes, and end together."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import program, succeed
from tests.integration.two_processes import no_process_stays, outputs, start_all

__all__ = ["no_process_stays"]


def start(*words: object) -> list["subprocess.Popen[str]"]:
    """Starts a program in two processes. Both have a pipe as stdin, and only process 0 reads it."""
    return start_all([words] * 2, {}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def start_decoding(trained: Path) -> list["subprocess.Popen[str]"]:
    """Starts to decode. Both processes wait then: process 0 for more lines, process 1 for process 0."""
    processes = start("decode", "--workdir", trained, "--lang", "fr")
    pipe, output = processes[0].stdin, processes[0].stdout
    assert pipe is not None
    assert output is not None
    pipe.write("\n" * 4096)  # as many lines as are translated together
    pipe.flush()
    assert output.readline() == "\n"
    return processes


SOURCE = "der\n\nneerg eert\neulb\tesuoh\nneves spals\n" * 4


def test_two_processes_translate_a_pipe_as_one_process_does(trained):
    """19 lines are three batches. The text comes in parts, and nothing else goes to stdout."""
    flags = ["--workdir", trained, "--lang", "fr", "--scores"]
    expected = succeed(program("decode", *flags, stdin=SOURCE)).stdout
    processes = start("decode", *flags)
    assert processes[0].stdin is not None
    half = len(SOURCE) // 2
    for part in (SOURCE[:half], SOURCE[half:]):
        processes[0].stdin.write(part)
        processes[0].stdin.flush()
    zero, one = outputs(processes)
    # On a busy machine process 0 shows its progress.
    assert zero[:2] == (0, expected), zero
    assert one == (0, "", "")


@pytest.mark.slow
def test_an_interrupted_process_ends_the_other_one(trained):
    processes = start_decoding(trained)
    processes[1].send_signal(signal.SIGINT)
    zero, one = outputs(processes)
    assert (zero[0], one[0]) == (130, 130), (zero, one)
    assert zero[2] == "gshard-decode: process 1 of 2 was interrupted\n"
    assert one[2] == "gshard-decode: interrupted\n"


def report_of(folder: Path) -> dict:
    report = json.loads((folder / "bleu.json").read_text())
    assert report["provenance"].pop("command").startswith("gshard-eval ")
    return report


@pytest.mark.slow
def test_two_processes_evaluate_as_one_process_does(prepared, trained, tmp_path):
    flags = ["--workdir", trained, "--corpus", prepared / "corpus"]
    succeed(program("eval", *flags, "--report", tmp_path / "alone"))
    for file in (trained / "decodes").iterdir():
        file.unlink()
    zero, one = outputs(start("eval", *flags, "--report", tmp_path / "together"))
    assert (zero[0], one[0]) == (0, 0), (zero, one)
    assert report_of(tmp_path / "together") == report_of(tmp_path / "alone")
    assert one[1:] == ("", "")


@pytest.mark.slow
def test_a_killed_process_ends_the_other_one(trained):
    processes = start_decoding(trained)
    processes[1].kill()
    zero, one = outputs(processes)
    assert zero[0] in (75, -signal.SIGABRT), zero
    assert one[0] == -signal.SIGKILL
