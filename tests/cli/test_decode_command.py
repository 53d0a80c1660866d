"""gshard-decode: what its flags change, and that no mistake destroys a file."""

import io
import json
import os
import subprocess
import sys

import pytest

from gshard_nmt.cli import commands
from gshard_nmt.settings.values import read_run_config
from tests.run.facts import data_facts


@pytest.fixture
def run_folder(tmp_path):
    """A folder with the config of a run from French and German."""
    from gshard_nmt.settings.gin_reader import load_config

    folder = tmp_path / "run"
    (folder / "checkpoints" / "5").mkdir(parents=True)
    (folder / "config.gin").write_text(load_config("demo").text)
    (folder / "data.json").write_text(json.dumps(data_facts(["fr", "de"])))
    return folder


@pytest.fixture
def loaded(monkeypatch):
    """The (config, run, nbest) of each model that is loaded. The model is the text "model"."""
    calls = []

    def load_translator(config, run, nbest):
        calls.append((config, run, nbest))
        return "model"

    monkeypatch.setattr("gshard_nmt.decoding.translator.load_translator", load_translator)
    return calls


@pytest.fixture
def upper(monkeypatch, loaded):
    """Translation to capitals. A line "stop" raises the error in this list."""
    errors = []

    def decode(translator, lines, output, *rest):
        assert translator == "model"
        for line in lines:
            if line == "stop\n":
                output.flush()
                raise errors[0]
            output.write(line.upper())

    monkeypatch.setattr("gshard_nmt.decode.decode", decode)
    return errors


def test_the_flags_change_the_search_of_the_run(monkeypatch, run_folder, loaded):
    calls, lines = [], []

    def decode(*arguments):
        calls.append(arguments)
        lines.extend(arguments[1])

    monkeypatch.setattr("gshard_nmt.decode.decode", decode)
    source, output = run_folder / "in.txt", run_folder / "out.txt"
    source.write_text("un\rdeux\n")
    before = read_run_config(run_folder / "config.gin")
    code = commands.decode_program(
        [
            *(f"--workdir={run_folder}", "--lang=fr", "--beam=2", "--alpha=0.8"),
            *("--length_norm=lingvo", f"--input={source}", f"--output={output}", "--scores"),
        ]
    )
    assert code == 0
    ((_, _, _, language, target, nbest, scores, prefixes),) = calls
    ((config, run, loaded_nbest),) = loaded
    assert (run.path, language, target, nbest, scores) == (run_folder, "fr", "en", 1, True)
    assert loaded_nbest == 1
    assert prefixes is None
    search = (config.decode.beam, config.decode.length_norm, config.decode.alpha)
    assert search == (2, "lingvo", 0.8)
    assert config.model == before.model
    assert lines == ["un\rdeux\n"]
    assert output.read_text() == ""


def test_prefixes_and_translations_are_read_beside_the_input(monkeypatch, run_folder, loaded):
    calls = []

    def decode(translator, lines, output, source, target, nbest, scores, prefixes):
        calls.append(("decode", list(lines), list(prefixes)))

    def score(translator, lines, translations, output, source, target):
        calls.append(("score", list(lines), list(translations)))

    monkeypatch.setattr("gshard_nmt.decode.decode", decode)
    monkeypatch.setattr("gshard_nmt.decode.score", score)
    source, beside = run_folder / "in.txt", run_folder / "beside.txt"
    source.write_text("un\ndeux\n")
    beside.write_text("one\n\n")
    flags = [f"--workdir={run_folder}", "--lang=fr", f"--input={source}"]
    assert commands.decode_program([*flags, f"--prefix={beside}"]) == 0
    assert commands.decode_program([*flags, f"--score={beside}"]) == 0
    lines = (["un\n", "deux\n"], ["one\n", "\n"])
    assert calls == [("decode", *lines), ("score", *lines)]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--score=in.txt", "--scores"], "--scores does not go with --score, which gives one"),
        (["--score=in.txt", "--nbest=2"], "--nbest does not go with --score"),
        (["--score=in.txt", "--prefix=in.txt"], "--prefix does not go with --score"),
        (["--score=gone.txt"], "--score gone.txt: there is no such file"),
        (["--prefix=gone.txt"], "--prefix gone.txt: there is no such file"),
        (["--prefix=in.txt", "--output=in.txt"], "--prefix and --output are the same file, in.txt"),
        (["--score=in.txt", "--output=in.txt"], "--score and --output are the same file, in.txt"),
    ],
)
def test_files_beside_the_input_that_cannot_be_used_are_named(
    capsys, monkeypatch, run_folder, loaded, flags, message
):
    monkeypatch.chdir(run_folder)
    (run_folder / "in.txt").write_text("un\n")
    assert commands.decode_program([f"--workdir={run_folder}", "--lang=fr", *flags]) == 2
    assert message in capsys.readouterr().err
    assert (run_folder / "in.txt").read_text() == "un\n"
    assert loaded == []


def test_stdin_is_read_and_stdout_is_written(monkeypatch, capsys, run_folder, upper):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("é\nb\n".encode())))
    assert commands.decode_program([f"--workdir={run_folder}", "--lang=fr"]) == 0
    assert capsys.readouterr() == ("É\nB\n", "")


