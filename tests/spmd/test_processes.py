"""The numbers of a run's processes, and the errors that mean that one of them is lost."""

import jax
import pytest

from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.spmd.processes import ALONE, Processes, is_loss_of_a_peer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("h:1", 2, 2), "--process_id 2 with --num_processes 2; it must be from 0 to 1. "),
        (("", 2, 0), "--coordinator '' with --num_processes 2; it must be host:port"),
        (("h:99999", 2, 0), "--coordinator 'h:99999'"),
        (("h:²", 2, 0), "--coordinator 'h:²'"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(arguments, message):
    with pytest.raises(UserError) as raised:
        Processes(*arguments)
    assert str(raised.value).startswith(message)


def test_processes_must_divide_the_devices():
    assert Processes("h:1", 4).local_devices(8) == 2
    with pytest.raises(UserError, match="must be one of 1, 2, 4, 8"):
        Processes("h:1", 3).local_devices(8)


def test_one_process_asks_only_itself():
    assert ALONE.gather([1, None]) == [[1, None]]
    assert ALONE.from_first(lambda: {"a": 1}) == {"a": 1}
    assert ALONE.is_first
    assert not ALONE.should_stop()


def test_the_number_of_a_step_rises_though_the_run_goes_back(monkeypatch):
    """jax compares the numbers of all processes, and stops them at the same one."""
    from jax.experimental import multihost_utils

    numbers = []

    def reached(number):
        numbers.append(number)
        return len(numbers) == 3

    monkeypatch.setattr(multihost_utils, "reached_preemption_sync_point", reached)
    two = Processes("h:1", 2)
    assert [two.should_stop() for _ in range(3)] == [False, False, True]
    assert numbers == [numbers[0], numbers[0] + 1, numbers[0] + 2]


GLOO = "Gloo AllReduce failed: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1"


@pytest.mark.parametrize(
    ("message", "is_loss"),
    [
        (f"UNKNOWN: {GLOO}", True),
        ("INTERNAL: NCCL operation ncclAllReduce failed: remote process exited", True),
        ("DEADLINE_EXCEEDED: Barrier timed out", True),
        ("UNAVAILABLE: failed to connect to all addresses", True),
        ("RESOURCE_EXHAUSTED: Out of memory allocating 1099511627776 bytes.", False),
        ("INTERNAL: NCCL operation failed: RESOURCE_EXHAUSTED: Out of memory", False),
        ("INVALID_ARGUMENT: Executable expected shape f32[2]", False),
        ("INTERNAL: a bug", False),
    ],
)
def test_only_connection_errors_of_the_runtime_are_the_loss_of_a_process(message, is_loss):
    assert is_loss_of_a_peer(jax.errors.JaxRuntimeError(message)) == is_loss
    assert not is_loss_of_a_peer(ValueError(message.replace("Gloo", "")))


def test_out_of_memory_leaves_a_run_of_several_processes_at_once(monkeypatch):
    """To try again would not help. Only the loss of a process waits until its name is known."""
    naps = []
    monkeypatch.setattr("time.sleep", naps.append)
    several = Processes("h:1", 2, 0, 30)
    with (
        pytest.raises(jax.errors.JaxRuntimeError, match="Out of memory"),
        several.waiting_for_lost_peers(),
    ):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
    assert not naps
    with (
        pytest.raises(TryAgain, match=r"another process died .*Gloo"),
        several.waiting_for_lost_peers(),
    ):
        raise ValueError(GLOO)
    assert len(naps) == 1


def test_jax_gets_the_timeouts(monkeypatch):
    times = {}
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **options: times.update(options))
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    Processes("[::1]:1", 2, 1, peer_timeout=7).join()
    assert times == {
        "initialization_timeout": 35,
        "heartbeat_timeout_seconds": 7,
        "shutdown_timeout_seconds": 7,
        "coordinator_bind_address": "[::1]:1",
    }


class Store:
    """jax's store of keys and values, in which a value appears after some attempts."""

    def __init__(self, waits: int) -> None:
        self.waits, self.values, self.barriers = waits, {}, []

    def key_value_set_bytes(self, key, value):
        self.values[key] = value

    def blocking_key_value_get_bytes(self, key, milliseconds):
        assert milliseconds <= 1000  # signals are handled in between
        if self.waits:
            self.waits -= 1
            raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: GetKeyValue() timed out")
        return b"a text"

    def key_value_dir_get_bytes(self, folder):
        return [(key, v) for key, v in self.values.items() if key.startswith(f"{folder}/")]

    def key_value_delete(self, key):
        self.values = {
            k: v for k, v in self.values.items() if k != key and k[: len(key) + 1] != f"{key}/"
        }

    def wait_at_barrier(self, name, timeout_in_ms):
        self.barriers.append((name, dict(self.values)))


def test_a_broadcast_waits_for_process_0_and_leaves_nothing_behind(monkeypatch):
    from jax._src import distributed

    assert ALONE.broadcast(b"alone") == b"alone"
    store = Store(waits=2)
    monkeypatch.setattr(distributed.global_state, "client", store)
    assert Processes("h:1", 2, 0).broadcast(b"a text") == b"a text"
    ((_, values),) = store.barriers  # the others have read it when they reach the barrier
    assert list(values.values()) == [b"a text"]
    assert store.values == {}
    assert Processes("h:1", 2, 1).broadcast() == b"a text"
    assert store.waits == 0


def test_a_process_hears_the_values_of_all_by_their_numbers(monkeypatch):
    from jax._src import distributed

    class Peers(Store):
        def wait_at_barrier(self, name, timeout_in_ms):
            (folder,) = {key.rpartition("/")[0] for key in self.values}
            self.values = {
                f"{folder}/{i}": b'["peer", %d]' % i for i in (2, 10, 1, *range(3, 10))
            } | self.values

    store = Peers(waits=0)
    monkeypatch.setattr(distributed.global_state, "client", store)
    told = Processes("h:1", 11, 0).gather({"own": "ü"})
    assert told == [{"own": "ü"}, *(["peer", i] for i in range(1, 11))]
    assert store.values == {}
