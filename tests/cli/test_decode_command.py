"""gshard-decode: what its flags change, and that no mistake destroys a file."""

import contextlib
import gzip
import io
import os
import types

import pytest

from gshard_nmt.cli import commands
from gshard_nmt.data.text.vocabulary import VocabularySpec, reserved_symbols, train_vocabulary
from gshard_nmt.decoding.protected import Entry, Protection
from gshard_nmt.decoding.text_translator import Hypothesis
from gshard_nmt.errors import UserError
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.values import read_run_config


class Shouting:
    """Translates to capitals. A line "stop" raises the error in the list."""

    checkpoint, longest_source = "step 5, abc", 64
    of_ids = types.SimpleNamespace(rows=64)

    def __init__(self):
        self.errors = []

    def translate(self, lines, source, target):
        for line in lines:
            if line == "stop":
                raise self.errors[0]
            yield [Hypothesis(line.upper(), -1.0)]


@pytest.fixture
def loaded(monkeypatch):
    """The (config, run, nbest, checkpoint) of each model that is loaded."""
    calls = []

    def load_translator(config, run, nbest, checkpoint, processes, fits, protection):
        assert (processes.count, fits) == (1, True)
        calls.append((config, run, nbest, checkpoint))
        upper.protection = protection
        return upper

    upper = Shouting()
    calls.append(upper)
    monkeypatch.setattr("gshard_nmt.decode.load_translator", load_translator)
    yield calls
    calls.clear()


@pytest.fixture
def upper(loaded):
    """The translator that is loaded."""
    return loaded.pop()


def test_the_flags_change_the_search_of_the_run(monkeypatch, run_folder, loaded, upper):
    calls, lines = [], []

    def decode(*arguments):
        calls.append(arguments)
        lines.extend(arguments[2].take(9))

    monkeypatch.setattr("gshard_nmt.decode.decode", decode)
    source, output = run_folder / "in.txt", run_folder / "out.txt"
    source.write_text("un\rdeux\n")
    before = read_run_config(run_folder / "config.gin")
    code = commands.main(
        [
            "decode",
            *(f"--workdir={run_folder}", "--lang=fr", "--beam=2", "--gin=Decode.alpha=0.8"),
            *("--gin=Decode.length_norm='lingvo'", f"--input={source}", f"--output={output}"),
            "--scores",
            "--checkpoint=average:3",
        ]
    )
    assert code == 0
    ((job, translator, _, _, _, prefixes),) = calls
    assert prefixes is None
    ((config, run, nbest, checkpoint),) = loaded
    assert translator is upper
    assert (job.source, job.target, job.form) == ("fr", "en", "tsv")
    assert (run.path, nbest, checkpoint) == (run_folder, 1, "average:3")
    search = (config.decode.beam, config.decode.length_norm, config.decode.alpha)
    assert search == (2, "lingvo", 0.8)
    assert config.model == before.model
    assert lines == ["un deux"]
    assert output.read_text() == ""


def test_prefixes_and_translations_are_read_beside_the_input(monkeypatch, run_folder, loaded):
    calls = []

    def decode(job, translator, lines, output, progress, beside):
        calls.append((job.beside[0], lines.take(9), beside.take(9)))

    monkeypatch.setattr("gshard_nmt.decode.decode", decode)
    source, beside = run_folder / "in.txt", run_folder / "beside.txt.gz"
    source.write_text("un\ndeux\n")
    beside.write_bytes(gzip.compress(b"one\n\n"))
    flags = [f"--workdir={run_folder}", "--lang=fr", f"--input={source}"]
    assert commands.main(["decode", *flags, f"--prefix={beside}"]) == 0
    assert commands.main(["decode", *flags, f"--score={beside}"]) == 0
    lines = (["un", "deux"], ["one", ""])
    assert calls == [("prefix", *lines), ("score", *lines)]


