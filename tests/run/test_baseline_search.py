"""The search for baselines: sizes by data, the order of the candidates, and the best of them."""

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.run.baseline_search import AS_CONFIG, Candidate, SearchSpace, best
from gshard_nmt.settings.gin_reader import load_config

SPACE = SearchSpace()
SHARED = ["shared"]


def run(space, pairs, vocabularies, score_of):
    """Returns the names of the candidates in the order in which the search trains them."""
    scores: dict[Candidate, float | None] = {}
    while candidate := space.proposal(pairs, vocabularies, scores):
        assert candidate not in scores
        scores[candidate] = score_of(candidate)
    assert len(scores) == space.length(pairs, vocabularies)
    return [candidate.name for candidate in scores], best(list(scores), scores).name


@pytest.mark.parametrize(
    ("pairs", "size", "other"),
    [
        *[(0, "small", None), (49_999, "small", None), (50_000, "small", "base")],
        *[(99_999, "small", "base"), (100_000, "base", "small"), (200_000, "base", None)],
        *[(1_000_000, "base", "big"), (2_000_000, "big", "base"), (4_000_000, "big", None)],
    ],
)
def test_the_size_follows_the_training_pairs_and_a_near_limit_adds_the_next_size(
    pairs, size, other
):
    assert (SPACE.size_of(pairs), SPACE.next_size(pairs)) == (size, other)


def test_each_stage_goes_on_with_the_best_of_the_stages_before():
    names, winner = run(
        SPACE,
        60_000,
        ["shared", "own"],
        lambda c: (c.dropout == 0.3) + 2 * (c.size == "base") - (c.vocabulary == "own"),
    )
    assert names == [
        "small-dropout0.1-shared",
        "small-dropout0.3-shared",
        "base-dropout0.3-shared",
        "base-dropout0.3-own",
    ]
    assert winner == "base-dropout0.3-shared"


def test_equal_scores_choose_the_first_and_no_score_comes_last():
    assert run(SPACE, 10, SHARED, lambda c: 7.0)[1] == "small-dropout0.1-shared"
    none_first = run(SPACE, 10, SHARED, lambda c: None if c.dropout == 0.1 else 0.0)
    assert none_first[1] == "small-dropout0.3-shared"


def test_without_dropouts_the_config_keeps_its_own():
    space = SearchSpace.parse("config", "")
    assert run(space, 10, SHARED, lambda c: 1.0) == (["config-shared"], "config-shared")
    demo = load_config("baseline")
    assert Candidate(AS_CONFIG, None, "shared").applied_to(demo) == demo


def test_a_candidate_changes_size_and_dropout():
    model = Candidate("base", 0.3, "shared").applied_to(load_config("demo")).model
    assert (model.encoder_layers, model.model_dim, model.experts) == (6, 512, 0)
    assert (model.input_dropout, model.residual_dropout, model.attention_dropout) == (0.3,) * 3


def test_big_is_the_config_that_ships():
    """The sizes of the papers have configs of their own; they must not differ."""
    for size in ("base", "big"):
        config = load_config(f"bilingual_{size}")
        assert Candidate(size, None, "shared").applied_to(config).model == config.model


@pytest.mark.parametrize(
    ("sizes", "dropouts", "message"),
    [
        ("smal:0", "0.1", "there is no size 'smal'; did you mean 'small'?"),
        ("small:0,base:x", "0.1", "'x' is not a number of training pairs"),
        ("small:5", "0.1", "must begin with 0 and rise"),
        ("small:0,base:0", "0.1", "must begin with 0 and rise"),
        ("small:0,small:9", "0.1", "each size has one number"),
        (
            "small",
            "0.1,x",
            "--dropouts 0.1,x: the rates must be different numbers from 0 to below 1",
        ),
        ("small", "1", "from 0 to below 1"),
        ("small", "0.1,0.1", "different numbers"),
    ],
)
def test_a_wrong_flag_says_what_is_allowed(sizes, dropouts, message):
    with pytest.raises(UserError) as error:
        SearchSpace.parse(sizes, dropouts)
    assert message in str(error.value)


def test_the_flags_are_read():
    space = SearchSpace.parse("small:0, base:500", "0, 0.25")
    assert (space.sizes, space.dropouts) == ((("small", 0), ("base", 500)), (0.0, 0.25))
