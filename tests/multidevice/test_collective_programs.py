"""Programs of collectives: they communicate as often as they say, and nothing is optimized away."""

import pytest

from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.collective_programs import MEASURED_KINDS, collective_program
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.program import count_collectives


@pytest.mark.parametrize("kind", MEASURED_KINDS)
def test_a_program_has_its_collectives_and_no_others(kind):
    devices = runtime.start(Mesh(("x",), (4,))).devices.devices.ravel()
    program = collective_program(kind, devices, nbytes=1000, times=3)
    counts = count_collectives(program.executable.as_text())
    assert {kind: n for kind, n in counts.items() if n} == {kind: 3}
    # 63 values for each of the 4 devices.
    assert program.nbytes == 1008
    shard = program.argument.addressable_shards[0].data.nbytes
    assert shard == (252 if kind == "all-gather" else 1008)
    program()
