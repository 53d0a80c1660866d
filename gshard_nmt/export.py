"""gshard-export: a trained model as files that other software loads."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import gshard_nmt
from gshard_nmt import json_shape, outputs
from gshard_nmt.decoding.text_translator import TextTranslator, load_translator
from gshard_nmt.errors import UserError
from gshard_nmt.exchange import saved_model
from gshard_nmt.exchange.saved_model import Direction, TrainedModel
from gshard_nmt.quantities import size_text
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.changes import Changes
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.values import read_run_config
from gshard_nmt.spmd.resize import nearest_mesh

FACTS = "gshard_nmt.json"
"""The file of an export that says which model it has."""
FORMAT = "gshard-nmt savedmodel 1"
"""The format of an export, as `FACTS` records it."""

_FACTS = json_shape.fields({"format": json_shape.text("gshard-nmt savedmodel .*")})


def export(
    workdir: Path, out: Path, changes: Changes | None = None, checkpoint: str = "best"
) -> None:
    """Writes a trained model as a TensorFlow SavedModel, and a file that says which model it is.

    Args:
      workdir: the run folder.
      out: the folder to make. If it holds an earlier export, the new one takes its place at the end.
      changes: settings of `Decode` that replace those of the run.
      checkpoint: the checkpoint to export, see `load_translator`.

    Raises:
      UserError: the folder is not a run folder, the checkpoint cannot be used, or `out` has other files.
    """
    outputs.check_folder("--out", out, replaced=True)
    _check_is_an_export(out)
    # The weights only pass through the host, so no accelerator is needed.
    os.environ["JAX_PLATFORMS"] = "cpu"
    run = RunFolder(workdir)
    config = (changes or Changes()).apply(read_run_config(run.config))
    config = config.replace(decode={"method": "beam"}, mesh=nearest_mesh(config.mesh, 1))
    translator = load_translator(config, run, checkpoint=checkpoint)
    model = _trained_model(config, run, translator)
    console = Console(highlight=False)
    lengths = ", ".join(map(str, sorted(config.decode.source_lengths)))
    _say(console, f"{translator.origin}: tracing the search for sources of {lengths} tokens")
    with outputs.new_folder(out) as folder:
        saved_model.write(model, folder)
        facts = _facts(config, run, translator)
        (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    _say(
        console,
        f"{out}: {translator.origin} of {workdir}, {size_text(size)}. To load it, import tensorflow "
        f"and tensorflow_text, then call tf.saved_model.load({str(out)!r}).signatures"
        "['serving_default'].",
    )


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
    outputs.check_only_has("--out", out, {FACTS, *saved_model.FILES}, "gshard-export")


def _trained_model(config: Config, run: RunFolder, translator: TextTranslator) -> TrainedModel:
    """Returns what a SavedModel is made of.

    Raises:
      UserError: a weight has values that are not finite. Then the model has no translations.
    """
    ids = translator.of_ids
    for name, array in ids.parameters.items():
        if not np.isfinite(np.asarray(array).astype(np.float32)).all():
            raise UserError(
                f"the weight {name} of {translator.origin} has values that are not finite, so the "
                "model cannot translate. Choose another checkpoint of the run."
            )
    source, target = run.vocabularies()
    if any(target.first(pair["target"]) for pair in run.data["pairs"]):
        raise UserError(
            f"{run.path} has a model whose translations begin with a tag of their language, as in "
            "M2M-100 and NLLB; a SavedModel cannot force it. Use gshard-decode or gshard-serve."
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


def _facts(config: Config, run: RunFolder, translator: TextTranslator) -> dict[str, Any]:
    """Returns the content of `FACTS`."""
    decode = config.decode
    return {
        "format": FORMAT,
        "version": gshard_nmt.__version__,
        "step": translator.step,
        "checkpoint": translator.checkpoint,
        "directions": [[pair["source"], pair["target"]] for pair in run.data["pairs"]],
        "search": {
            "beam": decode.beam,
            "length_norm": decode.length_norm,
            "alpha": decode.alpha,
            "precision": decode.precision,
        },
        "source_lengths": sorted(decode.source_lengths),
        "target_length": config.data.target_length,
        "rows": decode.rows,
    }
