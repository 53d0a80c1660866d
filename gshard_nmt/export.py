"""gshard-export: a trained model as files that other software loads, or as a smaller run folder."""

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import gshard_nmt
from gshard_nmt import files, outputs
from gshard_nmt.data.sets.corpus import CorpusPair, find_pairs, read_pairs
from gshard_nmt.data.text.vocabulary import BOS, EOS, Vocabulary
from gshard_nmt.decoding.text_translator import TextTranslator, load_translator
from gshard_nmt.decoding.translator import restrictions
from gshard_nmt.errors import UserError
from gshard_nmt.exchange import ctranslate2, huggingface_weights, run_folders, saved_model
from gshard_nmt.exchange import huggingface as hf
from gshard_nmt.exchange import huggingface_tokenizer as tokenizers
from gshard_nmt.quantities import size_text
from gshard_nmt.run.folder import IMPORTED, RunFolder
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.values import Changes, read_run_config
from gshard_nmt.spmd.mesh import nearest_mesh
from gshard_nmt.terminal import Terminal

FORMATS = {
    "savedmodel": "import tensorflow and tensorflow_text, then call "
    "tf.saved_model.load({out!r}).signatures['serving_default']",
    "huggingface": "call transformers.AutoModelForSeq2SeqLM.from_pretrained({out!r})",
    "ctranslate2": "call ctranslate2.Translator({out!r})",
}
"""How to load each format."""
FACTS = "gshard_nmt.json"
"""The file of an export that says which model it has."""

_BLOCK = 4096
"""Lines that are encoded together."""


def export(workdir: Path, out: Path, changes: Changes, checkpoint: str, form: str) -> None:
    """Writes a trained model for other software, and a file that says which model it is.

    `form` is one of `FORMATS`, and `checkpoint` is as in `load_translator`. `changes` are settings of
    `Decode` that replace those of the run; only a SavedModel has a search. Raises UserError as
    `load_translator` does, or if the format has no such model, or `out` is not empty.
    """
    outputs.check_new("--out", out)
    # The weights only pass through the host, so no accelerator is needed.
    os.environ["JAX_PLATFORMS"] = "cpu"
    run = RunFolder(workdir)
    config = changes.apply(read_run_config(run.config))
    config = config.replace(decode={"method": "beam"}, mesh=nearest_mesh(config.mesh, 1))
    write = _WRITERS[form](config, run)  # refuses a model before its weights are read
    translator = load_translator(config, run, checkpoint=checkpoint)
    weights = {name: np.asarray(array) for name, array in translator.of_ids.parameters.items()}
    if config.model.start_token == "eos":
        # Other programs read BOS, which has the embedding of EOS.
        weights["target_embedding"] = np.array(weights["target_embedding"])
        weights["target_embedding"][BOS] = weights["target_embedding"][EOS]
    for name, array in weights.items():
        if not np.isfinite(array.astype(np.float32)).all():
            raise UserError(
                f"the weight {name} of {translator.origin} has values that are not finite, so the "
                "model cannot translate. Choose another checkpoint of the run."
            )
    with outputs.new_folder(out, "--out") as folder:
        facts = {
            "format": f"gshard-nmt {form} 1",
            "version": gshard_nmt.__version__,
            "step": translator.step,
            "checkpoint": translator.checkpoint,
            "directions": [list(direction) for direction in run.directions],
            **write(translator, weights, folder),
        }
        files.write_json(folder / FACTS, facts)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    origin = f"{translator.origin} of {workdir}, {size_text(size)}"
    Terminal().print(f"{out}: {origin}. To load it, {FORMATS[form].format(out=str(out))}.")


_Weights = Mapping[str, np.ndarray]
_Write = Callable[[TextTranslator, _Weights, Path], dict[str, Any]]
"""Writes the files of a format into a folder, and returns further content of `FACTS`."""


def _savedmodel(config: Config, run: RunFolder) -> _Write:
    """Returns the writer of a SavedModel; raises UserError if translations begin with a tag."""
    source, target = run.vocabularies()
    if any(target.first(language) for _, language in run.directions):
        raise UserError(
            f"{run.path} has a model whose translations begin with a tag of their language, as in "
            "M2M-100 and NLLB; a SavedModel cannot force it. Choose --format huggingface or ctranslate2."
        )

    def write(translator: TextTranslator, _: _Weights, folder: Path) -> dict[str, Any]:
        decode, ids = config.decode, translator.of_ids
        lengths = sorted(decode.source_lengths)
        shown = ", ".join(map(str, lengths))
        Terminal().print(f"{translator.origin}: tracing the search for sources of {shown} tokens")
        model = saved_model.TrainedModel(
            config,
            ids.search,
            {name: np.asarray(array) for name, array in ids.prepared_weights().items()},
            (run.path / "source.model").read_bytes(),
            (run.path / "target.model").read_bytes(),
            {direction: source.tags(*direction) for direction in run.directions},
        )
        saved_model.write(model, folder)
        return {"search": decode.settings(), "source_lengths": lengths}

    return write


