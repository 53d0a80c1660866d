"""gshard-import: a model of another system as a run folder."""

import dataclasses
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import gshard_nmt
from gshard_nmt import files, outputs
from gshard_nmt.data.config import Data
from gshard_nmt.data.text.vocabulary import PAD
from gshard_nmt.errors import UserError
from gshard_nmt.exchange import huggingface as hf
from gshard_nmt.exchange import huggingface_tokenizer as tokenizers
from gshard_nmt.exchange.huggingface_weights import Tensors, read_weights
from gshard_nmt.exchange.run_folders import Direction, chosen_directions, write_run
from gshard_nmt.model.config import Model
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.transformer import declare
from gshard_nmt.run.folder import IMPORTED, RUN_FORMAT
from gshard_nmt.settings.config import Config, Decode, Train
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.terminal import Terminal

LONGEST = 256
"""The most tokens of a sentence that is translated whole."""
_LENGTHS = (16, 64)


def import_model(
    source: Path, workdir: Path, languages: Sequence[str] = (), marian_positions: bool = False
) -> None:
    """Makes a run folder of a Hugging Face folder: its settings, vocabularies and weights.

    `languages` are the BCP 47 tags to translate between; empty means all of the model. With
    `marian_positions`, a model of Marian gets the sinusoids of Marian, with which it was trained.
    transformers has others: wavelength i of n is 10000 ** (i / n), and that of Marian
    10000 ** (i / (n - 1)). Raises UserError if a file is missing or damaged, the model has a part that
    ours does not have, or `workdir` is not empty.
    """
    outputs.check_new("--workdir", workdir)
    # The weights only pass through the host, so no accelerator is needed.
    os.environ["JAX_PLATFORMS"] = "cpu"
    contents = hf.read_config(source)
    model, tokenizer = hf.model_of(contents), tokenizers.read_tokenizer(source, contents)
    if marian_positions:
        if contents["model_type"] != "marian":
            raise UserError(
                f"--marian_positions is given, but --from {source} is a model of the type "
                f"{contents['model_type']!r}, whose positions are those of transformers. Leave it out."
            )
        model = dataclasses.replace(model, positions="sinusoidal")
    orders = tokenizer.orders
    directions = chosen_directions(tokenizer.directions, languages)
    generation = hf.read_generation(source, contents)
    config = _config(contents, model, generation.beam, directions)
    declared = declare(model, len(orders["source"].rows), len(orders["target"].rows))
    weights = read_weights(hf.Layout(contents, model, orders), Tensors(source), declared)
    with outputs.new_folder(workdir, "--workdir") as folder:
        facts: dict[str, Any] = {
            "format": RUN_FORMAT,
            "version": gshard_nmt.__version__,
            "direction": config.data.direction.replace("as-named", "all"),
            "pairs": [
                {
                    "source": source_tag,
                    "target": target_tag,
                    "language": "-".join(tag for tag in (source_tag, target_tag) if tag != "en")
                    or "en",
                    **dict.fromkeys(("train_pairs", "dev_pairs", "test_pairs"), 0),
                }
                for source_tag, target_tag in directions
            ],
            "corpus_fingerprint": hashlib.sha256((source / hf.CONFIG).read_bytes()).hexdigest(),
        }
        # The search never writes PAD, what the folder says, and what is no token.
        order = orders["target"]
        banned = np.flatnonzero(np.isin(order.rows, list(generation.never))).tolist()
        facts["never"] = sorted({PAD, *order.never, *banned})
        # The model is exported with these.
        (folder / IMPORTED).mkdir()
        for name in (hf.CONFIG, hf.GENERATION, *tokenizers.TOKENIZER_FILES):
            if (source / name).is_file():
                files.write(folder / IMPORTED / name, (source / name).read_bytes())
        vocabularies = {side: order.model for side, order in orders.items()}
        write_run(folder, config, vocabularies, weights, facts)
    count = sum(array.size for array in weights.values())
    first = f"--lang {directions[0][0]} --target {directions[0][1]}"
    Terminal().print(
        f"{workdir}: a model of the type {contents['model_type']} with {count:,} weights and "
        f"{len(directions):,} directions; decode with gshard-decode --workdir {workdir} {first}"
    )


def _config(
    contents: dict[str, Any], model: Model, beam: int | None, directions: Sequence[Direction]
) -> Config:
    longest = min(contents.get("max_position_embeddings", LONGEST), LONGEST)
    sources, targets = map(set, zip(*directions, strict=True))
    has_both = {(target, source) for source, target in directions} == set(directions)
    english = "xx-en" if targets == {"en"} else "en-xx" if sources == {"en"} else ""
    data = Data(
        # Text to train it further must not need a direction that the model does not have.
        direction=english or ("all" if has_both else "as-named"),
        language_tags=contents["model_type"] != "marian",
        source_length=longest,
        target_length=longest,
    )
    lengths = (*(n for n in _LENGTHS if n < longest), longest)
    # transformers lets hypotheses end by the rule of fairseq.
    decode = Decode(source_lengths=lengths, expansion="fairseq", beam=beam or Decode.beam)
    # What is never written has a bias that must stay, and transformers does not train a bias either.
    train = Train(freeze=("output_bias",))
    return Config(model, Mesh(), data, Optimizer(), train, decode)
