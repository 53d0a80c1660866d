"""How transformers searches with a model: generation_config.json, and what of it our search takes."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gshard_nmt import json_shape
from gshard_nmt.errors import UserError
from gshard_nmt.json_shape import anything, fields, list_of, mapping_of, whole

GENERATION = "generation_config.json"

_SHAPE = fields(
    {},
    {
        "bad_words_ids": list_of(list_of(whole(), least=1)),
        "suppress_tokens": list_of(whole()),
        "num_beams": whole(1),
    },
)
_READ = ("bad_words_ids", "suppress_tokens", "num_beams")
_SETTLED = (
    *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"),
    *(
        "renormalize_logits",
        "use_cache",
        "transformers_version",
        "_from_model_config",
        "max_length",
    ),
)
"""Keys that the model and `Data.target_length` settle, or that change no translation."""


@dataclasses.dataclass(frozen=True)
class Generation:
    """What a folder says about the search.

    Attributes:
      content: the content of generation_config.json; {} if there is no such file.
      never: the tokens that are never written, as ids of the folder.
      beam: the size of the beam; None if the folder does not say.
      unused: the settings that our search does not have, such as "length_penalty = 2.0".
    """

    content: Mapping[str, Any]
    never: frozenset[int]
    beam: int | None
    unused: list[str]


def read_generation(folder: Path, config: Mapping[str, Any]) -> Generation:
    """Reads generation_config.json. Older folders have the same keys in config.json.

    Args:
      folder: the folder.
      config: the content of config.json.

    Raises:
      UserError: the file is damaged.
    """
    file, content = folder / GENERATION, {}
    remedy = "Copy the file again from where the model was published."
    if file.is_file():
        content = dict(json_shape.read(file, mapping_of(anything()), remedy))
    known = {key: config[key] for key in _READ if key in config}
    known |= {key: value for key, value in content.items() if value is not None}
    if problem := json_shape.problem(_SHAPE, known):
        raise UserError(f"{file} is damaged: {problem}. {remedy}")
    phrases = known.get("bad_words_ids", [])
    never = {token for phrase in phrases if len(phrase) == 1 for token in phrase}
    never |= set(known.get("suppress_tokens", []))
    return Generation(
        content,
        frozenset(never - {config["eos_token_id"]}),
        known.get("num_beams"),
        _unused_of_model(config)
        + [f"bad_words_ids with {phrase}" for phrase in phrases if len(phrase) > 1]
        + [f"{k} = {v}" for k, v in known.items() if v is not False and not _is_used(k, v, config)],
    )


def _is_used(key: str, value: object, config: Mapping[str, Any]) -> bool:
    """Returns whether our search does what a setting says."""
    if key == "forced_bos_token_id":
        # The direction chooses the tag that a translation begins with.
        return config["model_type"] != "marian"
    if key == "forced_eos_token_id":
        # A hypothesis that reaches the longest length ends with EOS.
        return value in (config["eos_token_id"], [config["eos_token_id"]])
    return key in (*_READ, *_SETTLED)


def _unused_of_model(config: Mapping[str, Any]) -> list[str]:
    """Returns the settings of NLLB-MoE in config.json that transformers uses and we do not."""
    if config["model_type"] != "nllb-moe":
        return []
    ours = {
        "second_expert_policy": "all",
        "moe_eval_capacity_token_fraction": 1.0,
        "router_dtype": "float32",
    }
    return [
        f"{key} = {config[key]!r}" for key, value in ours.items() if config.get(key, value) != value
    ]
