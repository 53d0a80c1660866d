"""A compiled program: its collectives, and the memory that it needs against the memory that there is."""

import types

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.spmd import program
from gshard_nmt.spmd.lowering import Signature
from gshard_nmt.spmd.program import DECODING, ProgramMemory, check_fits

GIB = 2**30
NEEDED = ProgramMemory(arguments=GIB, temporaries=2 * GIB, outputs=0, code=GIB // 2)


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
    check_fits(ProgramMemory(1, 1, 1, 1), cpu, local_devices=2)


def test_a_compiled_program_tells_its_memory():
    import jax
    import jax.numpy as jnp

    x = jnp.zeros((256, 256), jnp.float32)
    executable = jax.jit(lambda x: x @ x + x, donate_argnums=0).lower(x).compile()
    memory = program.Program(Signature((), ()), executable, 0.0, 0.0).memory()
    assert memory.arguments == x.nbytes
    # The result takes over the memory of the argument.
    assert memory.outputs == 0
    assert memory.total >= x.nbytes


def test_an_asynchronous_collective_is_counted_once():
    text = """
  %all-reduce-start.1 = f32[4]{0} all-reduce-start(%a), to_apply=%add
  %all-reduce-done.1 = f32[4]{0} all-reduce-done(%all-reduce-start.1)
  %all-to-all.2 = (f32[4], /*index=5*/f32[4]) all-to-all(%b, %b), dimensions={0}
"""
    executable = types.SimpleNamespace(as_text=lambda: text)
    counts = program.Program(Signature((), ()), executable, 0.0, 0.0).collectives()
    assert {kind: n for kind, n in counts.items() if n} == {"all-reduce": 1, "all-to-all": 1}
