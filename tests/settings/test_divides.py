"""Sizes that do not divide over the mesh: each is a problem, named by its setting if it has one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.errors import UserError
from gshard_nmt.run.arrays import step_functions, training_arrays
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.divides import check_can_decode, check_decoding, check_validation, problems
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.lowering import ArraySpec

DEMO = load_config("demo")


def names(config: Config, arrays=None, decoding: bool = False) -> list[str]:
    """The setting or array of each problem."""
    return [problem.text.partition(":")[0] for problem in problems(config, arrays or {}, decoding)]


def array(letters: str, *shape: int) -> ArraySpec:
    return ArraySpec(shape, np.dtype(np.float32), letters)


def test_the_tokens_of_a_group_divide_over_the_devices_that_share_it():
    mesh = {"axes": ("group", "member"), "shape": (2, 5), "rules": {"G": "group", "S": "member"}}
    config = DEMO.replace(model={"num_groups": 2}, mesh=mesh)
    source, target = [problem.text for problem in problems(config, {})]
    assert source.startswith(
        "Model.num_groups: dimension S has size 512, which does not divide over"
    )
    assert "['member']; the nearest legal sizes are 510 or 515." in source
    assert target.startswith("Model.num_groups: dimension S has size 384, which does not divide")


def test_the_demo_divides():
    assert names(DEMO, training_arrays(DEMO, step_functions(DEMO)), decoding=True) == []


@pytest.mark.parametrize(
    ("part", "values", "problem"),
    [
        # 32 rows of 48 tokens are 3 groups of 512 tokens, and 32 rows of 64 tokens are 4.
        ("model", {"num_groups": 0, "group_size": 512}, "groups of Data.target_length"),
        ("data", {"source_length": 50, "rows": 30}, "Data.rows and Data.source_length"),
        ("data", {"target_vocabulary": 801}, "Data.target_vocabulary (parameters/target_embedding)"),
        ("model", {"heads": 3}, "Model.heads (parameters/encoder/block/self_attention_0/query)"),
    ],
)  # fmt: skip
def test_a_size_that_does_not_divide_is_one_problem_that_names_its_setting(part, values, problem):
    rules = {"B": "x", "G": "x", "E": "x", "V": "x", "N": "x"}
    config = DEMO.replace(data={"rows": 32}, mesh={"shape": (2,), "rules": rules})
    config = config.replace(**{part: values})
    arrays = training_arrays(config, step_functions(config))
    assert names(config, arrays, decoding=True) == [problem]


@pytest.mark.parametrize(
    ("rows", "model", "problems_of"),
    [
        (16, {"num_groups": 16}, []),
        (8, {"num_groups": 16}, ["Data.rows"]),
        (16, {"num_groups": 8}, ["Model.num_groups"]),
        (16, {"num_groups": 8, "experts": 0}, []),
        # 16 rows of 64 and of 48 tokens are 16 and 12 groups of 64 tokens.
        (16, {"group_size": 64}, ["groups of Data.target_length"]),
    ],
)
def test_rows_and_groups_divide_into_equal_microbatches_on_every_device(rows, model, problems_of):
    mesh = {"shape": (4,), "rules": {"B": "x", "G": "x"}}
    config = DEMO.replace(data={"rows": rows}, model=model, mesh=mesh, train={"microbatches": 4})
    assert names(config) == problems_of
    for problem in problems(config, {}):
        assert "Train.microbatches = 4 equal parts on each of 4 shards. Use a" in problem.text
        assert "multiple of 16, such as " in problem.text


def test_gating_dropout_needs_groups_and_experts_with_a_common_divisor():
    config = DEMO.replace(
        mesh={"shape": (1,)}, model={"num_groups": 1, "experts": 8, "gating_dropout": 0.2}
    )
    (problem,) = problems(config, {})
    assert problem.text.startswith("Model.gating_dropout needs groups and experts that divide")
    assert names(config.replace(model={"num_groups": 4})) == []


def test_only_stacks_with_experts_have_groups():
    config = DEMO.replace(data={"rows": 4, "source_length": 63}, mesh={"shape": (1,)})
    assert names(config) == ["Data.rows and Data.source_length"]
    assert names(config.replace(model={"expert_stacks": "decoder"})) == []


def test_the_lengths_of_the_decoder_matter_only_to_models_that_decode():
    short = DEMO.replace(model={"positions": "learned", "max_positions": 63})
    assert names(short) == ["Data.source_length"]
    assert names(short.replace(model={"encoder_layers": 0})) == []
    config = short.replace(data={"source_length": 63, "target_length": 63})
    assert names(config, decoding=True) == ["Decode.source_lengths"]
    assert names(config, decoding=False) == []
    assert names(config.replace(model={"encoder_layers": 0}), decoding=True) == []


def test_an_override_of_the_wrong_rank_is_one_problem_for_all_its_arrays():
    config = DEMO.replace(mesh={"overrides": {"*/gate": ["x"]}})
    (problem,) = problems(config, {"a/gate": array("ME", 2, 2), "b/gate": array("ME", 2, 2)})
    assert problem.text.startswith("Mesh.overrides['*/gate'] is ['x'], but a/gate has the ")


def test_rows_of_the_decoder_that_do_not_divide_are_no_problem_because_they_are_rounded_up():
    config = DEMO.replace(decode={"rows": 33})
    assert names(config, decoding=True) == []
    check_validation(config)
    check_decoding(config, {})


SIZES = st.integers(1, 24)


@settings(deadline=None, max_examples=100)
@given(
    x=st.integers(1, 4),
    y=st.integers(1, 4),
    rows=SIZES,
    experts=st.integers(2, 24),
    groups=SIZES,
    hidden=SIZES,
)
def test_problems_are_those_of_direct_arithmetic(x, y, rows, experts, groups, hidden):
    mesh = {"axes": ("x", "y"), "shape": (x, y), "rules": {"B": "x", "G": "x", "E": "x", "H": "y"}}
    config = DEMO.replace(
        mesh=mesh,
        data={"rows": rows},
        model={"experts": experts, "num_groups": groups, "hidden_dim": hidden},
    )
    expected = {
        "Data.rows": rows % x,
        "Model.experts": experts % x,
        "Data.rows and Data.source_length": rows * config.data.source_length % groups,
        "Data.rows and Data.target_length": rows * config.data.target_length % groups,
        "Model.hidden_dim (w)": hidden % y,
    }
    sides = (config.data.source_length, config.data.target_length)
    expected["Model.num_groups"] = groups % x and any(rows * n % groups == 0 for n in sides)
    # The first array repeats the problems of the settings, which are not reported again.
    arrays = {"ids": array("BL", rows, 3), "w": array("EMH", experts, 5, hidden)}
    actual = names(config, arrays, decoding=True)
    assert len(actual) == len(set(actual))
    assert set(actual) == {name for name, remainder in expected.items() if remainder}


@given(x=st.integers(2, 9), size=st.integers(1, 60))
def test_the_nearest_sizes_divide(x, size):
    mesh = {"shape": (x,), "rules": {"B": "x"}}
    for problem in problems(DEMO.replace(mesh=mesh), {"a": array("B", size)}):
        if problem.text.startswith("a:"):
            for nearest in problem.cause.nearest_sizes:
                assert f" {nearest}" in problem.text
                assert nearest % x == 0
                assert abs(nearest - size) < x


def test_what_would_fail_at_the_first_validation_is_an_error_before_training():
    config = DEMO.replace(model={"encoder_layers": 0})
    with pytest.raises(UserError, match="encoder_layers is 0, and a language model has no"):
        check_validation(config)
    for off in ({"bleu_sentences": 0}, {"dev_every": 0}):
        check_validation(config.replace(train=off))
    check_validation(DEMO)


def test_what_no_mesh_can_mend_is_an_error_before_training_even_without_dev_bleu():
    config = DEMO.replace(
        train={"bleu_sentences": 0}, model={"positions": "learned", "max_positions": 63}
    )
    with pytest.raises(
        UserError, match=r"^Decode\.source_lengths: 64 tokens are more than Model\."
    ):
        check_can_decode(config)
    check_can_decode(config.replace(model={"encoder_layers": 0}))


def test_decoding_needs_weights_that_divide_and_not_the_batches_of_training():
    config = DEMO.replace(mesh={"shape": (4,)}, data={"rows": 33})
    check_decoding(config, {"w": array("EMH", 8, 5, 3)})
    with pytest.raises(UserError, match=r"^w: dimension E has size 6, which does not divide"):
        check_decoding(config, {"w": array("EMH", 6, 5, 3)})