REFUSED = [
    ("--score=in.txt --scores", "--scores does not go with --score, which gives one"),
    ("--score=in.txt --prefix=in.txt", "--prefix does not go with --score"),
    ("--input=gone.txt", "--input gone.txt: there is no such file; give a text file, or leave"),
    ("--format=text --scores", "Give --format tsv or jsonl"),
    ("--check --format=tsv", "--format does not go with --check"),
    ("--prefix=in.txt --output=in.txt",
     "--output in.txt would overwrite the file of --prefix, in.txt"),
    ("--prefix=o.partial --output=o", "--output o would overwrite the file of --prefix"),
    ("--score=pipe", "--score pipe is a pipe, and the file is read twice."),
    ("--score=two.txt --input=in.txt", "two.txt has 2 lines, and the input has 1."),
    ("--input=a.po --output=b.po --nbest=2", "--nbest does not go with --input, which names a document"),
    ("--input=a.po --check", "--check does not go with --input"),
    ("--input=a.po --output=b.po --format=text", "--format does not go with --input"),
    ("--input=a.po --output=b.po --score=in.txt", "--score does not go with --input"),
    ("--input=a.po", "--input a.po is a document, which is written at the end. Give --output a file"),
    ("--input=a.po --output=pipe", "Give --output a file, or translate its lines as text"),
    ("--input=in.txt --output=b.po --retranslate", "--retranslate has no effect on in.txt"),
    ("--retranslate", "--retranslate has no effect without --input"),
    ("--input=a.po.gz --output=b.po", "--input a.po.gz is a compressed document. Decompress it first."),
    ("--input=in.txt --output=o.gz", "--output o.gz: the output is not compressed. Leave out .gz."),
    ("--output=gs://b/o", "--output gs://b/o: it is a URL, but this flag takes a path of this machine."),
    ("--input=gs://b/i", "--input gs://b/i: it is a URL, but this flag takes a path of this machine."),
    ("--sample --gin=Decode.beam=9", "Decode.beam has no effect with sampling. Leave it out."),
    ("--sample --gin=Decode.expansion='lingvo'", "Decode.expansion has no effect with sampling."),
    ("--input=bad.po --output=b.po", "--input bad.po cannot be read: Syntax error in po file bad.po"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "message"), REFUSED)
def test_files_that_cannot_be_used_together_are_named(
    capsys, monkeypatch, run_folder, loaded, upper, flags, message
):
    monkeypatch.chdir(run_folder)
    (run_folder / "in.txt").write_text("un\n")
    (run_folder / "two.txt").write_text("one\ntwo\n")
    (run_folder / "o.partial").write_text("one\n")
    (run_folder / "a.po").write_text('msgid "x"\nmsgstr ""\n')
    (run_folder / "bad.po").write_text("msg\n")
    (run_folder / "a.po.gz").write_bytes(b"")
    os.mkfifo(run_folder / "pipe")
    assert commands.main(["decode", f"--workdir={run_folder}", "--lang=fr", *flags.split()]) == 2
    assert message in capsys.readouterr().err
    assert (run_folder / "in.txt").read_text() == "un\n"
    assert loaded == []
    assert not (run_folder / "b.po").exists()


@pytest.mark.parametrize(
    ("rate", "flags", "expected", "message"),
    [
        (0.3, [], Protection(), ""),
        (0.3, ["--protect=off"], None, ""),
        (0.3, ["--protect=numbers"], Protection(numbers=True), ""),
        (0.3, ["--glossary=terms"], Protection(True, (Entry("un", "one"),)), ""),
        (0.0, [], None, ""),
        (0.0, ["--protect=on"], Protection(), "--protect on: this run was not trained with"),
        (0.0, ["--glossary=terms"], Protection(False, (Entry("un", "one"),)), "--glossary: this"),
        (None, ["--protect=on"], None, "gshard-decode: --protect on needs the symbol <ph>, which"),
        (0.3, ["--glossary=terms", "--output=terms"], None, "gshard-decode: --output terms would"),
    ],
)
def test_what_is_protected_depends_on_the_run_and_the_flags(
    monkeypatch, capsys, run_folder, upper, rate, flags, expected, message
):
    monkeypatch.chdir(run_folder)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\n")))
    (run_folder / "terms").write_text("un\tone\n")
    with (run_folder / "config.gin").open("a") as file:
        file.write(f"Data.augmentation = {{'placeholders': {rate or 0.0}}}\n")
    symbols = () if rate is None else reserved_symbols()
    model = train_vocabulary(["a b c"], VocabularySpec(300, tags=symbols), run_folder / "x.model")
    monkeypatch.setattr(RunFolder, "vocabularies", lambda _: (model, model))
    refused = message.startswith("gshard-decode")
    assert commands.main(["decode", "--workdir=.", "--lang=fr", *flags]) == 2 * refused
    out, err = capsys.readouterr()
    assert err.startswith(message)
    assert bool(err) == bool(message)
    if not refused:
        assert (out, upper.protection) == ("A\n", expected)


