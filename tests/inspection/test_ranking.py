"""The ranking of meshes: it agrees with the papers, and says what to do if nothing fits."""

import dataclasses

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.inspection import ranking
from gshard_nmt.inspection.candidates import place_on
from gshard_nmt.inspection.ranking import Ranking
from gshard_nmt.run.arrays import step_functions, training_arrays, weight_specs
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.topology import Topology


def ranked(name: str, topology: str, *settings: str) -> Ranking:
    config = load_config(name, settings)
    functions = step_functions(config)
    arrays = training_arrays(config, functions)
    return ranking.rank(config, weight_specs(functions), arrays, Topology.parse(topology))


def seconds_of(result: Ranking, title: str) -> float:
    (candidate,) = (c for c in result.candidates if c.title == title)
    return candidate.prediction.step_seconds


@pytest.mark.parametrize(
    ("topology", "rows", "better", "worse"),
    [
        ("v3:4x8", 48, (16, 4), (4, 16)),  # 3.10 s and 3.56 s
        ("v3:8x8", 96, (16, 8), (8, 16)),  # 3.37 s and 3.43 s
        ("v3:8x16", 192, (32, 8), (8, 32)),  # 3.36 s and 5.71 s
    ],
)
def test_of_two_meshes_of_a_narrow_model_the_one_with_the_smaller_y_is_faster(
    topology, rows, better, worse
):
    """GSPMD section 5.1, Table 3."""
    result = ranked("gspmd_narrow_16b", topology, f"ROWS = {rows}")
    first, second = (seconds_of(result, f"data_tensor x={x} y={y}") for x, y in (better, worse))
    assert first < second
    # The best of all divide each layer over both axes, and one of them has the paper's better shape.
    best = [c for c in result.candidates if c.prediction.step_seconds < 1.01 * first]
    assert {c.name for c in best} == {"data_tensor", "data_tensor_attempt2"}
    assert better in [c.mesh.shape for c in best]


def test_a_wide_model_takes_the_papers_mesh_and_not_its_first_attempt():
    """GSPMD section 5.1, Tables 1 and 2: 64B on 8 x 16.

    The first attempt is slow, because its shards of weights are small. The second and the final one take
    about the same time, but the final one has less memory. 16 x 8 is as fast as 8 x 16.
    """
    result = ranked("gspmd_dense_64b", "v3:8x8")
    without_stages = [c for c in result.candidates if "stage" not in c.mesh.axes]
    assert {c.title for c in without_stages[:4]} == {
        f"data_tensor{attempt} x={x} y={y}"
        for attempt in ("", "_attempt2")
        for x, y in ((8, 16), (16, 8))
    }
    by_title = {c.title: c for c in result.candidates}
    first, second, final = (
        by_title[f"data_tensor{attempt} x=8 y=16"] for attempt in ("_attempt1", "_attempt2", "")
    )
    assert first.prediction.step_seconds > 1.4 * final.prediction.step_seconds
    assert final.prediction.step_seconds == pytest.approx(second.prediction.step_seconds, rel=0.02)
    assert first.memory > second.memory > final.memory


def test_of_the_meshes_of_a_pipeline_four_stages_are_faster_than_eight():
    """GSPMD section 5.2, Table 4: 22.2 s, 22.3 s, 23.4 s and 23.7 s.

    The formula does not see why the fifth mesh, 2 x 16 x 8, takes 24.0 s; see docs/inspect.md.
    """
    result = ranked("gspmd_narrow_16b_pipeline", "v3:8x16")
    printed = [(4, 16, 4, 32), (4, 16, 4, 16), (8, 16, 2, 32), (8, 8, 4, 32)]
    times = [
        seconds_of(result, f"pipeline_tensor stage={s} data={d} tensor={t} microbatches={n}")
        for s, d, t, n in printed
    ]
    assert times[0] < times[1] < min(times[2:])
    # The model's narrow layers need many rows a device, which only a pipeline has room for.
    assert result.candidates[0].name == "pipeline_tensor"


def test_a_pipeline_comes_with_the_settings_that_it_needs():
    config = load_config("gspmd_narrow_16b", [])
    result = ranked("gspmd_narrow_16b", "v3:8x8")
    best = next(c for c in result.candidates if "stage" in c.mesh.axes)
    assert best.title == "pipeline_tensor stage=8 tensor=16 microbatches=32"
    advised = load_config("gspmd_narrow_16b", ["\n".join(ranking.gin_lines(best))])
    assert advised == best.config(config)
    assert (advised.model.stack, advised.model.stages) == ("pipeline", 8)
    assert advised.train.microbatches == 32
    # A pipeline's config also gets meshes without stages. Its blocks are a loop there.
    pipelined = ranked("gspmd_narrow_16b_pipeline", "v3:8x16", "MICROBATCHES = 2")
    loop = next(c for c in pipelined.candidates if "stage" not in c.mesh.axes)
    assert ranking.gin_lines(loop)[-1] == "Model.stack = 'scan'"


