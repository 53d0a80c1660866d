"""docs/paper_tables.md names every figure that differs much from the printed one."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "paper_tables.md"


@pytest.fixture
def scripts(monkeypatch):
    """The modules of the page, which import each other from their own folder."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import paper_merge
    import paper_write

    return paper_write, paper_merge


def test_every_row_out_of_the_bounds_is_a_contradiction_and_has_a_reason(scripts):
    write, merge = scripts
    sections = merge.sections(PAGE.read_text())
    listed = [key for (key, *_) in sections["Contradictions"].rows]
    expected = [
        f"{prefix}{name}"
        for figure, prefix in (("step s", ""), ("TFLOP", "TFLOP of "))
        for name, printed, compiled in write.ratios(sections, figure)
        if not 0.8 <= compiled / printed <= 1.25
    ]
    assert listed == expected
    assert {"GSPMD table 4: 2 x 16 x 8, 16", "GSPMD table 8: 4x16, 256, 8"} <= set(listed)
    words = "\n".join(sections["Contradictions"].after)
    assert all(name.removeprefix("TFLOP of ") in words for name in listed)
