"""gshard-import: a model of another system as a run folder."""

import dataclasses
import hashlib
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import gshard_nmt
from gshard_nmt import files, outputs
from gshard_nmt.data.config import Data
from gshard_nmt.data.text.vocabulary import PAD
from gshard_nmt.exchange.foreign_vocabulary import Order
from gshard_nmt.exchange.huggingface import (
    CONFIG,
    GENERATION,
    Layout,
    model_of,
    read_config,
    read_generation,
)
from gshard_nmt.exchange.huggingface_tokenizer import (
    IMPORTED,
    TOKENIZER_FILES,
    own_tokenizer,
    read_tokenizer,
)
from gshard_nmt.exchange.huggingface_weights import Tensors, read_weights
from gshard_nmt.exchange.run_folders import check_new, chosen_directions, write_run
from gshard_nmt.model.config import Model
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.transformer import declare
from gshard_nmt.run.folder import RUN_FORMAT
from gshard_nmt.settings.config import Config, Decode, Train
from gshard_nmt.spmd.mesh import Mesh

LONGEST = 256
"""The most tokens of a sentence that is translated whole."""
_LENGTHS = (16, 64)


def import_model(source: Path, workdir: Path, languages: Sequence[str] = ()) -> None:
    """Makes a run folder of a Hugging Face folder: its settings, vocabularies and weights.

    Args:
      source: the folder with config.json, safetensors and the files of the tokenizer.
      workdir: the run folder to make.
      languages: BCP 47 tags of the languages to translate between; empty means all of the model.

    Raises:
      UserError: a file is missing or damaged, the model has a part that ours does not have, or `workdir`
        is not empty.
    """
    check_new("--workdir", workdir)
    # The weights only pass through the host, so no accelerator is needed.
    os.environ["JAX_PLATFORMS"] = "cpu"
    contents = read_config(source)
    model, own = model_of(contents), own_tokenizer(source)
    tokenizer = own or read_tokenizer(source, contents)
    orders = tokenizer.orders
    # A model that was trained here may write each of its tokens, and then it needs no bias.
    needs_bias = any(order.never for order in orders.values())
    model = dataclasses.replace(model, output_bias=needs_bias or own is None)
    directions = chosen_directions(tokenizer.directions, languages)
    generation = read_generation(source, contents)
    config = _config(contents, model, generation.beam)
    declared = declare(model, len(orders["source"].rows), len(orders["target"].rows))
    weights = read_weights(Layout(contents, model, orders), Tensors(source), declared)
    if generation.unused:
        sys.stderr.write(
            f"--from {source} has settings that change translations in transformers, and are not used "
            f"here: {', '.join(generation.unused)}.\n"
        )
    with outputs.new_folder(workdir) as folder:
        facts = _facts(config, directions)
        facts["corpus_fingerprint"] = hashlib.sha256((source / CONFIG).read_bytes()).hexdigest()
        if own is None:
            facts["never"] = _never(orders["target"], generation.never)
            # The model is exported with these.
            (folder / IMPORTED).mkdir()
            for name in (CONFIG, GENERATION, *TOKENIZER_FILES):
                if (source / name).is_file():
                    files.write(folder / IMPORTED / name, (source / name).read_bytes())
        vocabularies = {side: order.model for side, order in orders.items()}
        write_run(folder, config, vocabularies, weights, facts)
    count = sum(array.size for array in weights.values())
    first = f"--lang {directions[0][0]} --target {directions[0][1]}"
    Console(highlight=False, markup=False, soft_wrap=True).print(
        f"{workdir}: a model of the type {contents['model_type']} with {count:,} weights and "
        f"{len(directions):,} directions; decode with gshard-decode --workdir {workdir} {first}"
    )


def _never(order: Order, tokens: Collection[int]) -> list[int]:
    """Returns our ids that the search never writes: PAD, what the folder says, and what is no token."""
    return sorted({PAD, *order.never, *np.flatnonzero(np.isin(order.rows, list(tokens))).tolist()})


def _config(contents: dict[str, Any], model: Model, beam: int | None) -> Config:
    longest = min(contents.get("max_position_embeddings", LONGEST), LONGEST)
    data = Data(
        direction="all",
        language_tags=contents["model_type"] != "marian",
        source_length=longest,
        target_length=longest,
    )
    lengths = (*(n for n in _LENGTHS if n < longest), longest)
    # transformers lets hypotheses end by the rule of fairseq.
    decode = Decode(source_lengths=lengths, expansion="fairseq", beam=beam or Decode.beam)
    return Config(model, Mesh(), data, Optimizer(), Train(), decode)


def _facts(config: Config, directions: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Returns the content of data.json that is not the same for every run folder."""
    pairs = [
        {
            "source": source,
            "target": target,
            "language": "-".join(language for language in (source, target) if language != "en"),
            **dict.fromkeys(("train_pairs", "dev_pairs", "test_pairs"), 0),
        }
        for source, target in directions
    ]
    version = gshard_nmt.__version__
    return {
        "format": RUN_FORMAT,
        "version": version,
        "direction": config.data.direction,
        "pairs": pairs,
    }
