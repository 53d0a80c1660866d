"""docs/paper_tables.md: its lines, its contradictions, and the examples at the papers' sizes."""

import math
import re

import conformer
import pytest
import trainer
import unet3d

from gshard_nmt.spmd.topology import Topology
from scripts import paper_facts, paper_rows, paper_tables
from scripts.paper_layers import OPERATORS, STRATEGIES, links_lines
from scripts.paper_rows import EXAMPLES, ROWS

TEXT = paper_tables.PAGE.read_text()


def test_every_row_has_its_lines_on_the_page():
    places = [(section, key) for row in ROWS for section, key, _ in row.fills]
    places += [("GShard table 4", name) for name, *_ in OPERATORS]
    places += [("Switch Figure 9", name) for name in STRATEGIES]
    for section, key in places:
        assert paper_tables.fill(TEXT, section, key, {}) == TEXT
    with pytest.raises(SystemExit, match="'GSPMD table 5' has no row"):
        paper_tables.fill(TEXT, "GSPMD table 5", "9 | GPipe", {})


def test_new_figures_change_their_cells_only(tmp_path):
    row = next(row for row in EXAMPLES if row.name == "unet3d_1x2")
    ((section, key, cells),) = row.fills
    kinds = zip(("collective-permute", "all-reduce", "all-gather"), (3, 2, 0), strict=True)
    figures = {"peak_bytes": 2**34, "seconds": 1.25, "flops": 3e13, "recomputed_flops": 1e13}
    figures["collectives"] = {kind: {"bytes": mib * 2**20} for kind, mib in kinds}
    page = tmp_path / "page.md"
    page.write_text(TEXT)
    paper_tables.rewrite(page, [(section, key, cells(figures))])
    changed = set(page.read_text().split("\n")) - set(TEXT.split("\n"))
    # One more of the printed steps is predicted well then.
    assert {text for text in changed if not text.startswith("- steps: 44 are printed; 23 ")} == {
        "| 1x2 | 128 | 4 | 14.8 | 16.0 | 1.56 | 1.25 | 41.9 | 20.0 | 3 | 2 | 0 |"
    }


def test_the_page_has_today_s_links_and_facts_and_every_contradiction_with_a_reason():
    page = TEXT
    for line in links_lines():
        page = paper_tables.fill(page, *line)
    assert paper_tables.with_facts(paper_tables.with_contradictions(page)) == TEXT
    table, words = TEXT.split("\n## Contradictions")[1].split("\n\n- ", 1)
    names = [line.split(" | ")[0][2:] for line in table.split("\n") if line.startswith("| ")][1:]
    assert {"dense_96l", "GSPMD table 4: 2 x 16 x 8, 16 x 64", "TFLOP of gspmd_hybrid_33b"} <= {
        *names
    }
    reasons = tuple(re.findall(r"^- (.+?): ", "- " + words, re.M))
    assert all(name.removeprefix("TFLOP of ").startswith(reasons) for name in names)


def test_facts_follow_the_tables():
    """A pipeline that becomes the slowest is last in the order, and no longer the fastest that fits."""
    line = next(x for x in TEXT.split("\n") if x.startswith("| 2 x 16 x 8 | 16 x 64 |"))
    cells = line.split(" | ")
    page = TEXT.replace(line, " | ".join([*cells[:5], "99.9", *cells[6:]]))
    order, ratio = (text for name, text in paper_facts.facts(page) if "fastest" in name)
    assert re.fullmatch(r"printed \[3, 2, 4, 5, 1\], predicted \[.*, 1\]", order)
    assert re.fullmatch(r"printed 1.24, .*(?<!2 x 16 x 8, 16 x 64)", ratio)


def test_bubbles_are_counted_in_the_compiled_loop():
    counts = (("stage", 39), ("stage", 39), ("stage", 1), ("data", 70))
    sent = [{"mesh_axes": [axis], "count": count} for axis, count in counts]
    figures = {
        "estimated_step_seconds": 20.0,
        "directions": {"recomputed": {"attention": {"seconds": 5.0}}},
        "collectives": [{"kind": "collective-permute", "sources": sent}],
        "per_device": {"peak_bytes": 2**34, "is_estimate": False},
        "fits": True,
    }
    assert paper_rows.pipeline(figures, useful=32) == {3: "16.0", 5: "20.0", 7: "17.9%", 9: "25.0%"}


def test_the_share_of_the_peak_is_that_of_products_of_a_kind():
    names = ("kind", "part", "direction", "flops", "seconds")
    parts = [
        ("attention", "query", "forward", 0.9 * paper_rows.V3_CORE_PEAK, 1.0),
        ("attention", "einsum", "forward", 0.6 * paper_rows.V3_CORE_PEAK, 2.0),
        ("attention", "Softmax", "forward", 0.0, 9.0),
        ("attention", "query", "backward", 1.0, 9.0),
    ]
    figures = {"parts": [dict(zip(names, part, strict=True)) for part in parts]}
    kinds = ("attention: weights", "attention: activations", "attention")
    assert [paper_rows.peak_share(figures, kind) for kind in kinds] == ["90%", "30%", "50%"]


def test_growth_is_within_what_the_page_claims():
    """From 8 to 2,048 cores: at most 1 % more instructions and 5 % more memory."""
    section = TEXT.split("\n## From 8 cores")[1].split("\n## ")[0]
    lines = [line.split(" | ") for line in section.split("\n") if line.startswith("| ")]
    for name, bound in (("instructions", 1.01), ("GiB a core", 1.05)):
        first, last = (float(lines[i][lines[0].index(name)].replace(",", "")) for i in (1, -1))
        assert last / first <= bound


@pytest.mark.parametrize("row", EXAMPLES[::2], ids=lambda row: row.name)
def test_the_model_of_an_example_divides_over_its_machine(row, monkeypatch):
    calls = []
    monkeypatch.setattr(trainer, "compile_for", lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(trainer, "_show", lambda *_: None)
    program, *flags = row.command
    main = {"examples/conformer.py": conformer.main, "examples/unet3d.py": unet3d.main}[program]
    assert main(flags) == 0
    ((model, mesh, topology),) = calls
    assert mesh.num_devices == Topology.parse(topology).num_devices
    if row.name.startswith("conformer"):
        # GSPMD counts billions in units of 2 ** 30.
        printed = {"conformer_32_64": 6.47, "conformer_64_128": 12.95}[row.name]
        weights = sum(math.prod(weight.shape) for weight in model.weights.values())
        assert weights / 2**30 == pytest.approx(printed, rel=2e-3)
