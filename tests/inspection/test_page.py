import dataclasses

from gshard_nmt.inspection.page import write_page
from gshard_nmt.spmd.topology import Topology


def test_the_page_holds_the_figure_the_report_and_every_collective(inspection, tmp_path):
    write_page([inspection], 1e12, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 1
    assert "4.0 billion parameters; one training step fits: 6.00 GiB on each of 8 devices" in page
    assert "predicted step 4.000 s" in page
    assert "Unexpected collectives" in page
    # What comes from the program is escaped.
    assert "gathers &lt;f32[64]&gt;" in page
    assert "<f32[64]>" not in page


def test_several_topologies_get_the_figure_of_growth(inspection, refused, tmp_path):
    larger = dataclasses.replace(inspection, topology=Topology.parse("v3:8x8"))
    write_page([inspection, larger, refused], 1e12, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 2
    assert "GROWTH with the number of devices" in page
    assert "one training step does not fit" in page


def test_without_times_the_bytes_of_the_collectives_are_drawn(inspection, tmp_path):
    on_cpu = dataclasses.replace(inspection, topology=Topology.parse("cpu:8"))
    write_page([on_cpu], 1e12, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "times are predicted for TPU topologies only" in page
    assert page.count("data:image/svg+xml;base64,") == 1
