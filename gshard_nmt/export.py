"""gshard-export: a trained model as files that other software loads."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import gshard_nmt
from gshard_nmt import files, json_shape, outputs
from gshard_nmt.decoding.text_translator import TextTranslator, load_translator
from gshard_nmt.decoding.translator import restrictions
from gshard_nmt.errors import UserError
from gshard_nmt.exchange import ctranslate2, huggingface_writer, saved_model
from gshard_nmt.exchange.foreign_vocabulary import NEVER
from gshard_nmt.exchange.generation import GENERATION, read_generation
from gshard_nmt.exchange.huggingface import CONFIG, read_config
from gshard_nmt.exchange.huggingface_tokenizer import IMPORTED, TOKENIZER_FILES, read_tokenizer
from gshard_nmt.exchange.huggingface_writer import FACTS, Layout, layout_of
from gshard_nmt.exchange.saved_model import Direction, TrainedModel
from gshard_nmt.exchange.tensors import SINGLE
from gshard_nmt.quantities import size_text
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.changes import Changes
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.values import read_run_config
from gshard_nmt.spmd.mesh import nearest_mesh

FORMAT = "gshard-nmt {} 1"
"""The format of an export, as `FACTS` records it."""
FORMATS = ("savedmodel", "huggingface", "ctranslate2")

_FACTS = json_shape.fields({"format": json_shape.text(f"gshard-nmt ({'|'.join(FORMATS)}) .*")})
_FILES = {
    FACTS,
    *saved_model.FILES,
    *ctranslate2.FILES,
    *(SINGLE, CONFIG, GENERATION),
    *TOKENIZER_FILES,
}
"""All files that an export of some format has."""


def export(
    workdir: Path,
    out: Path,
    changes: Changes | None = None,
    checkpoint: str = "best",
    form: str = "savedmodel",
) -> None:
    """Writes a trained model for other software, and a file that says which model it is.

    Args:
      workdir: the run folder.
      out: the folder to make. If it holds an earlier export, the new one takes its place at the end.
      changes: settings of `Decode` that replace those of the run. Only a SavedModel has a search.
      checkpoint: the checkpoint to export, see `load_translator`.
      form: one of `FORMATS`.

    Raises:
      UserError: the folder is not a run folder, the checkpoint cannot be used, the format has no such
        model, or `out` has other files.
    """
    outputs.check_folder("--out", out, replaced=True)
    _check_is_an_export(out)
    # The weights only pass through the host, so no accelerator is needed.
    os.environ["JAX_PLATFORMS"] = "cpu"
    run = RunFolder(workdir)
    config = (changes or Changes()).apply(read_run_config(run.config))
    config = config.replace(decode={"method": "beam"}, mesh=nearest_mesh(config.mesh, 1))
    write = {
        "savedmodel": _write_savedmodel,
        "huggingface": _write_huggingface,
        "ctranslate2": _write_ctranslate2,
    }[form]
    if form == "huggingface":
        _layout(config, run)  # refuses a model before its weights are read
    elif form == "ctranslate2":
        ctranslate2.check(config.model)
    translator = load_translator(config, run, checkpoint=checkpoint)
    _check_finite(translator)
    console = Console(highlight=False, markup=False)
    with outputs.new_folder(out) as folder:
        facts, remark = write(config, run, translator, folder, console)
        facts = _facts(form, run, translator) | facts
        (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    _say(
        console,
        f"{out}: {translator.origin} of {workdir}, {size_text(size)}. {remark.format(out=str(out))}",
    )


def _write_savedmodel(
    config: Config, run: RunFolder, translator: TextTranslator, folder: Path, console: Console
) -> tuple[dict[str, Any], str]:
    """Writes a SavedModel. Returns further content of `FACTS`, and how to load the model."""
    model = _trained_model(config, run, translator)
    decode = config.decode
    lengths = sorted(decode.source_lengths)
    shown = ", ".join(map(str, lengths))
    _say(console, f"{translator.origin}: tracing the search for sources of {shown} tokens")
    saved_model.write(model, folder)
    facts = {
        "search": {
            "beam": decode.beam,
            "length_norm": decode.length_norm,
            "alpha": decode.alpha,
            "precision": decode.precision,
        },
        "source_lengths": lengths,
        "target_length": config.data.target_length,
        "rows": decode.rows,
    }
    return facts, (
        "To load it, import tensorflow and tensorflow_text, then call "
        "tf.saved_model.load({out!r}).signatures['serving_default']."
    )


def _weights(translator: TextTranslator) -> dict[str, np.ndarray]:
    return {
        name: np.asarray(array, np.float32) for name, array in translator.of_ids.parameters.items()
    }


def _layout(config: Config, run: RunFolder) -> tuple[Layout, bool]:
    """Returns the layout of the model in transformers, and whether it was imported with this layout."""
    imported = run.path / IMPORTED
    if not imported.is_dir():
        source, target = run.vocabularies()
        return layout_of(config, {"source": source, "target": target}), False
    contents = read_config(imported)
    return Layout(contents, config.model, read_tokenizer(imported, contents).orders), True


def _write_huggingface(
    config: Config, run: RunFolder, translator: TextTranslator, folder: Path, _: Console
) -> tuple[dict[str, Any], str]:
    """Writes a Hugging Face folder. Returns further content of `FACTS`, and how to load the model."""
    layout, was_imported = _layout(config, run)
    weights = _weights(translator)
    never = restrictions(run)["never"]
    imported = run.path / IMPORTED
    generation = read_generation(imported, layout.config).content if was_imported else {}
    huggingface_writer.write(layout, weights, folder, never, generation)
    for name in TOKENIZER_FILES if was_imported else ():
        if (imported / name).is_file():
            files.write(folder / name, (imported / name).read_bytes())
    for side, name in huggingface_writer.SIDES.items() if not was_imported else ():
        files.write(folder / name, layout.orders[side].model)
    bias = weights.get("output_bias", np.zeros(0, np.float32))
    return {"never": np.flatnonzero(bias == NEVER).tolist()}, (
        "To load it, call transformers.AutoModelForSeq2SeqLM.from_pretrained({out!r})."
    )


def _write_ctranslate2(
    config: Config, run: RunFolder, translator: TextTranslator, folder: Path, _: Console
) -> tuple[dict[str, Any], str]:
    """Writes a folder of CTranslate2. Returns no content of `FACTS`, and how to load the model."""
    source, target = run.vocabularies()
    vocabularies = {"source": source, "target": target}
    lengths = (config.data.source_length, config.data.target_length, *config.decode.source_lengths)
    ctranslate2.write(
        config.model,
        _weights(translator),
        vocabularies,
        folder,
        never=restrictions(run)["never"],
        longest=max(lengths),
    )
    return {}, "To load it, call ctranslate2.Translator({out!r})."


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _check_is_an_export(out: Path) -> None:
    """Raises UserError if a folder has anything in it that an earlier export did not write."""
    if not out.is_dir() or not any(out.iterdir()):
        return
    try:
        json_shape.parse((out / FACTS).read_bytes(), _FACTS)
    except (FileNotFoundError, ValueError):
        raise UserError(
            f"--out {out} is not empty and not an earlier export; choose another folder."
        ) from None
    outputs.check_only_has("--out", out, _FILES, "gshard-export")


def _check_finite(translator: TextTranslator) -> None:
    """Raises UserError if a weight has values that are not finite. Then there are no translations."""
    for name, array in translator.of_ids.parameters.items():
        if not np.isfinite(np.asarray(array).astype(np.float32)).all():
            raise UserError(
                f"the weight {name} of {translator.origin} has values that are not finite, so the "
                "model cannot translate. Choose another checkpoint of the run."
            )


def _trained_model(config: Config, run: RunFolder, translator: TextTranslator) -> TrainedModel:
    """Returns what a SavedModel is made of.

    Raises:
      UserError: translations begin with a tag.
    """
    ids = translator.of_ids
    source, target = run.vocabularies()
    if any(target.first(pair["target"]) for pair in run.data["pairs"]):
        raise UserError(
            f"{run.path} has a model whose translations begin with a tag of their language, as in "
            "M2M-100 and NLLB; a SavedModel cannot force it. Choose --format huggingface or ctranslate2."
        )
    directions = [
        Direction(
            pair["source"], pair["target"], tuple(source.tags(pair["source"], pair["target"]))
        )
        for pair in run.data["pairs"]
    ]
    return TrainedModel(
        config,
        ids.search,
        {name: np.asarray(array) for name, array in ids.prepared_weights().items()},
        source_vocabulary=(run.path / "source.model").read_bytes(),
        target_vocabulary=(run.path / "target.model").read_bytes(),
        directions=directions,
    )


def _facts(form: str, run: RunFolder, translator: TextTranslator) -> dict[str, Any]:
    """Returns the content of `FACTS` that all formats have."""
    return {
        "format": FORMAT.format(form),
        "version": gshard_nmt.__version__,
        "step": translator.step,
        "checkpoint": translator.checkpoint,
        "directions": [[pair["source"], pair["target"]] for pair in run.data["pairs"]],
    }