def test_the_output_takes_the_place_of_an_older_one(tmp_path, run_folder, upper):
    source, output, link = tmp_path / "in.txt", tmp_path / "out.txt", tmp_path / "link.txt"
    source.write_text("a\nb\n")
    output.write_text("translated before\n")
    link.symlink_to("out.txt")
    flags = [f"--workdir={run_folder}", "--lang=fr", f"--input={source}"]
    assert commands.decode_program([*flags, f"--output={link}"]) == 0
    assert output.read_text() == "A\nB\n"
    assert link.is_symlink()
    assert not (tmp_path / "out.txt.partial").exists()
    assert commands.decode_program([*flags, "--output=/dev/null"]) == 0


@pytest.mark.parametrize("wrong", ["--lang=xx", "--target=fr", "--nbest=5", "--nbest=0"])
def test_a_mistake_leaves_the_output_file_as_it_was(capsys, run_folder, wrong, loaded):
    output = run_folder / "out.txt"
    output.write_text("translated before\n")
    flags = [f"--workdir={run_folder}", "--lang=fr", f"--output={output}", wrong]
    assert commands.decode_program(flags) == 2
    assert capsys.readouterr().err.startswith("gshard-decode: --")
    assert output.read_text() == "translated before\n"
    assert loaded == []


def test_a_run_without_a_checkpoint_leaves_the_output_file_as_it_was(capsys, tmp_path, run_folder):
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a\n")
    output.write_text("translated before\n")
    flags = [f"--workdir={run_folder}", "--lang=fr", f"--input={source}"]
    (run_folder / "data.json").unlink()
    assert commands.decode_program([*flags, f"--output={output}"]) == 2
    assert output.read_text() == "translated before\n"
    assert sorted(os.listdir(tmp_path)) == ["in.txt", "out.txt", "run"]


@pytest.mark.parametrize("way", ["the same name", "a link", "a hard link", "the partial file"])
def test_the_input_is_no_output(capsys, tmp_path, run_folder, way, loaded):
    source = tmp_path / ("x.txt.partial" if way == "the partial file" else "x.txt")
    source.write_text("un\n")
    output = {"the same name": source, "the partial file": tmp_path / "x.txt"}.get(
        way, tmp_path / "y"
    )
    if way == "a link":
        output.symlink_to(source)
    if way == "a hard link":
        output.hardlink_to(source)
    flags = [f"--workdir={run_folder}", "--lang=fr", f"--input={source}", f"--output={output}"]
    assert commands.decode_program(flags) == 2
    assert source.read_text() == "un\n"
    message = capsys.readouterr().err
    assert str(output) in message
    assert ("that is the input" if way == "the partial file" else "the same file") in message
    assert loaded == []


@pytest.mark.parametrize(
    "name",
    [
        *("config.gin", "checkpoints/5/manifest.json", "source.model", "programs/x", "link"),
        *("trainer.lock", "deaths.json", "divergence/step-4.json"),
    ],
)
def test_a_file_of_the_run_is_no_output(capsys, tmp_path, run_folder, name, loaded):
    (run_folder / "link").symlink_to("checkpoints/5/x")
    (tmp_path / "in.txt").write_text("un\n")
    before = (run_folder / "config.gin").read_text()
    flags = [f"--workdir={run_folder}", "--lang=fr", f"--input={tmp_path / 'in.txt'}"]
    assert commands.decode_program([*flags, f"--output={run_folder / name}"]) == 2
    assert capsys.readouterr().err == (
        f"gshard-decode: --output {run_folder / name} is a file that the run {run_folder} needs. Give "
        "another file.\n"
    )
    assert (run_folder / "config.gin").read_text() == before
    assert loaded == []


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "gshard-decode: interrupted. The lines"),
        (OSError(28, "No space left on device"), 2, "out.txt.partial: No space left on device."),
    ],
)
def test_the_finished_lines_survive_an_interruption(
    capsys, tmp_path, run_folder, upper, error, code, words
):
    upper.append(error)
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a\nb\nstop\nc\n")
    output.write_text("translated before\n")
    flags = [f"--workdir={run_folder}", "--lang=fr", f"--input={source}", f"--output={output}"]
    assert commands.decode_program(flags) == code
    assert output.read_text() == "translated before\n"
    assert (tmp_path / "out.txt.partial").read_text() == "A\nB\n"
    message = capsys.readouterr().err
    assert words in message
    assert message.endswith(
        f"The lines that were finished are in {output}.partial; {output} is as before.\n"
    )


def test_a_missing_input_is_named(capsys, run_folder):
    arguments = [f"--workdir={run_folder}", "--lang=fr", "--input=gone.txt"]
    assert commands.decode_program(arguments) == 2
    assert capsys.readouterr().err == (
        "gshard-decode: --input gone.txt: there is no such file; give a text file, or leave out --input "
        "to read stdin.\n"
    )


def test_a_closed_stdin_is_an_error(run_folder):
    words = [sys.executable, "-m", "gshard_nmt", "decode", f"--workdir={run_folder}", "--lang=fr"]
    command = ["sh", "-c", 'exec "$@" <&-', "sh", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "gshard-decode: stdin is closed. Give a file with --input, or pipe text into gshard-decode.\n"
    )
