"""What the user asks of one start of a run."""

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.run.start import Init, Start


def test_a_start_asks_for_nothing_special_by_default():
    start = Start()
    assert (start.limit.minutes, start.profile, start.command, start.init) == (0, False, "", None)


def test_a_run_is_named_by_its_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    relative = Init.of(folder.relative_to(tmp_path), "last")
    assert relative == Init(str(folder), "last") == Init.of(folder, "last")
    assert str(relative) == f"{folder}, checkpoint last"


def test_a_wrong_checkpoint_is_refused(tmp_path):
    with pytest.raises(UserError, match="--checkpoint is 'newest'; it must be best"):
        Init.of(tmp_path, "newest")