def _huggingface(config: Config, run: RunFolder) -> _Write:
    """Returns the writer of a Hugging Face folder. An imported model has the layout that it had."""
    imported, vocabularies = run.path / IMPORTED, _vocabularies(run)
    generation: Mapping[str, Any] = {}
    changed: Mapping[str, bytes] = {}
    new_tokens = 0
    if imported.is_dir() and hf.has_layout(contents := hf.read_config(imported), config.model):
        if hf.model_of(contents).positions != config.model.positions:
            Terminal(stderr=True).print(
                "the model has --marian_positions, which transformers lacks, so its translations differ "
                "there; --format ctranslate2 keeps them"
            )
        grown = tokenizers.with_new_tokens(imported, contents, vocabularies)
        layout, changed = hf.Layout(grown.config, config.model, grown.orders), grown.files
        new_tokens = grown.config["vocab_size"] - contents["vocab_size"]
        generation = hf.read_generation(imported, contents).content
        copies = {name: imported / name for name in tokenizers.TOKENIZER_FILES}
    else:
        layout = hf.layout_of(config, vocabularies)
        copies = {name: run.path / name for name in ("source.model", "target.model")}

    def write(_: TextTranslator, weights: _Weights, folder: Path) -> dict[str, Any]:
        never = restrictions(run)["never"]
        huggingface_weights.write(layout, weights, folder, never, generation, new_tokens)
        for name, file in copies.items():
            if file.is_file():
                files.write(folder / name, file.read_bytes())
        for name, content in changed.items():
            files.write(folder / name, content)
        return {}

    return write


def _ctranslate2(config: Config, run: RunFolder) -> _Write:
    """Returns the writer of a folder of CTranslate2."""
    ctranslate2.check(config.model)
    longest = max(
        config.data.source_length, config.data.target_length, *config.decode.source_lengths
    )

    def write(_: TextTranslator, weights: _Weights, folder: Path) -> dict[str, Any]:
        floats = {name: np.asarray(array, np.float32) for name, array in weights.items()}
        vocabularies, never = _vocabularies(run), restrictions(run)["never"]
        ctranslate2.write(config.model, floats, vocabularies, folder, never, longest)
        return {}

    return write


_WRITERS = {"savedmodel": _savedmodel, "huggingface": _huggingface, "ctranslate2": _ctranslate2}


def _vocabularies(run: RunFolder) -> dict[str, Vocabulary]:
    return dict(zip(("source", "target"), run.vocabularies(), strict=True))


def export_smaller(
    workdir: Path, out: Path, languages: Sequence[str], corpus: Path, checkpoint: str = "best"
) -> None:
    """Writes a run folder with a smaller model for some languages, and prints what it saves.

    `languages` are BCP 47 tags. Pieces that the text of `corpus` in these languages does not use are cut.
    `checkpoint` is as in `load_translator`. Raises UserError if the model has no such language, the
    corpus has no text of it, or `out` is not empty.
    """
    outputs.check_new("--out", out)
    os.environ["JAX_PLATFORMS"] = "cpu"
    run = RunFolder(workdir)
    directions = run_folders.chosen_directions(run.directions, languages)
    texts = {direction: _corpus_pairs(corpus, direction) for direction in directions}
    config = read_run_config(run.config)
    config = config.replace(mesh=nearest_mesh(config.mesh, 1))
    vocabularies = _vocabularies(run)
    dropped = set(itertools.chain(*run.directions)) - set(itertools.chain(*directions))
    used = {
        side: run_folders.used_ids(vocabulary, _blocks(texts, column))
        for column, (side, vocabulary) in enumerate(vocabularies.items())
    }
    # If both sides have one embedding or one vocabulary, they keep the same ids.
    is_joint = config.model.shared_embedding or config.data.vocabulary == "joint"
    if is_joint:
        used = dict.fromkeys(used, set.union(*used.values()))
    ids = {s: run_folders.kept_ids(v, used[s], dropped) for s, v in vocabularies.items()}
    if is_joint:
        ids = dict.fromkeys(ids, np.union1d(*ids.values()))
    translator = load_translator(config, run, checkpoint=checkpoint)
    weights = {name: np.asarray(a) for name, a in translator.of_ids.parameters.items()}
    cut = dict(weights)
    for name in weights.keys() & {"source_embedding", "target_embedding", "output_bias"}:
        cut[name] = weights[name][ids["source" if name == "source_embedding" else "target"]]
    pairs = [pair for pair in run.data["pairs"] if (pair["source"], pair["target"]) in texts]
    facts = {**run.data, "pairs": pairs}
    if "never" in facts:
        facts["never"] = np.flatnonzero(np.isin(ids["target"], facts["never"])).tolist()
    contents = {side: run_folders.cut_vocabulary(v, ids[side]) for side, v in vocabularies.items()}
    with outputs.new_folder(out, "--out") as folder:
        run_folders.write_run(folder, config, contents, cut, facts)
    old, new = (sum(array.nbytes for array in arrays.values()) for arrays in (weights, cut))
    Terminal().print(
        f"{out}: a smaller model of {translator.origin}, {size_text(new)} of weights for "
        f"{size_text(old)} ({1 - new / old:.0%} less); decode with gshard-decode --workdir {out}. To see "
        f"the BLEU that it loses, give gshard-eval --workdir with the old folder and with {out}."
    )


def _corpus_pairs(corpus: Path, direction: run_folders.Direction) -> list[CorpusPair]:
    """Returns the text of a direction; raises UserError if the corpus does not have it."""
    if found := [pair for pair in find_pairs(corpus) if pair.languages == set(direction)]:
        return found
    raise UserError(
        f"--corpus {corpus} has no text of {'-'.join(direction)}, which decides what is cut. Add a "
        "folder of this pair, or leave the language out of --languages."
    )


def _blocks(
    texts: Mapping[run_folders.Direction, Sequence[CorpusPair]], column: int
) -> Iterator[list[str]]:
    """Yields the source (0) or target (1) lines of all directions and splits, in blocks."""
    for direction, pairs in texts.items():
        for pair, split in itertools.product(pairs, ("train", "dev", "test")):
            lines = (row[column] for row in read_pairs(pair, split, *direction))
            while block := list(itertools.islice(lines, _BLOCK)):
                yield block
