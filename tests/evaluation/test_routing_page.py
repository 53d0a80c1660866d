"""What the report shows of the router: languages in order, maps, tables."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from gshard_nmt.decoding.expert_use import ExpertUse
from gshard_nmt.evaluation import routing_page
from gshard_nmt.evaluation.routing import RouterMap
from gshard_nmt.evaluation.texts import translations
from gshard_nmt.run.folder import RunFolder


def use_of(directions: int, layers=("encoder_1", "decoder_1"), experts=4, origin="step 9"):
    rng = np.random.default_rng(0)
    chosen = rng.integers(50, 100, (len(layers), directions, 2, experts)).astype(float)
    chosen[:, :, 1] = chosen[:, :, 0]
    tokens = chosen[:, :, 0].sum(-1)
    lost = np.zeros((*tokens.shape, 2))
    lost[..., 0] = tokens / 4
    return ExpertUse(layers, tokens, chosen, chosen / 2, lost, np.arange(directions), origin)


def text_of(source: str, train_pairs: int, target: str = "en") -> translations.TestSet:
    return translations.TestSet(
        source, source, target, train_pairs, [f"a {source}"], [f"b {source}"]
    )


def test_the_language_with_most_training_pairs_is_counted_first():
    calls = []

    def count(workdir, tests, checkpoint):
        calls.append((workdir, tests, checkpoint))
        return use_of(3)

    tests = [text_of("br", 5), text_of("fr", 90), text_of("de", 70)]
    section = routing_page.study(RunFolder(Path("run")), tests, count, "last")
    ((workdir, texts, checkpoint),) = calls
    assert (workdir, checkpoint) == (Path("run"), "last")
    assert texts[0] == ("fr", "en", ["a fr"], ["b fr"])
    assert section.name == "routing"
    assert section.data["directions"] == ["fr", "de", "br"]


def test_a_dense_run_among_several_has_a_note(tmp_path):
    runs = []
    for name, experts in (("small", 4), ("dense", 0), ("large", 4)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.gin").write_text(f"Model.experts = {experts}\n")
        runs.append((name, RunFolder(tmp_path / name), [text_of("fr", 5), text_of("de", 3)]))
    use = use_of(2)
    use.chosen[1, :, :, 3] = 0
    parts = routing_page.sections(runs, lambda *_: use, "best")
    assert [part.name for part in parts] == ["routing", "routing of dense", "routing of large"]
    assert [part.title.partition(": ")[2] for part in parts] == ["small", "dense", "large"]
    assert parts[1].html == "<p>dense is a dense model, so it has no router.</p>"
    assert parts[1].data is None
    alarm = "decoder_1: 1 of 4 experts get almost no token (3)"
    assert [part.alarms for part in parts] == [(alarm,), (), (f"large, {alarm}",)]


@pytest.mark.parametrize(
    ("tests", "names"),
    [
        ([text_of("fr", 1), text_of("de", 1)], ["fr", "de"]),
        ([text_of("en", 1, "fr"), text_of("en", 1, "de")], ["fr", "de"]),
        ([text_of("en", 1, "fr"), text_of("fr", 1)], ["en-fr", "fr-en"]),
        ([text_of("fr", 1)], ["fr"]),
    ],
)
def test_a_direction_has_the_name_of_the_language_that_differs(tests, names):
    assert routing_page.direction_names(tests) == names


def test_the_page_has_a_map_and_a_row_for_each_layer_and_language():
    section = routing_page.section(RouterMap(use_of(2, origin="step <9>"), ["fr", "de"]))
    assert section.html.count("<img ") == 1
    assert "step &lt;9&gt;" in section.html
    rows = re.findall(r"<tr><th>([^<]+)</th>((?:<td>[^<]*</td>)+)</tr>", section.html)
    assert [name for name, _ in rows] == ["encoder 1", "decoder 1", "fr", "de"]
    cells = {name: re.findall(r"<td>([^<]*)</td>", columns) for name, columns in rows}
    assert cells["decoder 1"][-2:] == ["25.0 %", "0.0 %"]
    tokens = int(section.data["tokens"][0][0]), int(section.data["tokens"][1][0])
    assert cells["fr"][:2] == [f"{max(tokens):,}", "0"]
    assert cells["fr"][-1] == f"de ({section.data['distance'][0][1]:.3f})"
    assert section.alarms == ()
    assert "so do not rely on them" not in section.html


def test_the_page_says_if_the_text_is_too_short_to_tell_languages_apart():
    use = use_of(4)
    use.tokens[:] = 20
    assert "so do not rely on them" in routing_page.section(RouterMap(use, list("abcd"))).html


def test_the_color_of_a_map_is_the_share():
    shares = np.zeros((2, 2, 2))
    shares[0, 0, 1] = shares[0, 1, 0] = shares[1, :, 0] = 1.0
    image = imread(
        io.BytesIO(routing_page.draw_maps(shares, ["encoder_1", "decoder_1"], ["a", "b"]))
    )
    height, width, _ = image.shape
    assert width == 1350
    is_dark = image[:, :, :3].sum(-1) < 1
    # Each map is about half as wide as the figure. Its row and column are read near the middle of a cell.
    top, bottom = int(height * 0.35), int(height * 0.55)
    first = [is_dark[row, int(width * x)] for row in (top, bottom) for x in (0.19, 0.39)]
    second = [is_dark[row, int(width * x)] for row in (top, bottom) for x in (0.61, 0.80)]
    assert first == [False, True, True, False]
    assert second == [True, False, True, False]


def test_a_hundred_languages_fit():
    shares = np.full((1, 100, 64), 1 / 64)
    names = [f"l{i}" for i in range(100)]
    image = imread(io.BytesIO(routing_page.draw_maps(shares, ["encoder_1"], names)))
    # A language has 0.075 inches.
    assert 1100 < image.shape[0] < 1300
