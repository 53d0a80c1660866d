import pytest

from gshard_nmt.evaluation.systems.budgets import budget_of, total_budget
from gshard_nmt.evaluation.systems.systems import Budget
from tests.evaluation.run_folders import make_run


def test_the_budget_of_a_run_is_that_of_its_files(tmp_path):
    config = (
        "Model.experts = 8\nModel.encoder_layers = 6\nModel.decoder_layers = 4\n"
        "Mesh.axes = ('x', 'y')\nMesh.shape = (2, 3)\n"
    )
    budget = budget_of(make_run(tmp_path / "run", config=config))
    assert (budget.weights, budget.experts, budget.layers, budget.devices) == (5, 8, 10, 6)
    assert (budget.steps, budget.tokens, budget.batch_tokens) == (9, 900, 100)
    assert budget.days == 1
    assert budget.steps_per_second == pytest.approx(9 / 86400)
    assert budget.device_years == pytest.approx(6 / 365.25)


def test_a_run_without_a_checkpoint_has_no_cost_yet(tmp_path):
    run = make_run(tmp_path / "run")
    (run.path / "budget.json").unlink()
    budget = budget_of(run)
    assert (budget.experts, budget.devices, budget.weights, budget.days) == (8, 1, None, None)


def test_a_sum_is_unknown_if_a_part_is():
    both = [Budget(weights=3, days=1.0), Budget(weights=4, days=None)]
    total = total_budget(both)
    assert (total.weights, total.days, total.experts) == (7, None, None)
    assert total_budget([]) == Budget()