@pytest.mark.parametrize(
    ("name", "topology", "shape"),
    [
        ("gspmd_hybrid_33b", "v3:4x4", (8, 4)),
        ("gspmd_hybrid_57b", "v3:8x8", (16, 8)),
        ("gspmd_hybrid_420b", "v3:16x16", (32, 16)),
    ],
)
def test_large_experts_take_the_papers_hybrid_mesh(name, topology, shape):
    """GSPMD Table 7."""
    best = ranked(name, topology).candidates[0]
    assert (best.name, tuple(best.mesh.shape)) == ("hybrid", shape)


@pytest.mark.parametrize(
    ("name", "topology", "title", "between"),
    [
        (
            *("gspmd_dense_64b", "v5p:4x4x4*2"),
            *("pipeline_tensor stage=8 tensor=16 microbatches=64", ["stage"]),
        ),
        ("gspmd_hybrid_33b", "v5e:4x4*2", "hybrid x=8 y=4", ["x"]),
    ],
)
def test_the_axis_of_the_rows_or_of_the_stages_goes_between_slices(name, topology, title, between):
    """The tensor axis sends activations in every layer, so it stays inside a slice.

    A deep dense model becomes a pipeline, because stages send the least (GSPMD section 3.3).
    """
    machine = Topology.parse(topology)
    best = ranked(name, topology).candidates[0]
    assert best.title == title
    crossing = [a for a in best.mesh.axes if place_on(machine, best.mesh, [a]).slices > 1]
    assert crossing == between
    assert "B" in {letter for letter, axes in best.mesh.rules.items() if between[0] in axes}


def test_many_experts_take_experts_over_all_devices_or_shard_the_other_weights_as_well():
    """GShard Table 1. See docs/inspect.md for the meshes that are a few percent faster by formula."""
    result = ranked("moe_2048e_36l", "v3:32x32")
    assert [c.title for c in result.candidates[:2]] == ["hybrid x=1024 y=2", "expert x=2048"]
    assert result.own is not None
    own = result.own.prediction.step_seconds
    assert own == pytest.approx(seconds_of(result, "expert x=2048"))
    assert own < 1.02 * result.candidates[0].prediction.step_seconds


def test_a_slice_without_a_mesh_that_fits_is_an_error():
    with pytest.raises(
        UserError,
        match="none of 113 meshes fits; the smallest, pipeline_tensor stage=8 tensor=4 micro",
    ):
        ranked("gspmd_dense_1t", "v3:4x4")
    with pytest.raises(UserError, match="--advise: none of 16 meshes of 32 devices divides"):
        ranked("demo", "v3:4x4", "Data.rows = 31", "Model.num_groups = 31")
    with pytest.raises(UserError, match="--advise: cpu:8 has no times"):
        ranked("demo", "cpu:8")


def test_the_report_has_the_best_mesh_why_and_settings_that_give_it(inspection):
    result = ranked("gspmd_narrow_16b", "v3:8x8")
    topology = Topology.parse("v3:8x8")
    assert result.own is not None
    slow = dataclasses.replace(inspection, work={})
    compiled = ranking.compiled_first(
        [(result.candidates[0], inspection), (result.own, slow), (result.candidates[1], slow)]
    )
    assert [candidate.title for candidate, _ in compiled][-1] == result.candidates[0].title
    text = ranking.report(result, compiled, "gspmd_narrow_16b", topology)
    assert text.startswith(
        "ADVICE for gspmd_narrow_16b on v3:8x8, 128 devices: of 218 meshes 89 divide and 69 fit by "
        "formula; 3 were compiled\n"
    )
    best = result.candidates[0]
    assert (
        f"3. {best.title}\n    By formula, its step is 4.9% shorter than with the config's mesh x=16 y=8 "
        "(149.15 ms more for all-reduce, 138.73 ms less for all-gather, 128.91 ms less for "
        "reduce-scatter). It needs 3.25 GiB of memory instead of 2.18 GiB.\n" in text
    )
    lines = ranking.gin_lines(best)
    assert "\n".join(f"    {line}" for line in lines) in text
    assert load_config("gspmd_narrow_16b", lines).mesh == best.mesh
    assert text.count("(does not fit)") == 0
    records = ranking.ranking_as_json(result)
    assert records[-1]["name"] == "the config's mesh"
    assert records[0]["gin"] == lines
