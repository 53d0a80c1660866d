"""The memory that a program needs, against the memory that there is."""

import types
from pathlib import Path

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.memory import (
    DECODING,
    ProgramMemory,
    check_fits,
    free_machine_memory,
    machine_memory,
    of_program,
)

GIB = 2**30
NEEDED = ProgramMemory(arguments=GIB, temporaries=2 * GIB, outputs=0, code=GIB // 2)
MEMINFO = "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n"


def machine(**files: str):
    """Returns a function that reads the files of a machine that has only these."""

    def read(path: Path) -> str:
        key = path.name.replace(".", "_")
        if key not in files:
            raise FileNotFoundError(path)
        return files[key]

    return read


def gpu(**stats: int):
    return types.SimpleNamespace(platform="gpu", memory_stats=lambda: stats)


def test_a_program_that_does_not_fit_is_refused_with_both_sizes():
    with pytest.raises(UserError) as caught:
        check_fits(NEEDED, gpu(bytes_limit=3 * GIB), local_devices=8)
    assert str(caught.value).startswith(
        "the training step needs 3.50 GiB on each device (1.00 GiB of arguments, 2.00 GiB of "
        "temporaries), 3.50 GiB in all; the memory of a device is 3.00 GiB. Lower Data.rows"
    )
    assert caught.value.settings == ("Data.rows", "Mesh.shape")


def test_a_batch_of_decoding_is_refused_with_the_settings_to_lower():
    with pytest.raises(UserError) as caught:
        check_fits(NEEDED, gpu(bytes_limit=4 * GIB), local_devices=1, work=DECODING, held=GIB)
    assert str(caught.value).startswith(
        "a batch of decoding needs 3.50 GiB on each device (1.00 GiB of arguments, 2.00 GiB of "
        "temporaries) beside 1.00 GiB of other arrays, 4.50 GiB in all; the memory of a device is 4.00 "
        "GiB. Lower the beam (--beam)"
    )
    assert caught.value.settings == ("Decode.beam", "Decode.rows", "Decode.source_lengths")
    check_fits(NEEDED, gpu(bytes_limit=5 * GIB), local_devices=1, work=DECODING, held=GIB)


def test_cpu_devices_share_the_memory_of_their_machine():
    cpu = types.SimpleNamespace(platform="cpu")
    # No machine has room for this program on a million devices.
    with pytest.raises(UserError, match="of this machine, for 1000000 CPU devices is"):
        check_fits(NEEDED, cpu, local_devices=1_000_000)
    tiny = ProgramMemory(1, 1, 1, 1)
    check_fits(tiny, cpu, local_devices=2)


def test_the_limit_of_a_container_counts():
    assert machine_memory(machine(meminfo=MEMINFO)) == 16 * GIB
    assert machine_memory(machine(meminfo=MEMINFO, memory_max="max\n")) == 16 * GIB
    assert machine_memory(machine(meminfo=MEMINFO, memory_max=f"{3 * GIB}\n")) == 3 * GIB
    assert machine_memory(machine(meminfo=MEMINFO, memory_limit_in_bytes=f"{GIB}\n")) == GIB
    assert machine_memory(machine()) == 2**62
    assert free_machine_memory(machine(meminfo=MEMINFO)) == 8 * GIB
    assert free_machine_memory(machine(meminfo=MEMINFO, memory_max=f"{GIB}\n")) == GIB


def test_a_compiled_program_tells_its_memory():
    import jax
    import jax.numpy as jnp

    x = jnp.zeros((256, 256), jnp.float32)
    executable = jax.jit(lambda x: x @ x + x, donate_argnums=0).lower(x).compile()
    memory = of_program(executable)
    assert memory.arguments == x.nbytes
    # The result takes over the memory of the argument.
    assert memory.outputs == 0
    assert memory.total >= x.nbytes
