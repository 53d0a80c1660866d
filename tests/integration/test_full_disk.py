"""A full disk at every kind of write: one message, nothing half-written, and a command that goes on."""

from tests.faults import Outcome


def check(outcomes: list[Outcome], program: str, *kept: str) -> list[str]:
    """Checks what each disk left: nothing but `kept`. Returns the messages of the small disks."""
    messages = []
    for outcome in outcomes:
        assert (outcome.second_code, outcome.second_stderr[-500:]) == (
            0,
            outcome.second_stderr[-500:],
        )
        if outcome.code != 0:
            message = outcome.stderr.splitlines()[-1]
            assert outcome.code == 2, outcome
            assert message.startswith(f"{program}: "), outcome
            assert "Traceback" not in outcome.stderr, outcome
            assert outcome.left == list(kept), outcome
            messages.append(message)
    # The first disks are too small, and the last ones are not.
    assert messages
    assert outcomes[-1].code == 0, outcomes[-1]
    return messages
