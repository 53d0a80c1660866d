"""The benchmarks of training: every system does the same work, and the ratios are the right way round."""

import numpy as np
import pytest


def test_every_system_trains_on_the_same_tokens(load):
    workload = load("trainers.workload").Workload(cores=())
    source, target = (np.array(workload.sentences(side)) for side in ("source", "target"))
    assert source.shape == target.shape == (32, 64)
    assert workload.places == 32 * 128
    assert source.min() >= 16
    assert source.max() < 8000
    assert not np.array_equal(source, target)
    np.testing.assert_array_equal(source, np.array(workload.sentences("source")))


@pytest.mark.parametrize("losses", [[5.0, float("nan")], [5.0, 5.1]])
def test_a_system_that_does_not_train_is_no_system(load, losses):
    checked = load("trainers.workload").checked
    assert checked([5.0, 4.9]) == [5.0, 4.9]
    with pytest.raises(RuntimeError, match="the loss does not fall"):
        checked(losses)


@pytest.mark.parametrize("experts", [0, 8])
def test_our_config_has_the_sizes_of_the_workload(load, experts):
    ours = load("trainers.ours")
    workload = load("trainers.workload").Workload(cores=(), experts=experts, devices=2)
    config = ours.config_of(workload)
    model = config.model
    assert (model.experts, model.model_dim, model.hidden_dim, model.heads) == (
        experts,
        256,
        1024,
        8,
    )
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


@pytest.fixture
def measured(load):
    """Returns a function that makes the result of a measurement from seconds, two rounds each."""
    turns, rounds = load("harness.turns"), load("harness.rounds")

    def make(seconds, **facts):
        systems = {k: [turns.Turn(s, 1.5 * s) for s in v] for k, v in seconds.items()}
        own = {k: {"versions": {}} | facts.get(k.replace(" ", "_"), {}) for k in seconds}
        return rounds.Measured(systems, own)

    return make


def test_speeds_are_compared_with_the_peer_of_the_group(load, measured):
    training = load("training")
    ours, peer, peak = "gshard-nmt", training.NLLB, training.PEAK
    result = measured({ours: [1.0, 2.0], peer: [2.0, 6.0], peak: [0.5, 0.5]})
    result.facts[ours]["gflop"] = 100.0
    result.facts[peak]["gflop"] = 200.0
    text, figures = training.speeds("8 experts, float32", result, 1)
    rows = {row.split("|")[1].strip(): row.split("|")[2:] for row in text.splitlines()[2:]}
    assert [cell.strip() for cell in rows[ours]] == [
        *("3,072", "2,048 to 4,096", "2.50", "2.00 to 3.00", "1.50", "19%", ""),
    ]
    assert rows[peer][2].strip() == "1.00"
    assert set(rows) == {ours, peer}
    assert (figures[0].base, figures[0].ratio) == (f"8 experts, float32: {peer}", 2.5)
    alone, figures = training.speeds("8 experts, bfloat16", measured({ours: [1.0, 1.0]}), 1)
    assert [cell.strip() for cell in alone.splitlines()[2].split("|")[4:8]] == ["", "", "1.50", ""]
    assert figures[0].ratio is None


def test_each_system_is_compared_with_a_peer_of_its_group(load):
    training = load("training")
    for systems in training.GROUPS.values():
        bases = {system.base for system in systems.values()} - {""}
        assert len(bases) == 1
        assert bases <= set(systems)
        peer = systems[bases.pop()].workload
        for system in systems.values():
            if system.base:
                shared = {"experts", "precision"}
                assert all(system.workload.get(k) == peer.get(k) for k in shared)


def test_the_targets_are_the_right_way_round(load, measured):
    training = load("training")
    seconds = {
        "8 experts": [1.2, 1.2],
        "dense, hidden width 1,536": [1.0, 1.0],
        "8 experts, no dropout": [0.8, 0.8],
        "8 experts, 1 device": [1.6, 1.6],
        "8 experts, 8 devices": [2.0, 2.0],
    }
    assert set(seconds) == set(training.OWN)
    text, figures = training.ratios(measured(seconds))
    assert [round(figure.median, 2) for figure in figures] == [1.2, 1.5, 0.8, 1.5]
    assert [row.split("|")[4].strip() for row in text.splitlines()[2:]] == [
        *("at most 1.10", "at most 1.05", "at least 0.85", "at least 1.85"),
    ]


def test_growth_is_compared_with_the_first_size_and_drawn(load, measured):
    growth = load("growth")
    results = {}
    for name, axis in growth.AXES.items():
        sizes = list(axis.variants)
        result = measured({str(n): [0.1 * (i + 1)] * 3 for i, n in enumerate(sizes)})
        for i, facts in enumerate(result.facts.values()):
            facts |= {"gflop": 3.0, "memory": 2**20 * (i + 1)}
        results[name] = result
    text, figures = growth.rows(growth.AXES["experts"], results["experts"])
    last = [cell.strip() for cell in text.splitlines()[-1].split("|")[1:-1]]
    assert last == ["512", "200", "200 to 200", "4.00", "4.00 to 4.00", "1.5", "4"]
    by_name = {figure.name: figure for figure in figures}
    assert by_name["experts: 512"].ratio == pytest.approx(4.0)
    assert by_name["experts: 512"].base == "experts: 8"
    assert by_name["experts: 512, memory"].median == 4 * 2**20
    panels = growth.draw(results).axes
    assert [panel.get_xlabel() for panel in panels] == [a.title for a in growth.AXES.values()]
    np.testing.assert_allclose(panels[0].lines[0].get_ydata(), [1, 2, 3, 4])


def test_growth_keeps_the_tokens_of_a_batch(load):
    growth = load("growth")
    for axis in growth.AXES.values():
        for fields in axis.variants.values():
            workload = load("trainers.workload").Workload(cores=(), **growth.BASE | dict(fields))
            assert workload.rows * workload.length == growth.TOKENS
            load("trainers.ours").config_of(workload)


def test_the_processes_of_growth_share_the_cores(load, monkeypatch):
    growth = load("growth")
    monkeypatch.setattr(growth.environment, "cores", lambda: (3, 5))
    jobs = []
    monkeypatch.setattr(growth, "worker", lambda module, job, *_: jobs.append(job))
    for count in (1, 2, 4):
        growth.start("", {"devices": 4, "processes": count})
    assert [job.cores for job in jobs] == [(3, 5), (3,), (5,), (3,), (5,), (3,), (5,)]
    assert [job.process for job in jobs] == [0, 0, 1, 0, 1, 2, 3]
    assert len({job.port for job in jobs[3:]}) == 1
