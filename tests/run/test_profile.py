"""The trace of a few training steps."""

import jax
import jax.numpy as jnp

from gshard_nmt.run.profile import SKIPPED_STEPS, TRACED_STEPS, Profile


def traces(folder):
    return list(folder.glob("plugins/profile/*/*.xplane.pb"))


def test_the_trace_covers_a_few_steps_after_the_first_ones(tmp_path):
    profile = Profile(tmp_path, wanted=True)
    step = jax.jit(lambda x: x @ x)
    x = jnp.ones((8, 8))
    lines = []
    for number in range(21, 21 + SKIPPED_STEPS + TRACED_STEPS + 3):
        assert not traces(tmp_path) or len(lines) >= SKIPPED_STEPS + TRACED_STEPS
        step(x).block_until_ready()
        lines.append(profile.count_step(number))
    assert len(traces(tmp_path)) == 1
    assert [bool(line) for line in lines].index(True) == SKIPPED_STEPS + TRACED_STEPS - 1
    assert lines[SKIPPED_STEPS + TRACED_STEPS - 1].startswith(
        f"a trace of 5 steps is in {tmp_path}"
    )
    assert profile.close() == ""


def test_a_run_that_ends_early_keeps_what_was_traced(tmp_path):
    profile = Profile(tmp_path, wanted=True)
    assert profile.close() == ""
    for step in range(SKIPPED_STEPS + 2):
        profile.count_step(step)
    assert profile.close().startswith("a trace of 2 steps")
    assert len(traces(tmp_path)) == 1


def test_each_process_writes_its_own_file_into_one_folder(tmp_path):
    for process in (0, 3):
        profile = Profile(tmp_path, wanted=True, process=process)
        for step in range(100, 100 + SKIPPED_STEPS + TRACED_STEPS):
            profile.count_step(step)
    assert {file.parent.name for file in traces(tmp_path)} == {"step-109"}
    names = sorted(file.name.removesuffix(".xplane.pb") for file in traces(tmp_path))
    assert [name.rpartition(".")[2] for name in names] == ["process-0", "process-3"]


def test_a_trace_that_cannot_be_written_ends_no_run(tmp_path):
    (tmp_path / "plugins").write_text("a file is in the way")
    profile = Profile(tmp_path, wanted=True)
    lines = [profile.count_step(step) for step in range(SKIPPED_STEPS + TRACED_STEPS + 3)]
    (line,) = filter(None, lines)
    assert line.startswith("the trace cannot be written: ")
    assert profile.close() == ""
