"""gshard-export --format native: a run folder of a smaller model, for some of the languages."""

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from gshard_nmt import files, outputs
from gshard_nmt.data.config import SMALLEST_VOCABULARY
from gshard_nmt.data.language_codes import known_as
from gshard_nmt.data.sets.corpus import CorpusPair, find_pairs, read_pairs
from gshard_nmt.data.sets.manifest import checksum
from gshard_nmt.data.text.vocabulary import Vocabulary
from gshard_nmt.decoding.text_translator import TextTranslator, load_translator
from gshard_nmt.errors import UserError
from gshard_nmt.exchange.smaller import (
    Cut,
    cut_vocabulary,
    kept_experts,
    kept_ids,
    least_share,
    used_ids,
)
from gshard_nmt.model.transformer import declare
from gshard_nmt.quantities import size_text
from gshard_nmt.run.checkpoint.checkpoint_writer import CheckpointWriter
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.identity import hash_of_settings
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.values import read_run_config
from gshard_nmt.spmd.mesh import nearest_mesh
from gshard_nmt.suggest import did_you_mean

_BLOCK = 4096
"""Lines that are encoded together."""
_SPLITS = ("train", "dev", "test")
_MOST_DEV_LINES = 500
"""The dev lines of a direction whose choices of experts are counted."""

Pair = Mapping[str, Any]


def export_smaller(
    workdir: Path,
    out: Path,
    languages: Sequence[str],
    corpus: Path,
    keep_choices: float = 1.0,
    checkpoint: str = "best",
) -> None:
    """Writes a run folder with a smaller model, and prints what it saves.

    Args:
      workdir: the run folder.
      out: the run folder to make; it must be new or empty.
      languages: BCP 47 tags of the languages that stay.
      corpus: a corpus folder. Pieces that its text in these languages does not use are cut.
      keep_choices: the part of the weight of the router's choices on dev text whose experts stay, from
        0 to 1.
      checkpoint: the checkpoint to export, see `load_translator`.

    Raises:
      UserError: the model has no such language, the corpus has no text of it, or `out` is not empty.
    """
    outputs.check_folder("--out", out, replaced=True)
    if out.exists() and any(out.iterdir()):
        raise UserError(f"--out {out} is not empty; give a new folder.")
    # The weights only pass through the host, so no accelerator is needed.
    os.environ["JAX_PLATFORMS"] = "cpu"
    run = RunFolder(workdir)
    pairs = chosen_pairs(run.data["pairs"], languages)
    texts = {_direction(pair): _corpus_pair(corpus, pair) for pair in pairs}
    config = read_run_config(run.config)
    config = config.replace(mesh=nearest_mesh(config.mesh, 1))
    source, target = run.vocabularies()
    vocabularies = {"source": source, "target": target}
    dropped = _languages(run.data["pairs"]) - _languages(pairs)
    ids = _kept_ids(config, vocabularies, texts, dropped)
    translator = load_translator(config, run, checkpoint=checkpoint)
    cut = Cut(ids)
    if config.model.experts and keep_choices < 1:
        cut = _with_experts(cut, translator, texts, keep_choices)
    weights = {name: np.asarray(a) for name, a in translator.of_ids.parameters.items()}
    declared = declare(config.model, source.size, target.size)
    smaller = cut.weights(config.model, declared, weights)
    config = _smaller_config(config, cut)
    with outputs.new_folder(out) as folder:
        for side, vocabulary in vocabularies.items():
            files.write(folder / f"{side}.model", cut_vocabulary(vocabulary, ids[side]))
        facts = {**run.data, "pairs": list(pairs)}
        if "never" in facts:
            facts["never"] = np.flatnonzero(np.isin(ids["target"], facts["never"])).tolist()
        _write_run(config, facts, folder, smaller)
    _report(out, translator, weights, smaller)


def chosen_pairs(pairs: Sequence[Pair], languages: Sequence[str]) -> list[Pair]:
    """Returns the directions of a run between the chosen languages.

    If all directions have the same source or the same target, this language need not be named.

    Raises:
      UserError: the run does not have a language, or no direction is left.
    """
    known = sorted(_languages(pairs))
    languages = [known_as(code, known) or code for code in languages]
    for language in languages:
        if language not in known:
            raise UserError(
                f"--languages has {language}; this model has {', '.join(known)}"
                f"{did_you_mean(language, known)} Choose among these."
            )
    allowed = set(languages)
    for side in ("source", "target"):
        names = {pair[side] for pair in pairs}
        if len(names) == 1:
            allowed |= names
    chosen = [pair for pair in pairs if {pair["source"], pair["target"]} <= allowed]
    if not chosen:
        raise UserError(
            f"--languages is {','.join(languages)}, and the model translates in no direction between "
            "them. Give the source and the target language."
        )
    return chosen


def _languages(pairs: Sequence[Pair]) -> set[str]:
    return {pair[side] for pair in pairs for side in ("source", "target")}


def _direction(pair: Pair) -> tuple[str, str]:
    return pair["source"], pair["target"]


def _corpus_pair(corpus: Path, pair: Pair) -> CorpusPair:
    """Returns the text of a direction.

    Raises:
      UserError: the corpus does not have it.
    """
    wanted = set(_direction(pair))
    for corpus_pair in find_pairs(corpus):
        if corpus_pair.languages == wanted:
            return corpus_pair
    raise UserError(
        f"--corpus {corpus} has no text of {pair['source']}-{pair['target']}, which decides what is cut. "
        "Add a folder of this pair, or leave the language out of --languages."
    )


