"""generation_config.json: what our search takes of it, and what it names as not used."""

import json

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.exchange.generation import GENERATION, read_generation

CONFIG = {"model_type": "marian", "eos_token_id": 0}


@pytest.mark.parametrize(
    ("content", "config", "never", "beam", "unused"),
    [
        (None, {}, set(), None, []),
        ({"bad_words_ids": [[50], [7, 8], [0]]}, {}, {50}, None, ["bad_words_ids with [7, 8]"]),
        ({"suppress_tokens": [3], "num_beams": None}, {}, {3}, None, []),
        # Older folders have no such file.
        (None, {"bad_words_ids": [[9]], "num_beams": 5, "length_penalty": 1.0}, {9}, 5, []),
        ({"num_beams": 2}, {"bad_words_ids": [[9]], "num_beams": 5}, {9}, 2, []),
        (
            {"length_penalty": 2.0, "early_stopping": True, "do_sample": False, "max_length": 200},
            {},
            set(),
            None,
            ["length_penalty = 2.0", "early_stopping = True"],
        ),
        ({"forced_eos_token_id": 0, "renormalize_logits": True}, {}, set(), None, []),
        (
            {"forced_eos_token_id": 4, "forced_bos_token_id": 5},
            {},
            set(),
            None,
            ["forced_eos_token_id = 4", "forced_bos_token_id = 5"],
        ),
        # The direction chooses the tag.
        ({"forced_bos_token_id": 5}, {"model_type": "m2m_100"}, set(), None, []),
        (
            None,
            {
                "model_type": "nllb-moe",
                "second_expert_policy": "random",
                "moe_eval_capacity_token_fraction": 0.5,
                "router_dtype": "float32",
            },
            set(),
            None,
            ["second_expert_policy = 'random'", "moe_eval_capacity_token_fraction = 0.5"],
        ),
    ],
)  # fmt: skip
def test_what_is_taken_and_what_is_not_used(tmp_path, content, config, never, beam, unused):
    if content is not None:
        (tmp_path / GENERATION).write_text(json.dumps(content))
    generation = read_generation(tmp_path, CONFIG | config)
    assert (generation.never, generation.beam, generation.unused) == (never, beam, unused)
    assert generation.content == (content or {})


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / GENERATION).write_text('{"bad_words_ids": [50]}')
    with pytest.raises(UserError, match=r"generation_config\.json is damaged: bad_words_ids\[0\]"):
        read_generation(tmp_path, CONFIG)