def test_the_output_takes_the_place_of_an_older_one(tmp_path, run_folder, upper):
    source, output, link = tmp_path / "in.txt", tmp_path / "out.txt", tmp_path / "link.txt"
    source.write_text("a\nb\n")
    output.write_text("translated before\n")
    link.symlink_to("out.txt")
    flags = [f"--workdir={run_folder}", "--lang=fr", f"--input={source}"]
    assert commands.main(["decode", *flags, f"--output={link}"]) == 0
    assert output.read_text() == "A\nB\n"
    assert link.is_symlink()
    assert not (tmp_path / "out.txt.partial").exists()
    assert commands.main(["decode", *flags, "--output=/dev/null"]) == 0


MISTAKES = [
    ("--lang=xx", "--lang xx: this model translates from de, fr. Choose one of these."),
    ("--lang=fr-CA",
     "--lang fr-CA: this model translates from de, fr; did you mean 'fr'? Choose one"),
    ("--target=fr", "--target fr: from fr this model translates to en"),
    ("--nbest=5", "--nbest is 5; it must be from 1 to the beam size, 4."),
    ("--nbest=0", "--nbest is '0'; it must be "),
    ("--gin=Decode.top_k=3", "Decode.top_k has no effect without --sample. Add --sample, or"),
    ("--sample --beam=2", "--beam has no effect with sampling. Leave it out."),
    ("--sample --gin=Decode.top_p=1.5", "Decode.top_p is 1.5; it must be above 0 and at most 1."),
    ("--format=csv", "--format is 'csv'; it must be one of text, tsv, jsonl."),
    ("--checkpoint=bets", "--checkpoint is 'bets'; it must be best, last, a step such as 500, or"),
    ("--input=latin1", "--input latin1, line 2, byte 3: 0xe9 is not UTF-8. Convert the text, for"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "words"), MISTAKES)
def test_a_mistake_leaves_the_output_file_as_it_was(
    monkeypatch, capsys, tmp_path, run_folder, wrong, words, loaded, upper
):
    monkeypatch.chdir(tmp_path)
    output = run_folder / "out.txt"
    output.write_text("translated before\n")
    (tmp_path / "latin1").write_bytes(b"un\nca\xe9\n")
    flags = [f"--workdir={run_folder}", "--lang=fr", f"--output={output}", *wrong.split()]
    assert commands.main(["decode", *flags]) == 2
    assert capsys.readouterr().err.startswith(f"gshard-decode: {words}")
    assert output.read_text() == "translated before\n"
    assert loaded == []


def decode_files(tmp_path, run_folder, content: bytes, *flags) -> int:
    (tmp_path / "in.txt").write_bytes(content)
    files = [f"--input={tmp_path / 'in.txt'}", f"--output={tmp_path / 'out.txt'}"]
    return commands.main(["decode", f"--workdir={run_folder}", "--lang=fr", *files, *flags])


def test_odd_input_is_translated_line_by_line(tmp_path, capsys, run_folder, upper):
    odd = b"\xef\xbb\xbfa\r\n \t\r\n\r\nb\0" + b"x" * 100_000
    for content, text in ((odd, "A\n \t\n\nB\0" + "X" * 100_000 + "\n"), (b"", "")):
        assert decode_files(tmp_path, run_folder, content) == 0
        assert (tmp_path / "out.txt").read_text() == text
    assert capsys.readouterr() == ("", "")


