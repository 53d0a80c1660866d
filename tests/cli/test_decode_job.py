"""What gshard-decode does after its flags: what its lines depend on, and --check."""

import dataclasses
import types

import pytest

from gshard_nmt.cli.decode_job import Job, show_check
from gshard_nmt.errors import UserError
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.processes import ALONE

CONFIG = load_config("demo")
JOB = Job(CONFIG, types.SimpleNamespace(), "fr", "en", 2, "tsv", "best", ALONE, fits=True)


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
