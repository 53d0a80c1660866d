"""Least times on the links of a torus, against what can be counted by hand."""

import dataclasses
import itertools

import numpy as np
import pytest

from gshard_nmt.inspection import links
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.topology import CHIPS, Topology

MIB = 2**20


def coordinates(topology: Topology) -> np.ndarray:
    """Chips row by row, the cores of a chip side by side."""
    chips = np.array(list(itertools.product(*map(range, topology.shape))))
    assert topology.chip is not None
    return np.repeat(chips, topology.chip.devices_per_chip, axis=0)


def seconds(kind: str, name: str, group=None, nbytes: int = 32 * MIB) -> float:
    topology = Topology.parse(name)
    assert topology.chip is not None
    group = range(topology.num_devices) if group is None else group
    placement = links.place(group, coordinates(topology), topology)
    return links.seconds(kind, nbytes, placement, topology.chip)


def test_an_all_to_all_grows_as_the_root_of_the_devices_and_an_all_reduce_does_not():
    """GShard section 5.3, Figure 9: O(sqrt(D)) and O(1)."""
    smaller, larger = (seconds("all-to-all", f"v3:{n}x{n}") for n in (8, 16))
    assert larger / smaller == pytest.approx(2.0)  # 4 times the devices
    smaller, larger = (seconds("all-reduce", f"v3:{n}x{n}") for n in (8, 16))
    assert larger / smaller == pytest.approx(1.0, abs=0.02)


def test_a_closed_ring_halves_the_way_and_doubles_the_links_at_its_ends():
    links_of_chip = CHIPS["v3"].link_bandwidth
    assert seconds("all-to-all", "v3:32x32", nbytes=8) == pytest.approx(16 * 32 / 8 / links_of_chip)
    assert seconds("all-to-all", "v3:16x16", nbytes=8) == pytest.approx(16 * 16 / 4 / links_of_chip)
    # Four links a chip on the closed torus; two at a corner of the open one.
    closed, opened = seconds("all-reduce", "v3:32x32"), seconds("all-reduce", "v3:16x16")
    assert opened / closed == pytest.approx(2.0, rel=0.01)


def test_a_part_of_a_slice_is_never_slower_than_the_whole():
    """Half the rows of a pod: half the chips, and the same rows to cross."""
    whole = seconds("all-to-all", "v3:32x32")
    assert seconds("all-to-all", "v3:32x32", range(1024)) == pytest.approx(whole)
    assert seconds("all-to-all", "v3:32x32", range(64)) == pytest.approx(whole)
    assert seconds("all-to-all", "v3:8x8", range(64)) < 1.01 * seconds("all-to-all", "v3:8x8")


def test_cores_of_one_chip_use_its_memory_and_cores_of_two_chips_a_link():
    chip = CHIPS["v3"]
    assert seconds("all-reduce", "v3:2x2", (0, 1)) == pytest.approx(32 * MIB / chip.hbm_bandwidth)
    # Both cores of the chip send to their partners on the other: half of each array, there and back.
    payload = 2 * 32 * MIB
    assert seconds("all-reduce", "v3:2x2", (0, 2)) == pytest.approx(payload / chip.link_bandwidth)


def test_without_an_order_a_mesh_has_the_devices_host_by_host():
    """Devices as jax lists them on libtpu's topologies, in the order of their coordinates."""
    first = links.by_host(Topology.parse("v3:4x4"))[:12].tolist()
    assert first == [*range(4), *range(8, 12), *range(4, 8)]
    assert links.by_host(Topology.parse("v4:4x4x8"))[:6].tolist() == [0, 1, 4, 5, 2, 3]
    assert links.by_host(Topology.parse("h100:16")).tolist() == [*range(16)]
    mesh, topology = Mesh(("x", "y"), (4, 8), {}), Topology.parse("v3:4x4")
    ordered = dataclasses.replace(mesh, device_order=tuple(links.by_host(topology).tolist()))
    for axis in "xy":
        placement = links.place_on(topology, mesh, axis)
        assert placement == links.place_on(topology, ordered, axis)
    assert placement != links.place_on(
        topology, dataclasses.replace(mesh, device_order="[32]"), "y"
    )


def test_gpus_of_a_host_use_nvlink_and_gpus_of_two_hosts_the_network():
    gpu = CHIPS["h100"]
    nbytes = 32 * MIB
    host, pair = range(8), (0, 8)
    assert seconds("all-reduce", "h100:16", host) == pytest.approx(
        2 * nbytes * 7 / 8 / gpu.link_bandwidth
    )
    assert seconds("all-gather", "h100:16", pair) == pytest.approx(
        nbytes / 2 / gpu.network_bandwidth
    )
    assert seconds("collective-permute", "h100:16", (0, 1)) == pytest.approx(
        nbytes / gpu.link_bandwidth
    )
    assert seconds("collective-permute", "h100:16", pair) == pytest.approx(
        nbytes / gpu.network_bandwidth
    )
    assert seconds("all-reduce", "h100:16", (3,)) == 0


def test_gpus_reduce_in_their_host_before_they_use_the_network():
    gpu = CHIPS["h100"]
    nbytes = 32 * MIB
    # Each GPU of a host sends an eighth, there and back; 7/8 of it goes to the other 7 hosts.
    assert seconds("all-reduce", "h100:64") == pytest.approx(
        2 * nbytes / 8 * 7 / 8 / gpu.network_bandwidth
    )
    # 56 of the 64 pieces of an all-to-all go to other hosts, and nothing makes them smaller.
    assert seconds("all-to-all", "h100:64") == pytest.approx(
        nbytes * 56 / 64 / gpu.network_bandwidth
    )
