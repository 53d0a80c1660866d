"""gshard-decode: lines in, translations out, in order."""

import dataclasses
import io
import types

import numpy as np
import pytest

from gshard_nmt.decode import Job, chunk_size, decode, show_check
from gshard_nmt.decoding.progress import DecodingProgress
from gshard_nmt.decoding.source_lines import SourceLines
from gshard_nmt.decoding.text_translator import Hypothesis
from gshard_nmt.errors import UserError
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.processes import ALONE

CONFIG = load_config("demo")
JOB = Job(CONFIG, types.SimpleNamespace(), "fr", "en", 2, "tsv", "best", ALONE, fits=True)


class Shouting:
    """Capital letters, and as second of the n-best their number; a semicolon makes two pieces."""

    longest_source = 64

    def __init__(self, nbest: int = 1, rows: int = 64) -> None:
        self.nbest, self.of_ids = nbest, types.SimpleNamespace(rows=rows)
        self.chunks: list[int] = []

    def translate(self, lines, source, target):
        assert (source, target) == ("fr", "en")
        self.chunks.append(len(lines))
        for line in lines:
            pieces = 1 + line.count(";")
            best = [
                Hypothesis(line.upper(), -0.5, pieces),
                Hypothesis(str(len(line)), -1.25, pieces),
            ]
            yield best[: self.nbest]


class Sheet:
    """An output in memory, with the number of lines at each commit."""

    def __init__(self, lines: int = 0) -> None:
        self.lines, self.text, self.commits = lines, "", []

    def write(self, text):
        self.text += text

    def commit(self, lines):
        self.lines = lines
        self.commits.append(lines)


def run(translator, text: str, done: int = 0, beside: str = "", flag: str = "") -> Sheet:
    output = Sheet(done)
    job = dataclasses.replace(JOB, form="text" if flag else "tsv", beside=flag and (flag, None))
    lines, other = (SourceLines(io.BytesIO(t.encode()), "a file") for t in (text, beside))
    progress = DecodingProgress(None, quiet=True)
    decode(job, translator, lines, output, progress, other if flag else None)
    return output


def test_several_translations_of_a_line_have_the_same_number():
    written = run(Shouting(nbest=2), "ab\nc\n").text
    assert written == "1\t-0.5000\tAB\n1\t-1.2500\t2\n2\t-0.5000\tC\n2\t-1.2500\t1\n"


@pytest.mark.parametrize("done", [0, 8, 16, 64, 133])
def test_lines_that_are_done_are_skipped_and_the_chunks_stay_the_same(done):
    translator = Shouting(rows=4)
    output = run(translator, "\n".join(f"line {i}" for i in range(133)), done)
    assert output.commits == [end for end in (8, 16, 32, 64, 128, 133) if end > done]
    assert translator.chunks == np.diff([done, *output.commits]).tolist()
    assert output.text.splitlines() == [f"{i + 1}\t-0.5000\tLINE {i}" for i in range(done, 133)]


def test_a_chunk_is_never_larger_than_sixteen_batches():
    assert [chunk_size(done, 64) for done in (0, 128, 512, 5000)] == [128, 128, 512, 1024]


class Beginning(Shouting):
    """Puts the prefix before each translation, and scores a pair by its lengths."""

    def translate(self, lines, source, target, prefixes=None, first_line=None):
        assert first_line == 1 + sum(self.chunks)
        for prefix, (best,) in zip(prefixes, super().translate(lines, source, target), strict=True):
            yield [Hypothesis(prefix + best.text, best.score)]

    def score(self, pairs, source, target, first_line):
        assert (source, target) == ("fr", "en")
        yield from (-first_line - len(line) - len(text) / 8 for line, text in pairs)


def with_prefixes(text: str, prefixes: str, done: int = 0) -> str:
    translator = Beginning(rows=1)
    translator.chunks.append(done)
    return run(translator, text, done, prefixes, "prefix").text


@pytest.mark.parametrize("done", [0, 2])
def test_each_line_is_translated_with_its_prefix(done):
    translations = with_prefixes("a\na\na\nb\r\nc", "x\nx\n\ny\r\nz", done)
    assert translations == "".join(["xA\n", "xA\n", "A\n", "yB\n", "zC\n"][done:])


@pytest.mark.parametrize(
    ("prefixes", "message"),
    [
        ("x\n", "the file of --prefix ends after line 1, and the input goes on."),
        ("x\n\n\n", "the file of --prefix has more lines than the input, which has 2."),
    ],
)
def test_there_is_a_prefix_for_each_line(prefixes, message):
    with pytest.raises(UserError) as error:
        with_prefixes("a\nb\n", prefixes)
    assert str(error.value).startswith(message)


def test_one_score_a_line():
    """Two lines are scored at a time, and the scores of this translator have the first line's number."""
    output = run(Beginning(rows=1), "ab\nc\n\n", 0, "d\r\n\n\n", "score")
    assert output.text == "-3.1250\n-2.0000\n-3.0000\n"


@pytest.mark.parametrize(
    "other",
    [
        {"config": CONFIG.replace(decode={"alpha": 2.0})},
        {"nbest": 1},
        {"form": "jsonl"},
        {"source": "de"},
    ],
)
def test_a_resumed_file_needs_the_same_flags(other):
    assert dataclasses.replace(JOB, **other).origin("step 5") != JOB.origin("step 5")
    assert JOB.origin("step 6") != JOB.origin("step 5")
    assert ", decoding rules " in JOB.origin("step 5")["version of gshard-nmt"]
    assert dataclasses.replace(JOB, checkpoint="5").origin("step 5") == JOB.origin("step 5")


class Model:
    """A translator of ids and of text. Its scores are wrong if a mesh has `wrong` devices."""

    mesh, is_on_cpu, rows, least_rows = Mesh(), True, 64, 16
    letters = {"w": "EMH"}  # noqa: RUF012

    def __init__(self, wrong: int = 0) -> None:
        self.of_ids, self.wrong = self, wrong

    def sentences(self, lines, source, target):
        assert (source, target) == ("fr", "en")
        return [(n, [*map(ord, line), 1]) for n, line in enumerate(lines, 1) if line]

    def moved(self, mesh, rows):
        score = -1.0 if mesh.num_devices == self.wrong else -2.0
        return types.SimpleNamespace(
            translate_ids=lambda sources: [[(ids, score)] for ids in sources]
        )


def check(monkeypatch, tmp_path, model: Model, text: str) -> None:
    (tmp_path / "in").write_text(text)
    monkeypatch.setattr(Job, "load", lambda _: model)
    show_check(JOB, tmp_path / "in")


def test_check_prints_what_each_arrangement_gave(monkeypatch, tmp_path, capsys):
    check(monkeypatch, tmp_path, Model(), "un\n\ndeux\n")
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 8
    assert printed[-1].startswith("2 sentences have the same translations in 7 arrangements")


def test_check_fails_if_another_number_of_devices_gives_another_score(monkeypatch, tmp_path):
    with pytest.raises(UserError, match=r"1 of 7 arrangements .* on 8 devices"):
        check(monkeypatch, tmp_path, Model(wrong=8), "un\n")


def test_check_needs_text(monkeypatch, tmp_path):
    with pytest.raises(UserError, match="the input has no text to translate"):
        check(monkeypatch, tmp_path, Model(), "\n\n")
