"""The benchmarks of training: every system does the same work, and the ratios are the right way round."""

import numpy as np
import pytest

GROWN = (0.4, 0.88, 1.92, 4.0)  # seconds of 4, 8, 16 and 32 rows


def test_every_system_trains_on_the_same_tokens(load):
    workload = load("trainers.workload").Workload(cores=())
    source, target = (np.array(workload.sentences(side)) for side in ("source", "target"))
    assert source.shape == target.shape == (32, 64)
    assert workload.places == 32 * 128
    assert source.min() >= 16
    assert source.max() < 8000
    assert not np.array_equal(source, target)
    np.testing.assert_array_equal(source, np.array(workload.sentences("source")))


@pytest.mark.parametrize("experts", [0, 8])
def test_our_config_has_the_sizes_of_the_workload(load, experts):
    ours = load("trainers.ours")
    workload = load("trainers.workload").Workload(cores=(), experts=experts, devices=2)
    config = ours.config_of(workload)
    model = config.model
    sizes = model.experts, model.model_dim, model.hidden_dim, model.heads
    assert sizes == (experts, 256, 1024, 8)
    assert (model.encoder_layers, model.decoder_layers, model.heads * model.head_dim) == (4, 4, 256)
    assert (model.input_dropout, model.residual_dropout, model.attention_dropout) == (0.1,) * 3
    assert (model.second_expert, config.mesh.num_devices) == ("all", 2)
    batch = ours.batch_of(workload)
    from gshard_nmt.run.arrays import batch_specs

    assert {k: (v.shape, v.dtype) for k, v in batch.items()} == {
        k: (spec.shape, spec.dtype) for k, spec in batch_specs(config).items()
    }
    np.testing.assert_array_equal(batch["target_inputs"][:, 1:], batch["target_labels"][:, :-1])


def test_the_dense_model_of_equal_work_has_as_many_active_weights(load):
    training, ours = load("training"), load("trainers.ours")
    from gshard_nmt.run.arrays import step_functions

    def active(name):
        system = training.OWN[name]
        config = ours.config_of(load("trainers.workload").Workload(cores=(), **system.workload))
        declared = step_functions(config).declare_parameters()
        sizes = {k: np.prod(p.shape) for k, p in declared.items() if "embedding" not in k}
        experts = config.model.experts
        return sum(
            n * 2 / experts if experts and "E" in declared[k].letters else n
            for k, n in sizes.items()
        )

    assert active("8 experts") == pytest.approx(active("dense, hidden width 1,536"), rel=0.005)


def test_a_system_that_takes_half_the_time_is_twice_as_fast_as_its_peer(load):
    training, turns, rounds = load("training"), load("harness.turns"), load("harness.rounds")
    names = ("gshard-nmt", training.NLLB)
    systems = {k: [turns.Turn(s, s)] * 2 for k, s in zip(names, (2.0, 4.0), strict=True)}
    facts = {k: {"versions": {}} for k in systems}
    _, figures = training.speeds("8 experts, float32", rounds.Measured(systems, facts), 1)
    assert [figure.ratio for figure in figures] == [2, 1]


def test_the_targets_are_the_right_way_round(load):
    training, turns, rounds = load("training"), load("harness.turns"), load("harness.rounds")
    seconds = {
        "8 experts": [1.2, 1.2],
        "64 experts": [1.4, 1.4],
        "dense, hidden width 1,536": [1.0, 1.0],
        "8 experts, no dropout": [0.8, 0.8],
        "8 experts, 1 device": [1.6, 1.6],
        "8 experts, 8 devices": [2.0, 2.0],
        **{name: [s] * 2 for name, s in zip(training.GROWING.values(), GROWN, strict=True)},
    }
    assert set(seconds) == set(training.OWN)
    systems = {k: [turns.Turn(s, 1.5 * s) for s in v] for k, v in seconds.items()}
    own = {k: {"versions": {}} for k in seconds}
    text, figures = training.ratios(rounds.Measured(systems, own))
    assert [round(figure.median, 2) for figure in figures[:5]] == [1.2, 1.4, 1.5, 0.8, 1.5]
    assert [round(figure.median, 2) for figure in figures[5:]] == [1.1, 1.2, 1.25]
    assert [row.split("|")[4].strip() for row in text.splitlines()[2:7]] == [
        *("at most 1.05", "at most 1.15", "at most 1.05", "at least 0.9", "at least 1.85")
    ]