Texts = Mapping[tuple[str, str], CorpusPair]


def _blocks(texts: Texts, side: str) -> Iterator[list[str]]:
    """Yields the lines of one side of all directions and splits, in blocks."""
    column = ("source", "target").index(side)
    for direction, pair in texts.items():
        for split in _SPLITS:
            block: list[str] = []
            for row in read_pairs(pair, split, *direction):
                block.append(row[column])
                if len(block) == _BLOCK:
                    yield block
                    block = []
            yield block


def _kept_ids(
    config: Config, vocabularies: Mapping[str, Vocabulary], texts: Texts, dropped: set[str]
) -> dict[str, np.ndarray]:
    """Returns the ids of each side that stay."""
    used = {side: used_ids(v, _blocks(texts, side)) for side, v in vocabularies.items()}
    if not config.model.shared_embedding and config.data.vocabulary != "joint":
        return {side: kept_ids(v, used[side], dropped) for side, v in vocabularies.items()}
    # Both sides have one embedding or one vocabulary, so they keep the same ids.
    both = used["source"] | used["target"]
    kept = [kept_ids(v, both, dropped) for v in vocabularies.values()]
    joint = np.union1d(*kept)
    return {"source": joint, "target": joint}


def _with_experts(cut: Cut, translator: TextTranslator, texts: Texts, share: float) -> Cut:
    """Adds the experts that stay."""
    tests = []
    for direction, pair in texts.items():
        rows = list(itertools.islice(read_pairs(pair, "dev", *direction), _MOST_DEV_LINES))
        tests.append((*direction, [row[0] for row in rows], [row[1] for row in rows]))
    if not any(test[2] for test in tests):
        raise UserError(
            "--keep_choices needs dev text, and the corpus has no split dev of these languages. Add it, "
            "or leave --keep_choices out to keep all experts."
        )
    use = translator.expert_use(tests)
    experts = kept_experts(use, share)
    whole = use.chosen.shape[-1]
    Console(highlight=False, markup=False).print(
        f"Each layer keeps {experts.shape[1]} of {whole} experts; they get "
        f"{least_share(use, experts):.0%} or more of the weight of its choices on dev text.",
        soft_wrap=True,
    )
    return dataclasses.replace(cut, layers=use.layers, experts=experts)


def _smaller_config(config: Config, cut: Cut) -> Config:
    sizes = {
        f"{side}_vocabulary": max(len(ids), SMALLEST_VOCABULARY) for side, ids in cut.ids.items()
    }
    if cut.experts is not None:
        config = config.replace(model={"experts": cut.experts.shape[1]})
    # data.json has the true sizes, which may be smaller.
    return config.replace(data=sizes)


def _write_run(
    config: Config, facts: dict[str, Any], folder: Path, weights: Mapping[str, np.ndarray]
) -> None:
    """Writes the run folder, besides the vocabularies, which are there.

    Args:
      config: the settings.
      facts: the content of data.json that the old run and the new one share.
      folder: the folder.
      weights: the weights.
    """
    new = RunFolder(folder)
    new.write_text("config.gin", config.text)
    names = {side: f"{side}.model" for side in ("source", "target")}
    vocabularies = {side: Vocabulary.load(folder / name) for side, name in names.items()}
    # There is no prepared data, so no training run can be resumed in this folder.
    identity = {name: checksum(folder / name) for name in names.values()}
    identity |= {"data": "", "config": hash_of_settings(config)}
    sizes = {f"{side}_vocabulary": v.size for side, v in vocabularies.items()}
    facts = {**facts, "files": identity, **sizes, "prepared": dataclasses.asdict(config.data)}
    declared = declare(config.model, *(v.size for v in vocabularies.values()))
    letters = {"parameters": {name: p.letters for name, p in declared.items()}}
    with contextlib.closing(CheckpointWriter(new.checkpoints, identity=identity)) as writer:
        writer.save(0, {"parameters": dict(weights)}, letters, {})
    new.write_json("data.json", facts)


_PARTS = {
    "embeddings": lambda name: name.endswith("_embedding"),
    "experts": lambda name: "/moe_" in name,
}


def saved(
    before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]
) -> list[tuple[str, int, int]]:
    """Returns the bytes of each part of a model, before and after the cut: name, before, after."""
    rows = []
    for part, belongs in (*_PARTS.items(), ("all weights", lambda _: True)):
        sizes = [
            sum(array.nbytes for name, array in arrays.items() if belongs(name))
            for arrays in (before, after)
        ]
        if sizes[0]:
            rows.append((part, sizes[0], sizes[1]))
    return rows


def _report(
    out: Path,
    translator: TextTranslator,
    before: Mapping[str, np.ndarray],
    after: Mapping[str, np.ndarray],
) -> None:
    """Prints the table of bytes, and how to measure the BLEU that is lost."""
    table = Table("weights", "before", "after", "saved", box=None)
    for part, old, new in saved(before, after):
        table.add_row(part, size_text(old), size_text(new), f"{1 - new / old:.0%}")
    console = Console(highlight=False, markup=False)
    console.print(table)
    console.print(
        f"{out}: a smaller model of {translator.origin}; decode with gshard-decode --workdir {out}. To "
        f"see the BLEU that it loses, give gshard-eval --workdir with the old folder and with {out}.",
        markup=False,
        soft_wrap=True,
    )
