"""Records of inspections, made by hand."""

import dataclasses

import pytest

from gshard_nmt.inspection.causes import Reason
from gshard_nmt.inspection.communication import Source
from gshard_nmt.inspection.compute import Origin, Work
from gshard_nmt.inspection.memory import Memory
from gshard_nmt.inspection.program_cost import Compilation, Counts, Inspection
from gshard_nmt.spmd.topology import Topology

GIB = 2**30
EXPERTS = Origin("encoder 0 moe_0", "experts", "experts")
RECOMPUTED = dataclasses.replace(EXPERTS, direction="recomputed")
CATEGORIES = {
    "replicated_weights": 1 * GIB,
    "sharded_weights": 2 * GIB,
    "optimizer": 0,
    "batch": 0,
    "activations": 3 * GIB,
}


@pytest.fixture
def inspection() -> Inspection:
    """A step on 8 TPU v3 cores: 3 s of work, of which 1 s again, and 1 s of an all-to-all."""
    dispatch = Origin("encoder 0 moe_0", "dispatch", "dispatch and combine")
    gather = Origin("decoder 1 self_attention_0", "", "attention")
    return Inspection(
        config="demo",
        topology=Topology.parse("v3:2x2"),
        mesh={"x": 8},
        counts=Counts(4_000_000_000, 1_000_000_000, 600_000_000),
        compilation=Compilation(1.0, 20.0, 40.0, 5000),
        memory=Memory(3 * GIB, 3 * GIB, 2 * GIB, 2 * GIB, 1000, 6 * GIB, 16 * GIB, CATEGORIES),
        tokens_per_step=4096,
        sources=(
            Source(
                *("all-to-all", dispatch, "f32[8,16]", 2**20, 4, 8, ("x",), 1.0),
                Reason("sends tokens to their experts"),
            ),
            Source(
                *("all-gather", gather, "f32[64]", 2**10, 2, 8, ("x",), 0.0),
                Reason("gathers <f32[64]>", False, overrides={"decoder/gate": {"E": None}}),
            ),
        ),
        work={EXPERTS: Work(4e12, 1e9, 2.0, 1.0), RECOMPUTED: Work(2e12, 1e9, 1.0, 0.5)},
        overrides={"*": {"M": "x"}},
        notes=("a note",),
    )


@pytest.fixture
def refused(inspection) -> Inspection:
    """The same step, given up by the compiler."""
    return dataclasses.replace(
        inspection,
        compilation=Compilation(1.0, None, None, None),
        memory=Memory(*[None] * 5, 20 * GIB, 16 * GIB, CATEGORIES, is_estimate=True),
        sources=(),
        work={},
        does_not_fit=("DOES NOT FIT: temporaries",),
    )
