"""The figures of the router's choices, against numbers that are known."""

import json
import math
import re

import numpy as np
import pytest

from gshard_nmt.decoding.expert_use import ExpertUse
from gshard_nmt.evaluation import routing
from gshard_nmt.evaluation.routing import RouterMap
from gshard_nmt.evaluation.texts import translations
from gshard_nmt.run.folder import RunFolder


def router(weight, tokens=1000, choices=1) -> RouterMap:
    """Returns the map of shares[layers, directions, E], as if all choices had equal weights."""
    shares = np.array(weight, float)
    counts = np.repeat(shares[:, :, np.newaxis] * tokens, choices, axis=2)
    layers, directions, _ = shares.shape
    use = ExpertUse(
        [f"decoder_{2 * i + 1}" for i in range(layers)],
        np.full((layers, directions), float(tokens)),
        counts,
        counts / choices,
        np.zeros((layers, directions, 2)),
        np.zeros(directions, int),
        "step 7",
    )
    return RouterMap(use, ["fr", "de", "zh", "sw", "br"][:directions])


def test_shares_sum_to_one_and_follow_the_counts():
    chosen = np.array([[[[3, 1, 0, 0], [0, 2, 2, 0]]]], float)
    weight = np.array([[[[2, 1, 0, 0], [0, 0.5, 0.5, 0]]]], float)
    lost = np.array([[[1, 2]]], float)
    use = ExpertUse(["encoder_1"], np.array([[4.0]]), chosen, weight, lost, np.zeros(1, int))
    figures = RouterMap(use, ["fr"])
    data = figures.data()
    choices = [data["first"][0][0], data["second"][0][0]]
    assert choices == [[0.75, 0.25, 0, 0], [0, 0.5, 0.5, 0]]
    assert figures.weight[0, 0].tolist() == [0.5, 0.375, 0.125, 0]
    assert figures.load[0].tolist() == [0.375, 0.375, 0.25, 0]
    assert figures.lost[0, 0].tolist() == [0.25, 0.5]
    assert figures.entropy[0, 0] == pytest.approx(0.5 + 0.375 * math.log2(8 / 3) + 0.375)


def test_languages_that_share_no_expert_are_one_bit_apart():
    figures = router([[[1, 0, 0, 0], [0, 1, 0, 0], [0.5, 0.5, 0, 0]]])
    expected = 1 - (0.75 * math.log2(4 / 3) + 0.25 * 2) + 0.5
    near = math.log2(4) * 0.25 + 0.75 * math.log2(4 / 3) - 0.5
    assert near != expected
    np.testing.assert_allclose(figures.distance, [[0, 1, near], [1, 0, near], [near, near, 0]])
    assert figures.nearest(0) == [2, 1]
    assert not figures.is_within_chance
    # The expert tells which language it is, except that a token of the third may be of any.
    assert figures.specialization[0] == pytest.approx(1 - 1 / 3)


def test_a_language_without_text_has_no_neighbor_and_is_nobodys():
    figures = router([[[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]])
    figures.use.tokens[:, 1] = 0
    figures.use.chosen[:, 1] = figures.use.weight[:, 1] = 0
    assert figures.nearest(1) == []
    assert figures.nearest(0) == [2]
    data = figures.data()
    assert data["distance"][0] == [0, None, 0]
    assert data["specialization"] == [0]
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_a_dead_expert_is_an_alarm():
    shares = [[[0.4, 0.3, 0.3 - 1e-4, 1e-4]] * 2, [[0.25] * 4] * 2]
    figures = router(shares)
    assert figures.dead_experts() == {"decoder_1": [3]}
    assert figures.alarms() == ["decoder_1: 1 of 4 experts get almost no token (3)"]
    assert figures.data()["dead_experts"] == {"decoder_1": [3]}


@pytest.mark.parametrize(
    ("share", "tokens"), [(0.01, 1000), (0.0, 300)], ids=["a small share", "too little text"]
)
def test_an_expert_is_not_called_dead_without_reason(share, tokens):
    shares = [[[0.4, 0.3, 0.3 - share, share]] * 2]
    assert router(shares, tokens).alarms() == []


def test_a_layer_whose_tokens_go_to_one_expert_has_collapsed():
    shares = [[[0.99, *[0.01 / 7] * 7]] * 2]
    assert router(shares).alarms() == [
        "decoder_1: few experts get most tokens (1.1 effective experts of 8)"
    ]
    assert router([[[0.3, 0.3, 0.3, *[0.02] * 5]] * 2]).alarms() == []


def test_what_chance_gives_is_what_samples_of_one_distribution_give():
    rng = np.random.default_rng(0)
    shares = np.array([0.3, 0.25, 0.2, 0.1, 0.1, 0.05])
    samples = rng.multinomial(500, shares, size=(40, 5)) / 500
    figures = router(samples, tokens=500)
    of_pairs = figures.distance[np.triu_indices(5, 1)]
    assert of_pairs.mean() == pytest.approx(figures.chance_distance, rel=0.15)
    assert figures.is_within_chance
    mean = figures.chance_specialization.mean()
    assert figures.specialization.mean() == pytest.approx(mean, rel=0.15)


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


def test_the_language_with_most_training_pairs_is_counted_first(tmp_path):
    calls = []

    def count(*arguments):
        calls.append(arguments)
        return use_of(3)

    (tmp_path / "config.gin").write_text("Model.experts = 4\n")
    tests = [text_of("br", 5), text_of("fr", 90), text_of("de", 70)]
    (section,) = routing.sections([("run", RunFolder(tmp_path), tests)], count, "last")
    ((workdir, texts, checkpoint),) = calls
    assert (workdir, checkpoint) == (tmp_path, "last")
    assert texts[0] == ("fr", "en", ["a fr"], ["b fr"])
    assert (section.name, section.title) == ("routing", "Which experts each language uses")
    assert section.data["directions"] == ["fr", "de", "br"]


def test_a_dense_run_among_several_has_a_note(tmp_path):
    runs = []
    for name, experts in (("small", 4), ("dense", 0), ("large", 4)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.gin").write_text(f"Model.experts = {experts}\n")
        runs.append((name, RunFolder(tmp_path / name), [text_of("fr", 5), text_of("de", 3)]))
    use = use_of(2)
    use.chosen[1, :, :, 3] = 0
    parts = routing.sections(runs, lambda *_: use, "best")
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
    assert routing.direction_names(tests) == names


def test_the_page_has_a_map_and_a_row_for_each_layer_and_language():
    router = RouterMap(use_of(2, origin="step <9>"), ["fr", "de"])
    page, data = routing.page_part(router), router.data()
    assert page.count("<img ") == 1
    assert "step &lt;9&gt;" in page
    rows = re.findall(r"<tr><th>([^<]+)</th>((?:<td>[^<]*</td>)+)</tr>", page)
    assert [name for name, _ in rows] == ["encoder 1", "decoder 1", "fr", "de"]
    cells = {name: re.findall(r"<td>([^<]*)</td>", columns) for name, columns in rows}
    assert cells["decoder 1"][-2:] == ["25.0 %", "0.0 %"]
    assert cells["fr"][:2] == [f"{max(int(layer[0]) for layer in data['tokens']):,}", "0"]
    assert cells["fr"][-1] == f"de ({data['distance'][0][1]:.3f})"
    assert "so do not rely on them" not in page


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
