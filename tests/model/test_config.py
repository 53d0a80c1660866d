"""The settings of the model: what is refused, and what the MoE layers are told."""

import dataclasses

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.model.config import Model
from gshard_nmt.model.gating import MoE

SMALL = Model(encoder_layers=4, decoder_layers=2, experts=4, num_groups=2)


def test_depth_must_be_a_whole_number_of_blocks():
    with pytest.raises(UserError) as error:
        dataclasses.replace(SMALL, encoder_layers=3)
    assert str(error.value) == (
        "Model.encoder_layers is 3; it must be a multiple of Model.moe_every = 2, the layers of a "
        "block. Use 4, for instance."
    )
    assert dataclasses.replace(SMALL, encoder_layers=3, experts=0).block_layers("encoder") == 1


def test_only_the_stack_with_experts_has_blocks_of_several_layers():
    model = dataclasses.replace(SMALL, expert_stacks="encoder", decoder_layers=3)
    assert [model.repeats(stack) for stack in ("encoder", "decoder")] == [2, 3]
    assert [model.has_experts(stack) for stack in ("encoder", "decoder")] == [True, False]
    with pytest.raises(UserError, match=r"Model\.decoder_layers is 3; it must be a multiple"):
        dataclasses.replace(model, expert_stacks="decoder")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"experts": 1},
         "Model.experts is 1; it must be at least 2, or 0. Choose 0 for a dense Transformer."),
        (
            {"expert_stacks": "encoder", "encoder_layers": 0},
            "Model.encoder_layers is 0 and Model.expert_stacks is 'encoder', so no layer has experts. "
            "Set Model.expert_stacks to 'decoder', or Model.experts to 0.",
        ),
        (
            {"model_dim": 65, "heads": 5, "positions": "vaswani"},
            "Model.model_dim is 65; with Model.positions 'vaswani' it must be even. Use 66, for "
            "instance.",
        ),
        (
            {"positions": "learned", "max_positions": 0},
            "Model.positions is 'learned', but Model.max_positions is 0. Set Model.max_positions to "
            "the number of tokens of the longest row.",
        ),
        ({"stack": "pipeline", "stages": 3, "experts": 0},
         "Model.stages is 3; it must divide the number of blocks of each stack. Use one of [1, 2]."),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(change, message):
    with pytest.raises(UserError) as error:
        dataclasses.replace(SMALL, **change)
    assert str(error.value) == message


def test_only_training_has_a_capacity_and_groups():
    policies = {"second_expert": "random", "eval_second_expert": "threshold"}
    model = dataclasses.replace(SMALL, capacity=3, group_size=4, **policies)
    training, evaluation = model.moe(training=True), model.moe(training=False)
    assert (evaluation.dispatch, evaluation.num_groups, evaluation.group_size) == ("blocks", 0, 0)
    assert (training.second_expert, training.slots(100)) == ("random", 3)
    assert (evaluation.second_expert, evaluation.slots(100)) == ("threshold", 100)


OTHER = {
    "routing": "switch",
    "second_expert": "none",
    "second_expert_threshold": 0.3,
    "capacity": 7,
    "capacity_factor": 1.5,
    "capacity_rounding": "down",
    "minimum_capacity": 2,
    "aux_loss_scale": "paper",
    "router_jitter": 0.1,
    "hidden_dim": 48,
    "num_groups": 3,
    "group_size": 5,
    "dispatch": "einsum",
    "activation": "geglu",
    "expert_dropout": 0.2,
    "biases": True,
    "expert_output_masking": 0.1,
    "gating_dropout": 0.3,
    "shared_expert_dim": 12,
}


def test_every_setting_of_the_experts_reaches_them():
    """Each setting has a value that is not the default, and arrives in `MoE`."""
    assert {field.name for field in dataclasses.fields(MoE)} == {*OTHER, "experts"}
    arrived = vars(dataclasses.replace(SMALL, **OTHER).moe(training=True))
    assert {name: arrived[name] for name in OTHER} == OTHER
    assert arrived["experts"] == 4
    wider = dataclasses.replace(SMALL, hidden_dim=48, expert_hidden_dim=96)
    assert wider.moe(training=True).hidden_dim == 96
