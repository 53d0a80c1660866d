"""The figures of the router's choices, against numbers that are known."""

import json
import re

import numpy as np
import pytest

from gshard_nmt.decoding.expert_use import ExpertUse
from gshard_nmt.evaluation import routing
from gshard_nmt.evaluation.systems import Result
from gshard_nmt.run.folder import RunFolder
from tests.evaluation.made_systems import made_test


def router(weight, tokens=1000) -> ExpertUse:
    """Returns the use with shares[layers, directions, E], as if all choices had equal weights."""
    counts = np.array(weight, float) * tokens
    layers, directions, _ = counts.shape
    return ExpertUse(
        [f"decoder_{2 * i + 1}" for i in range(layers)],
        np.full((layers, directions), float(tokens)),
        counts,
        counts,
        np.zeros(directions, int),
        "step 7",
    )


def test_shares_sum_to_one_and_follow_the_counts():
    chosen, weight = np.array([[[3, 3, 2, 0]]], float), np.array([[[2, 1.5, 0.5, 0]]])
    use = ExpertUse(["encoder_1"], np.array([[4.0]]), chosen, weight, np.zeros(1, int))
    data = routing.data_of(use, ["fr"])
    assert data["weight"] == [[[0.5, 0.375, 0.125, 0]]]
    assert data["load"] == [[0.375, 0.375, 0.25, 0]]
    assert data["main_experts"] == [[[0]]]
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_the_fewest_experts_hold_half_of_a_language():
    shares = [[[0.1, 0.0, 0.8, 0.1], [0.25] * 4, [0.0] * 4, [0.2, 0.4, 0.06, 0.34]]]
    assert routing.main_experts(np.array(shares)) == [[[2], [0, 1], [], [1, 3]]]


def test_a_dead_expert_is_an_alarm():
    use = router([[[0.4, 0.3, 0.3 - 1e-4, 1e-4]] * 2, [[0.25] * 4] * 2])
    assert routing.alarms_of(use) == ["decoder_1: 1 of 4 experts get almost no token (3)"]
    assert routing.data_of(use, ["fr", "de"])["dead_experts"] == {"decoder_1": [3]}


@pytest.mark.parametrize(
    ("share", "tokens"), [(0.01, 1000), (0.0, 300)], ids=["a small share", "too little text"]
)
def test_an_expert_is_not_called_dead_without_reason(share, tokens):
    assert routing.alarms_of(router([[[0.4, 0.3, 0.3 - share, share]] * 2], tokens)) == []


def test_a_layer_whose_tokens_go_to_one_expert_has_collapsed():
    assert routing.alarms_of(router([[[0.99, *[0.01 / 7] * 7]] * 2])) == [
        "decoder_1: few experts get most tokens (1.1 effective experts of 8)"
    ]
    assert routing.alarms_of(router([[[0.3, 0.3, 0.3, *[0.02] * 5]] * 2])) == []


def use_of(directions: int, layers=("encoder_1", "decoder_1"), experts=4, origin="step 9"):
    chosen = 2.0 * np.random.default_rng(0).integers(50, 100, (len(layers), directions, experts))
    return ExpertUse(layers, chosen.sum(-1) / 2, chosen, chosen / 2, np.arange(directions), origin)


def test_the_section_has_the_directions_in_the_order_of_the_report(tmp_path):
    calls = []

    def count(*arguments):
        calls.append(arguments)
        return use_of(3)

    results = [Result(made_test(language, lines=1), 20.0) for language in ("fr", "de", "br")]
    section = routing.section(RunFolder(tmp_path), results, count, "last")
    ((workdir, texts, checkpoint),) = calls
    assert (workdir, checkpoint) == (tmp_path, "last")
    assert texts[0] == ("fr", "en", ["un 0"], ["one 0"])
    assert (section.name, section.title) == ("routing", "Which experts each language uses")
    assert section.data["directions"] == ["fr", "de", "br"]


def test_the_page_has_a_map_and_a_row_for_each_layer_and_language():
    use = use_of(2, origin="step <9>")
    page = routing.page_part(use, ["fr", "de"])
    assert page.count("<img ") == 1
    assert "step &lt;9&gt;" in page
    rows = re.findall(r"<tr><th>([^<]+)</th>((?:<td>[^<]*</td>)+)</tr>", page)
    assert [name for name, _ in rows] == ["encoder 1", "decoder 1", "fr", "de"]
    cells = {name: re.findall(r"<td>([^<]*)</td>", columns) for name, columns in rows}
    assert cells["fr"][:2] == [f"{int(max(use.tokens[:, 0])):,}", "0"]
    for cell, experts in zip(
        cells["fr"][2:], routing.data_of(use, ["fr"])["main_experts"], strict=True
    ):
        assert cell.split() == [str(number) for number in experts[0]]
    assert routing._named(range(6)) == "0 1 2 3 and 2 more"


@pytest.mark.parametrize(("layers", "directions", "experts"), [(2, 2, 2), (5, 100, 64)])
def test_each_layer_has_a_map_of_its_shares(layers, directions, experts):
    shares = np.random.default_rng(0).random((layers, directions, experts))
    names = [f"decoder_{i}" for i in range(layers)]
    figure = routing.draw_maps(shares, names, [f"l{i}" for i in range(directions)])
    maps = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in maps] == [name.replace("_", " ") for name in names]
    for axes, of_layer in zip(maps, shares, strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), of_layer)
    assert [text.get_text() for text in maps[0].get_yticklabels()][:2] == ["l0", "l1"]
