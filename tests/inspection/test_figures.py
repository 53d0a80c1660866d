import base64
import dataclasses
import re
from xml.etree import ElementTree

from gshard_nmt.inspection import figures
from gshard_nmt.spmd.topology import Topology


def drawings(element: str) -> list[str]:
    """Returns the SVG files of an element, after a check that they are XML."""
    contents = [base64.b64decode(text) for text in re.findall(r"base64,([^\"]+)", element)]
    for content in contents:
        ElementTree.fromstring(content)
    return [content.decode() for content in contents]


def test_a_figure_has_a_light_and_a_dark_version(inspection, refused):
    larger = dataclasses.replace(inspection, topology=Topology.parse("v3:8x8"))
    element = figures.image(figures.growth, [inspection, larger, refused], "growth & more")
    dark, light = drawings(element)
    assert "#1d1f21" in dark
    assert "#1d1f21" not in light
    assert "growth &amp; more" in element


def labels_of(inspections) -> list[str]:
    return [axes.get_xlabel() for axes in figures.costs(inspections).axes]


def test_the_axes_have_units_that_suit_the_values(inspection, refused):
    assert labels_of([inspection]) == ["memory of one device (GiB)", "predicted step (s)"]
    on_cpu = dataclasses.replace(inspection, topology=Topology.parse("cpu:8"))
    assert labels_of([on_cpu])[1] == "collectives of a step (MiB)"
    assert labels_of([refused])[1] == "collectives of a step (B)"


def test_the_memory_of_the_device_is_drawn_if_the_bars_stay_visible(inspection):
    assert len(figures.costs([inspection]).axes[0].lines) == 1
    small = dataclasses.replace(
        inspection, memory=dataclasses.replace(inspection.memory, peak=2**20)
    )
    assert not figures.costs([small]).axes[0].lines
