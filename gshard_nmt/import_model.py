"""gshard-import: a model of another system as a run folder."""

import contextlib
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
from gshard_nmt.data.config import SMALLEST_VOCABULARY, Data
from gshard_nmt.data.language_codes import known_as
from gshard_nmt.data.sets.manifest import checksum
from gshard_nmt.data.text.vocabulary import PAD
from gshard_nmt.errors import UserError, did_you_mean
from gshard_nmt.exchange.foreign_vocabulary import Order
from gshard_nmt.exchange.generation import GENERATION, read_generation
from gshard_nmt.exchange.huggingface import CONFIG, Source, model_of, read_config
from gshard_nmt.exchange.huggingface_tokenizer import (
    IMPORTED,
    TOKENIZER_FILES,
    Tokenizer,
    read_tokenizer,
)
from gshard_nmt.exchange.huggingface_writer import own_tokenizer
from gshard_nmt.exchange.tensors import Tensors
from gshard_nmt.model.config import Model
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.transformer import declare
from gshard_nmt.run.checkpoint.checkpoint_writer import CheckpointWriter
from gshard_nmt.run.folder import RUN_FORMAT, RunFolder
from gshard_nmt.run.identity import hash_of_settings
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
    outputs.check_folder("--workdir", workdir, replaced=True)
    if workdir.exists() and any(workdir.iterdir()):
        raise UserError(f"--workdir {workdir} is not empty; give a new folder.")
    # The weights only pass through the host, so no accelerator is needed.
    os.environ["JAX_PLATFORMS"] = "cpu"
    contents = read_config(source)
    model, own = model_of(contents), own_tokenizer(source)
    tokenizer = own or read_tokenizer(source, contents)
    # A model that was trained here may write each of its tokens, and then it needs no bias.
    needs_bias = any(order.never for order in tokenizer.orders.values())
    model = dataclasses.replace(model, output_bias=needs_bias or own is None)
    directions = _chosen(tokenizer, languages)
    sizes = {side: len(order.rows) for side, order in tokenizer.orders.items()}
    generation = read_generation(source, contents)
    config = _config(contents, sizes, model, generation.beam)
    declared = declare(model, sizes["source"], sizes["target"])
    weights = Source(contents, model, Tensors(source), tokenizer.orders)
    arrays = {name: weights.weight(name, parameter) for name, parameter in declared.items()}
    _check_all_read(source, weights)
    if generation.unused:
        sys.stderr.write(
            f"--from {source} has settings that change translations in transformers, and are not used "
            f"here: {', '.join(generation.unused)}.\n"
        )
    with outputs.new_folder(workdir) as folder:
        run = RunFolder(folder)
        for side, order in tokenizer.orders.items():
            files.write(folder / f"{side}.model", order.model)
        run.write_text("config.gin", config.text)
        if own is None:
            _keep_files(source, folder / IMPORTED)
        facts = _facts(config, run, sizes, directions)
        if own is None:
            facts["never"] = _never(tokenizer.orders["target"], generation.never)
        facts["corpus_fingerprint"] = hashlib.sha256((source / CONFIG).read_bytes()).hexdigest()
        letters = {"parameters": {name: p.letters for name, p in declared.items()}}
        with contextlib.closing(
            CheckpointWriter(run.checkpoints, identity=facts["files"])
        ) as writer:
            writer.save(0, {"parameters": arrays}, letters, {})
        run.write_json("data.json", facts)
    _report(workdir, contents["model_type"], arrays, directions)


def _never(order: Order, tokens: Collection[int]) -> list[int]:
    """Returns our ids that the search never writes: PAD, what the folder says, and what is no token."""
    return sorted({PAD, *order.never, *np.flatnonzero(np.isin(order.rows, list(tokens))).tolist()})


def _keep_files(source: Path, folder: Path) -> None:
    """Copies the files that the model is exported with: settings and the tokenizer."""
    folder.mkdir()
    for name in (CONFIG, GENERATION, *TOKENIZER_FILES):
        if (source / name).is_file():
            files.write(folder / name, (source / name).read_bytes())


def _config(
    contents: dict[str, Any], sizes: dict[str, int], model: Model, beam: int | None
) -> Config:
    """Returns the settings of the run."""
    longest = min(contents.get("max_position_embeddings", LONGEST), LONGEST)
    lengths = [n for n in _LENGTHS if n < longest]
    data = Data(
        direction="all",
        # data.json has the true sizes, which may be smaller.
        source_vocabulary=max(sizes["source"], SMALLEST_VOCABULARY),
        target_vocabulary=max(sizes["target"], SMALLEST_VOCABULARY),
        language_tags=contents["model_type"] != "marian",
        source_length=longest,
        target_length=longest,
    )
    # transformers lets hypotheses end by the rule of fairseq.
    decode = Decode(
        source_lengths=(*lengths, longest), expansion="fairseq", beam=beam or Decode.beam
    )
    return Config(model, Mesh(), data, Optimizer(), Train(), decode)


def _chosen(tokenizer: Tokenizer, languages: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the directions between the chosen languages, or all.

    Raises:
      UserError: the model does not have a language, or no direction is left.
    """
    known = sorted({language for pair in tokenizer.directions for language in pair})
    languages = [known_as(code, known) or code for code in languages]
    for language in languages:
        if language not in known:
            raise UserError(
                f"--languages has {language}; this model has {', '.join(known)}"
                f"{did_you_mean(language, known)} Choose among these."
            )
    chosen = [pair for pair in tokenizer.directions if not languages or set(pair) <= set(languages)]
    if not chosen:
        raise UserError(
            f"--languages is {','.join(languages)}, and the model translates in no direction between "
            "them. Give the source and the target language."
        )
    return chosen


def _facts(
    config: Config, run: RunFolder, sizes: dict[str, int], directions: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """Returns the content of data.json."""
    identity = {f"{side}.model": checksum(run.path / f"{side}.model") for side in sizes}
    # There is no prepared data, so no training run can be resumed in this folder.
    identity |= {"data": "", "config": hash_of_settings(config)}
    counts = dict.fromkeys(("train_pairs", "dev_pairs", "test_pairs"), 0)
    return {
        "format": RUN_FORMAT,
        "version": gshard_nmt.__version__,
        "files": identity,
        "prepared": dataclasses.asdict(config.data),
        "direction": config.data.direction,
        **{f"{side}_vocabulary": size for side, size in sizes.items()},
        "pairs": [
            {"source": a, "target": b, "language": _language(a, b), **counts} for a, b in directions
        ],
    }


def _language(source: str, target: str) -> str:
    """Returns the language of a direction that is not English, or both."""
    others = [language for language in (source, target) if language != "en"]
    return "-".join(others)


def _check_all_read(source: Path, weights: Source) -> None:
    if leftovers := weights.leftovers():
        more = f" and {len(leftovers) - 3} more" if len(leftovers) > 3 else ""
        raise UserError(
            f"--from {source} has tensors that the model of its config.json does not have: "
            f"{', '.join(leftovers[:3])}{more}. Take both files from the same model."
        )


def _report(
    workdir: Path, kind: str, arrays: dict[str, np.ndarray], directions: Sequence[tuple[str, str]]
) -> None:
    weights = sum(array.size for array in arrays.values())
    first = f"--lang {directions[0][0]} --target {directions[0][1]}"
    Console(highlight=False, markup=False).print(
        f"{workdir}: a model of the type {kind} with {weights:,} weights and {len(directions):,} "
        f"directions; decode with gshard-decode --workdir {workdir} {first}",
        markup=False,
        soft_wrap=True,
    )
