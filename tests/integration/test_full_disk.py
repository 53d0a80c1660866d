"""A full disk at every kind of write: one message, nothing half-written, and a command that goes on."""

import pytest

from tests.faults import Outcome, small_disks
from tests.integration.conftest import gin
from tests.test_harvest import write_catalogue


def messages_of(outcomes: list[Outcome], program: str) -> list[str]:
    """Returns the messages of those that failed: the first must, and the last must not."""
    messages = []
    for outcome in outcomes:
        assert outcome.second_code == 0, outcome
        assert "Traceback" not in outcome.stderr, outcome
        assert not [name for name in outcome.left if name.startswith(".")], outcome
        if outcome.code:
            message = outcome.stderr.splitlines()[-1]
            assert outcome.code == 2, outcome
            assert message.startswith(f"{program}: "), outcome
            messages.append(message)
    assert outcomes[0].code == 2, outcomes[0]
    assert outcomes[-1].code == 0, outcomes[-1]
    return messages


def assert_some_name(messages: list[str], *names: str) -> None:
    for name in names:
        assert any(name in message for message in messages), (name, messages)


def test_harvest(tmp_path):
    for number in range(1, 7):
        write_catalogue(tmp_path / "locale", "fr", "Fichier introuvable", number)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    outcomes = small_disks("harvest", [tmp_path / "locale"], scratch, range(1, 16), [4, 12, 80])
    messages = messages_of(outcomes, "gshard-data harvest")
    assert_some_name(messages, "train.fr.gz", "test.en.gz", "corpus.json")
    # There is no part of a corpus.
    assert all(outcome.left == [] for outcome in outcomes if outcome.code)


def test_prepare(prepared, tmp_path):
    arguments = [prepared / "corpus", *gin()]
    outcomes = small_disks("prepare", arguments, tmp_path, [1, 28, 64, 90, 120], [4, 900, 2000])
    messages = messages_of(outcomes, "gshard-data prepare")
    folders = ("unfinished/", "data/")
    assert_some_name(messages, "source.model", *(f"out.partial/{name}" for name in folders))
    # There is no part of prepared data. The finished work stays beside it, and the message says so.
    failed = [outcome for outcome in outcomes if outcome.code]
    assert all(name.startswith("out.partial") for outcome in failed for name in outcome.left)
    for outcome in failed:
        has_finished = any(name.endswith("result.json") for name in outcome.left)
        assert has_finished == ("the same command goes on from there" in outcome.stderr), outcome


def test_eval(trained, prepared, tmp_path):
    outcomes = small_disks("evaluate", [trained, prepared / "corpus"], tmp_path, [5, 10, 14], [400])
    assert_some_name(messages_of(outcomes, "gshard-eval"), "out/")
    # Translations that cannot be kept end no evaluation.
    note = "decodes cannot be written (No space left on device), so these translations are not kept"
    assert any(note in outcome.stderr for outcome in outcomes)


@pytest.mark.slow
def test_train(prepared, tmp_path):
    """Each file of a run folder but the logs, which end no run, and the parts of checkpoints."""
    settings = gin(**{"Train.dev_every": 0})
    outcomes = small_disks("train", [prepared, *settings], tmp_path, [1, 3, 4], [272, 700, 20_000])
    messages = messages_of(outcomes, "gshard-train")
    assert_some_name(messages, "source.model", "config.gin", "data.json", "checkpoints")
