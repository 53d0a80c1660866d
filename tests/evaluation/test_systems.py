"""The data of a comparison: order, means, thirds by resources, gaps."""

import dataclasses

import pytest

from gshard_nmt.evaluation import significance, systems
from gshard_nmt.evaluation.systems import Budget, Result, System
from tests.evaluation.made_systems import made_test, result_of, system_of
from tests.evaluation.run_folders import make_run
from tests.evaluation.sentences import noisy, sentences


@pytest.mark.parametrize(
    ("languages", "sizes"), [(2, None), (3, (1, 1, 1)), (4, (2, 1, 1)), (8, (3, 3, 2))]
)
def test_resources_are_thirds_and_the_first_groups_take_the_rest(languages, sizes):
    groups = systems.resource_groups(system_of("a", dict.fromkeys(range(languages), 30.0)))
    if sizes is None:
        assert groups == {}
        return
    assert tuple(len(group) for group in groups.values()) == sizes
    assert list(groups) == ["high", "middle", "low"]
    in_order = [direction for group in groups.values() for direction in group]
    assert in_order == [(f"l{n}", "en") for n in range(languages)]


def means(average):
    return average["bleu"], average["delta_bleu"]


def test_means_and_gaps_of_a_system_without_all_languages():
    main = system_of("a", {0: 30.0, 1: 40.0, 2: 50.0})
    other = system_of("b", {0: 35.0, 2: 51.0})
    there = result_of(0, 30.0)
    back = result_of(0, 20.0, test=dataclasses.replace(there.test, source="en", target="l0"))
    assert means(main.average()) == (40.0, 20.0)
    assert means(other.average()) == (43.0, 23.0)
    assert set(other.average([("l1", "en")]).values()) == {None}
    assert systems.missing_labels(main, other) == ["l1"]
    assert systems.labels([result_of(0, 1.0), back, result_of(1, 1.0)]) == ["l0-en", "en-l0", "l1"]
    of_both = systems.as_json([main, other])
    assert [part["missing"] for part in of_both] == [[], ["l1"]]
    middle = of_both[1]["resources"]["middle"]
    assert (middle["directions"], *means(middle)) == (0, None, None)


def test_the_intervals_of_means_know_that_languages_share_sentences():
    references = sentences(0, 60)
    sides = [noisy(references, 1, rate) for rate in (0.2, 0.5)]
    own, main = (significance.statistics(lines, [references], "en") for lines in sides)

    def average(groups):
        results = []
        for number, lines in enumerate(groups):
            test = dataclasses.replace(made_test(f"l{number}"), references=lines)
            of_main = Result(test, 40.0, statistics=main)
            results.append(
                result_of(number, 50.0 + number, test=test, statistics=own, main=of_main)
            )
        return System("a", results=results).average()

    shared = average([references] * 4)
    apart = average([[f"{text} {n}" for text in references] for n in range(4)])
    for name in ("bleu_ci95", "difference_ci95"):
        widths = [high - low for low, high in (shared[name], apart[name])]
        assert widths[0] > 1.3 * widths[1]
    # The gain has only the spread of its values, because the baselines have no counts.
    low, high = shared["delta_ci95"]
    assert (low, high) == pytest.approx((31.5 - 2.054, 31.5 + 2.054), abs=0.01)


def test_the_budget_of_a_run_is_that_of_its_files(tmp_path):
    config = (
        "Model.experts = 8\nModel.encoder_layers = 6\nModel.decoder_layers = 4\n"
        "Mesh.axes = ('x', 'y')\nMesh.shape = (2, 3)\n"
    )
    run = make_run(tmp_path / "run", config=config)
    budget = Budget.of(run)
    assert (budget.weights, budget.experts, budget.layers, budget.devices) == (5, 8, 10, 6)
    assert (budget.steps, budget.tokens, budget.batch_tokens) == (9, 900, 100)
    assert budget.days == 1
    assert budget.steps_per_second == pytest.approx(9 / 86400)
    assert budget.device_years == pytest.approx(6 / 365.25)
    (run.path / "budget.json").unlink()
    budget = Budget.of(run)  # there is no checkpoint, and no cost yet
    assert (budget.experts, budget.devices, budget.weights, budget.days) == (8, 6, None, None)
