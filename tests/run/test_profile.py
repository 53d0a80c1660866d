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
    for _ in range(SKIPPED_STEPS + TRACED_STEPS + 3):
        assert not traces(tmp_path) or len(lines) >= SKIPPED_STEPS + TRACED_STEPS
        step(x).block_until_ready()
        lines.append(profile.count_step())
    assert len(traces(tmp_path)) == 1
    assert [bool(line) for line in lines].index(True) == SKIPPED_STEPS + TRACED_STEPS - 1
    assert lines[SKIPPED_STEPS + TRACED_STEPS - 1].startswith(
        f"a trace of 5 steps is in {tmp_path}"
    )
    assert profile.close() == ""


def test_a_run_that_ends_early_keeps_what_was_traced(tmp_path):
    profile = Profile(tmp_path, wanted=True)
    assert profile.close() == ""
    for _ in range(SKIPPED_STEPS + 2):
        profile.count_step()
    assert profile.close().startswith("a trace of 2 steps")
    assert len(traces(tmp_path)) == 1


def test_without_the_flag_nothing_is_traced(tmp_path):
    profile = Profile(tmp_path, wanted=False)
    assert [profile.count_step() for _ in range(20)] == [""] * 20
    assert not traces(tmp_path)
