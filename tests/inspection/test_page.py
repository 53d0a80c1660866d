"""The page is read as a browser reads it: sections, tables, and the exact values of their cells."""

import dataclasses
import html.parser

import pytest

from gshard_nmt.inspection import figures
from gshard_nmt.inspection.page import write_page
from gshard_nmt.inspection.record import as_json
from gshard_nmt.spmd.topology import Topology


class Reader(html.parser.HTMLParser):
    """Reads a page. Each table is a list of rows, each row a list of (text, exact value) pairs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[tuple[str, str | None]]]] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.units: list[str] = []
        self.words = ""
        self._cell: tuple[str, str | None] | None = None
        self.feed(text)
        assert self.open == [], "an element is not closed"

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag not in ("meta", "img", "source"):
            self.open.append(tag)
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "a":
            self.links.append(values["href"])
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("th", "td"):
            self._cell = ("", values.get("data-value"))

    def handle_data(self, data):
        self.words += data
        if self._cell is not None:
            self._cell = (self._cell[0] + data, self._cell[1])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("th", "td"):
            self.tables[-1][-1].append(self._cell)
            self._cell = None

    def row(self, name: str, number: int = 0) -> list[str]:
        """Returns the texts of a row with this name; several tables may have one."""
        rows = [row for table in self.tables for row in table if row[0][0] == name]
        return [text for text, _ in rows[number]]

    @property
    def values(self) -> set[float]:
        """The exact values of all cells."""
        cells = (cell for table in self.tables for row in table for cell in row)
        return {float(value) for _, value in cells if value is not None}


@pytest.fixture
def read(monkeypatch, tmp_path):
    """Writes the page of inspections without its figures, which are slow to draw, and reads it."""
    monkeypatch.setattr(figures, "image", lambda *_: "<img alt='figure'>")

    def read(*inspections):
        write_page(inspections, 1e12, tmp_path / "page.html")
        return Reader((tmp_path / "page.html").read_text(encoding="utf-8"))

    return read


def test_the_contents_name_each_section(read, inspection, refused):
    page = read(inspection)
    assert page.ids == ["summary", "memory", "communication", "compute"]
    assert page.links == [f"#{name}" for name in page.ids]
    assert read(refused).ids == ["summary", "memory"]


def test_the_page_has_the_numbers_of_the_record(read, inspection):
    record = as_json(inspection)
    memory = record["per_device"]
    numbers = [record[f"parameters_{what}"] for what in ("total", "active_per_token", "per_device")]
    numbers += [record[name] for name in ("devices", "tokens_per_step", "program_instructions")]
    numbers += [record[name] for name in ("lower_seconds", "compile_seconds", "code_bytes")]
    numbers += [record["estimated_step_seconds"], record["roofline_seconds"]]
    numbers += [memory["peak_bytes"], memory["hbm_bytes"], *memory["by_category"].values()]
    for collective in record["collectives"]:
        numbers += [collective["count"], collective["bytes_per_device"]]
        for source in collective["sources"]:
            numbers += [source["count"], source["bytes_per_device"], source["group_size"]]
            numbers.append(source["seconds"])
    for work in record["work"].values():
        numbers += [work["flops"], work["seconds"], work["roofline_seconds"]]
    missing = set(map(float, numbers)) - read(inspection).values
    assert not missing


def test_a_column_has_one_unit(read, inspection):
    page = read(inspection)
    assert page.row("category") == ["category", "size (GiB)", "share of the peak (%)"]
    assert page.row("sharded weights") == ["sharded weights", "2.00", "33.3"]
    assert page.row("the device has") == ["the device has", "16.00", ""]
    assert page.row("kind of work")[1:3] == ["products (TFLOP)", "estimate (ms)"]
    assert page.row("experts") == ["experts", "6.00", "3,000.00", "1,500.00", "75.0"]


def test_the_memory_of_the_device_does_not_choose_the_unit(read, inspection):
    sizes = {name: size // 1024 for name, size in inspection.memory.by_category.items()}
    memory = dataclasses.replace(inspection.memory, peak=6 * 2**20, by_category=sizes)
    page = read(dataclasses.replace(inspection, memory=memory))
    assert page.row("category")[1] == "size (MiB)"
    assert page.row("the device has")[1] == "16,384.00"


def test_a_small_number_is_not_shown_as_zero(read, inspection):
    sizes = {**inspection.memory.by_category, "batch": 1000}
    small = dataclasses.replace(inspection.memory, by_category=sizes)
    page = read(dataclasses.replace(inspection, memory=small))
    assert page.row("batch") == ["batch", "< 0.01", "< 0.1"]
    assert page.row("optimizer") == ["optimizer", "0.00", "0.0"]


def test_topologies_are_columns_of_one_table(read, inspection, refused):
    larger = dataclasses.replace(
        inspection, topology=Topology.parse("v3:8x8"), notes=("another note",)
    )
    without = dataclasses.replace(refused, topology=Topology.parse("v3:4x4"))
    page = read(inspection, larger, without)
    assert page.row("topology") == ["topology", "v3:2x2", "v3:8x8", "v3:4x4"]
    assert page.row("devices") == ["devices", "8", "128", "32"]
    assert page.row("step (s)") == ["step (s)", "4.000", "4.000", "–"]
    assert page.row("peak") == ["peak", "6.00", "", "6.00", "", "20.00", ""]
    assert page.row("missing") == ["missing", *[""] * 4, "4.00", ""]
    # The program that was refused has no collectives.
    assert page.row("all-to-all") == ["all-to-all", "4", "4", "–"]
    assert page.row("all-to-all", 1) == ["all-to-all", *["4", "4.00", "1,000.00", "8"] * 2]
    assert "v3:8x8: note: another note" in page.words
    assert "v3:4x4: DOES NOT FIT: temporaries" in page.words
    assert "one training step does not fit" in page.words
    assert "memory of a device: +0.0% from 8 to 128 devices" in page.words


def test_unexpected_collectives_are_seen_at_the_top_and_explained_below(read, inspection):
    page = read(inspection)
    top, rest = page.words.split("What is in the memory", 1)
    assert "unexpected collectives: 1, see Communication" in top
    assert "no setting is known to remove it" in rest
    assert "setting to try: Mesh.overrides = {'decoder/gate'" in rest


def test_text_of_the_program_is_escaped(read, inspection):
    page = read(dataclasses.replace(inspection, config="a < b", notes=("<i>note</i>",)))
    assert "gathers <f32[64]>" in page.words
    assert "<i>note</i>" in page.words
    assert "a < b on v3:2x2" in page.words


def test_without_times_there_is_no_table_of_work(read, inspection):
    page = read(dataclasses.replace(inspection, topology=Topology.parse("cpu:8")))
    assert "times are predicted for TPUs and GPUs only" in page.words
    assert not [table for table in page.tables if table[0][0][0] == "kind of work"]


def test_the_page_has_its_figures_and_its_script_inside(inspection, tmp_path):
    write_page([inspection], 1e12, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("data:image/svg+xml;base64,") == 2
    assert "sortTable" in page
    assert "://" not in page.split("<body>")[1].split("<script>")[0]