def test_a_bad_byte_in_a_pipe_ends_the_program_after_the_lines_before_it(
    monkeypatch, capsys, run_folder, upper
):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n\xff\n")))
    assert commands.main(["decode", f"--workdir={run_folder}", "--lang=fr"]) == 2
    out, err = capsys.readouterr()
    assert out == "A\nB\n"
    assert err.startswith("gshard-decode: stdin, line 3, byte 1: 0xff is not UTF-8.")


def test_the_reader_of_a_named_pipe_may_close_it(tmp_path, capsys, run_folder, upper):
    """Ten thousand lines do not fit into a pipe that nobody reads."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # A reader that is there when the program opens the pipe, and gone when it writes.
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def closing(*arguments):
        with contextlib.suppress(OSError):
            os.close(reader)
        return usual(*arguments)

    usual, upper.translate = upper.translate, closing
    assert decode_files(tmp_path, run_folder, b"a\n" * 500, f"--output={pipe}") == 2
    assert capsys.readouterr().err == (
        f"gshard-decode: --output {pipe}: the program that reads it has closed it. Start that program "
        "again first.\n"
    )


def test_an_input_that_changes_meanwhile_is_an_error(tmp_path, capsys, run_folder, upper):
    def growing(*arguments):
        with (tmp_path / "in.txt").open("a") as file:
            file.write("more\n")
        return usual(*arguments)

    usual, upper.translate = upper.translate, growing
    (tmp_path / "out.txt").write_text("translated before\n")
    content = b"a long line that fills the first block of the file\n" * 2000
    assert decode_files(tmp_path, run_folder, content) == 2
    error = capsys.readouterr().err
    assert "in.txt was changed while it was translated." in error
    assert "the same command starts anew, because they may be of the old input or of" in error
    assert "goes on from there" not in error
    assert (tmp_path / "out.txt").read_text() == "translated before\n"
    # Also if the old input comes back: some lines may be of the text that it had meanwhile.
    upper.translate = usual
    assert decode_files(tmp_path, run_folder, content) == 0
    assert "out.txt.partial has no record of its lines; starting anew" in capsys.readouterr().err
    assert (tmp_path / "out.txt").read_bytes() == content.upper()


@pytest.mark.parametrize(
    ("flag", "changed"),
    [("--scores", "format"), ("--gin=Decode.alpha=0.7", "search"), ("--lang=de", "direction")],
)
def test_an_interrupted_command_goes_on_only_with_the_same_flags(
    tmp_path, capsys, run_folder, upper, flag, changed
):
    upper.errors.append(KeyboardInterrupt())
    content = b"a\n" * 128 + b"stop\n"
    assert decode_files(tmp_path, run_folder, content) == 130
    partial = f"{tmp_path}/out.txt.partial"
    assert capsys.readouterr().err == (
        f"gshard-decode: interrupted. The first 128 lines are done and in {partial}; the same command "
        f"goes on from there. {tmp_path}/out.txt is as before.\n"
    )
    assert decode_files(tmp_path, run_folder, content) == 130
    assert capsys.readouterr().err.startswith(
        f"{partial} has the first 128 lines; going on there\n"
    )
    assert decode_files(tmp_path, run_folder, content, flag) == 130
    first, *_ = capsys.readouterr().err.splitlines()
    assert first == f"{partial} was made with another {changed}; starting anew"
    upper.errors[:] = [UserError("the last word")]
    assert decode_files(tmp_path, run_folder, content, flag) == 2
    assert "going on there\ngshard-decode: the last word. The first 128" in capsys.readouterr().err


CATALOGUE = "".join(f'msgctxt "{n}"\nmsgid "x"\nmsgstr ""\n\n' for n in range(128))


def test_a_document_that_changes_meanwhile_is_an_error(tmp_path, capsys, run_folder, upper):
    source, output = tmp_path / "a.md", tmp_path / "b.md"
    source.write_text("one\n")
    output.write_text("translated before\n")

    def growing(lines, *_):
        source.write_text("one\n\n2\n")  # by another program
        return ([Hypothesis(line.upper(), -1.0)] for line in lines)

    upper.translate = growing
    flags = [f"--workdir={run_folder}", "--lang=fr", f"--input={source}", f"--output={output}"]
    assert commands.main(["decode", *flags]) == 2
    assert "a.md was changed while it was translated." in capsys.readouterr().err
    assert output.read_text() == "translated before\n"


def test_a_document_is_written_when_all_of_it_is_translated(tmp_path, capsys, run_folder, upper):
    source, output = tmp_path / "a.po", tmp_path / "b.po"
    source.write_text(CATALOGUE + 'msgid "stop"\nmsgstr ""\n')
    command = ["decode", f"--workdir={run_folder}", "--lang=fr", f"--input={source}"]
    command.append(f"--output={output}")
    upper.errors.append(KeyboardInterrupt())
    assert commands.main(command) == 130
    error = capsys.readouterr().err
    assert (
        f"The first 128 lines are done and in {output}.partial; the same command goes on" in error
    )
    assert not output.exists()
    upper.translate = lambda lines, *_: ([Hypothesis(line.upper(), -1.0)] for line in lines)
    assert commands.main(command) == 0
    going_on, filled = capsys.readouterr().err.splitlines()
    assert going_on == f"{output}.partial has the first 128 lines; going on there"
    assert filled == "129 of 129 parts are translated"
    assert output.read_text().count('msgstr "X"') == 128
    assert 'msgstr "STOP"' in output.read_text()
    assert not [path for path in tmp_path.iterdir() if "partial" in path.name]


@pytest.mark.parametrize(
    "way", ["the same name", "a link", "a hard link", "the partial file", "its record"]
)
def test_the_input_is_no_output(capsys, tmp_path, run_folder, way, loaded, upper):
    names = {"the partial file": "x.txt.partial", "its record": "x.txt.partial.progress"}
    source = tmp_path / names.get(way, "x.txt")
    source.write_text("un\n")
    output = tmp_path / ("y" if way.endswith("link") else "x.txt")
    if way == "a link":
        output.symlink_to(source)
    if way == "a hard link":
        output.hardlink_to(source)
    flags = [f"--workdir={run_folder}", "--lang=fr", f"--input={source}", f"--output={output}"]
    assert commands.main(["decode", *flags]) == 2
    assert source.read_text() == "un\n"
    message = capsys.readouterr().err
    assert str(output) in message
    assert ("that is the input" if way in names else "the same file") in message
    assert loaded == []


@pytest.mark.parametrize(
    "name",
    [
        *("config.gin", "checkpoints/5/manifest.json", "source.model", "programs/x", "link"),
        *("trainer.lock", "baseline.json"),
    ],
)
def test_a_file_of_the_run_is_no_output(capsys, tmp_path, run_folder, name, loaded, upper):
    (run_folder / "link").symlink_to("checkpoints/5/x")
    (tmp_path / "in.txt").write_text("un\n")
    before = (run_folder / "config.gin").read_text()
    flags = [f"--workdir={run_folder}", "--lang=fr", f"--input={tmp_path / 'in.txt'}"]
    assert commands.main(["decode", *flags, f"--output={run_folder / name}"]) == 2
    assert capsys.readouterr().err == (
        f"gshard-decode: --output {run_folder / name} is a file that the run {run_folder} needs. Give "
        "another place.\n"
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
    monkeypatch, capsys, tmp_path, run_folder, upper, error, code, words
):
    """Lines from stdin: the partial file keeps them, but the program cannot go on from there."""
    upper.errors.append(error)
    output = tmp_path / "out.txt"
    output.write_text("translated before\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\n" * 128 + b"stop\n")))
    flags = [f"--workdir={run_folder}", "--lang=fr", f"--output={output}"]
    assert commands.main(["decode", *flags]) == code
    assert output.read_text() == "translated before\n"
    assert (tmp_path / "out.txt.partial").read_text() == "A\n" * 128
    message = capsys.readouterr().err
    assert words in message
    assert message.endswith(
        f"The lines that were finished are in {output}.partial; {output} is as before.\n"
    )
