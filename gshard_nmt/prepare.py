"""gshard-data prepare: a corpus becomes vocabularies and tokenised shards."""

import dataclasses
import difflib
import hashlib
import itertools
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from gshard_nmt.data.config import Data
from gshard_nmt.data.corpus import (
    ENGLISH,
    CorpusPair,
    count_lines,
    find_pairs,
    fingerprint,
    read_pairs,
)
from gshard_nmt.data.mixture import weights
from gshard_nmt.data.shards import FORMAT, MANIFEST, write_examples
from gshard_nmt.data.vocabulary import UNK, Vocabulary, source_tag, target_tag
from gshard_nmt.errors import UserError

_BLOCK = 20_000


@dataclasses.dataclass(frozen=True)
class Direction:
    """One pair of a corpus, read from one side to the other."""

    pair: CorpusPair
    source: str
    target: str


def prepare(config: Data, corpus: Path, out: Path) -> None:
    """Trains the vocabularies and writes the shards; does nothing where OUT is up to date.

    Args:
      config: languages, sizes, lengths.
      corpus: the parallel text.
      out: the folder to make; it is complete or it is not there.

    Raises:
      UserError: no language qualifies, one that is named is missing, or the text is misaligned.
    """
    console = Console(stderr=True, highlight=False)
    console.print(f"reading {corpus}")
    pairs = choose_pairs(config, find_pairs(corpus))
    identity = _identity(config, fingerprint(pairs))
    if out.exists() and any(out.iterdir()):
        if not (out / MANIFEST).exists():
            raise UserError(f"--out {out} is not empty and not prepared data; choose another folder.")
        manifest = json.loads((out / MANIFEST).read_text())
        if manifest.get("identity") == identity and manifest.get("format") == FORMAT:
            console.print(f"{out} is up to date")
            _show(manifest)
            return
    directions = [d for pair in pairs for d in _directions(config, pair)]
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
        made = Path(temporary) / "data"
        made.mkdir()
        vocabularies = _train_vocabularies(config, directions, made, console)
        manifest = {
            "format": FORMAT,
            "identity": identity,
            "direction": config.direction,
            "corpus_fingerprint": identity["corpus"],
            "source_vocabulary": len(vocabularies[0]),
            "target_vocabulary": len(vocabularies[1]),
            "temperature": config.temperature,
            "pairs": [],
        }
        with Progress(console=console, disable=not console.is_terminal) as progress:
            task = progress.add_task("tokenising", total=len(directions))
            for direction in directions:
                manifest["pairs"].append(_tokenise(config, direction, vocabularies, made))
                progress.advance(task)
        manifest["pairs"].sort(key=lambda pair: (-pair["train"], pair["language"]))
        (made / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
        if out.exists():
            shutil.rmtree(out)
        made.replace(out)
    _show(manifest)


def choose_pairs(config: Data, pairs: Sequence[CorpusPair]) -> list[CorpusPair]:
    """The pairs of the languages that the config names, or of those that have enough text.

    Raises:
      UserError: a named language is not in the corpus, or none has enough pairs.
    """
    with_english = [p for p in pairs if ENGLISH in (p.source, p.target)]
    by_language = {pair.language: pair for pair in with_english}
    if config.languages:
        for language in config.languages:
            if language not in by_language:
                close = difflib.get_close_matches(language, by_language, 3, 0.4)
                hint = f" Did you mean {' or '.join(close)}?" if close else ""
                raise UserError(
                    f"Data.languages names {language}, which the corpus lacks; it has "
                    f"{', '.join(sorted(by_language))}.{hint}"
                )
        return [by_language[language] for language in config.languages]
    sizes = {language: count_lines(pair, "train") for language, pair in by_language.items()}
    ranked = sorted(sizes, key=lambda language: (-sizes[language], language))
    enough = [language for language in ranked if sizes[language] >= config.minimum_pairs]
    if not enough:
        largest = ", ".join(f"{language} {sizes[language]}" for language in ranked[:5]) or "none"
        raise UserError(
            f"no language has Data.minimum_pairs = {config.minimum_pairs} training pairs; the largest "
            f"are {largest}. Lower Data.minimum_pairs."
        )
    if config.maximum_languages and len(enough) > config.maximum_languages:
        places = np.linspace(0, len(enough) - 1, config.maximum_languages)
        enough = [enough[round(place)] for place in places]
    return [by_language[language] for language in enough]


def _directions(config: Data, pair: CorpusPair) -> Iterator[Direction]:
    other = pair.language
    if config.direction in ("xx-en", "many-to-many"):
        yield Direction(pair, other, ENGLISH)
    if config.direction in ("en-xx", "many-to-many"):
        yield Direction(pair, ENGLISH, other)


def _identity(config: Data, corpus: str) -> dict[str, Any]:
    """What the prepared data depend on: the text, and the settings that shape it."""
    settings = dataclasses.asdict(config)
    for name in ("rows", "seed", "temperature"):  # only training uses these
        del settings[name]
    settings["languages"] = list(settings["languages"])
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return {"corpus": corpus, "settings": settings, "digest": digest[:16]}


def _train_vocabularies(
    config: Data, directions: Sequence[Direction], out: Path, console: Console
) -> tuple[Vocabulary, Vocabulary]:
    tags: list[str] = []
    if len({d.target for d in directions}) > 1:
        tags += sorted({target_tag(d.target) for d in directions})
    if config.language_tags:
        tags += sorted({source_tag(d.source) for d in directions})
    made = []
    for column, (side, size) in enumerate(
        (("source", config.source_vocabulary), ("target", config.target_vocabulary))
    ):
        lines = _sample(config, directions, column)
        console.print(f"training the {side} vocabulary on {len(lines):,} lines")
        vocabulary = Vocabulary.train(lines, size, tags if side == "source" else ())
        vocabulary.save(out / f"{side}.model")
        made.append(vocabulary)
    return made[0], made[1]


def _sample(config: Data, directions: Sequence[Direction], column: int) -> list[str]:
    """Lines of one side, languages drawn by temperature; each distinct line once."""
    texts = [
        list(dict.fromkeys(row[column] for row in read_pairs(d.pair, "train", d.source, d.target)))
        for d in directions
    ]
    shares = weights([max(len(lines), 1) for lines in texts], config.temperature)
    sampled = [
        lines[: max(1, int(share * config.vocabulary_sentences))]
        for lines, share in zip(texts, shares, strict=True)
    ]
    return list(dict.fromkeys(itertools.chain.from_iterable(sampled)))


def _tokenise(
    config: Data,
    direction: Direction,
    vocabularies: tuple[Vocabulary, Vocabulary],
    out: Path,
) -> dict[str, Any]:
    """Writes the shards of train and dev; returns the pair's entry of the manifest."""
    source, target = direction.source, direction.target
    entry: dict[str, Any] = {"language": direction.pair.language, "source": source, "target": target}
    counts = dict.fromkeys(("source_tokens", "target_tokens", "unknown", "overlong"), 0)
    for split in ("train", "dev"):
        kept: list[tuple[list[int], list[int]]] = []
        rows = read_pairs(direction.pair, split, source, target)
        while block := list(itertools.islice(rows, _BLOCK)):
            sources = vocabularies[0].encode_source([row[0] for row in block], source, target)
            targets = vocabularies[1].encode_target([row[1] for row in block])
            for one, other in zip(sources, targets, strict=True):
                if len(one) > config.source_length or len(other) > config.target_length:
                    counts["overlong"] += 1
                    continue
                kept.append((one, other))
        write_examples(out / "shards" / f"{source}-{target}-{split}.array_record", kept)
        entry[split] = len(kept)
        if split == "train":
            counts["source_tokens"] = sum(len(one) for one, _ in kept)
            counts["target_tokens"] = sum(len(other) for _, other in kept)
            counts["unknown"] = sum(ids.count(UNK) for pair in kept for ids in pair)
    if not entry["train"]:
        raise UserError(
            f"{direction.pair.folder} has no training pair of at most {config.source_length} source "
            f"and {config.target_length} target tokens; raise the lengths or leave {source} out."
        )
    entry["test"] = count_lines(direction.pair, "test")
    return entry | counts


def _show(manifest: dict[str, Any]) -> None:
    table = Table(title=f"prepared {manifest['direction']}")
    names = ("pair", "train", "dev", "test", "tokens a pair", "overlong", "sampled")
    for name in names:
        table.add_column(name, justify="left" if name == "pair" else "right")
    pairs = manifest["pairs"]
    shares = weights([pair["train"] for pair in pairs], manifest["temperature"])
    for pair, share in zip(pairs, shares, strict=True):
        tokens = (pair["source_tokens"] + pair["target_tokens"]) / pair["train"]
        table.add_row(
            f"{pair['source']}-{pair['target']}",
            *(f"{pair[split]:,}" for split in ("train", "dev", "test")),
            f"{tokens:.1f}",
            f"{pair['overlong']:,}",
            f"{share:.1%}",
        )
    console = Console(highlight=False)
    console.print(table)
    console.print(
        f"{len(pairs)} pairs, {sum(pair['train'] for pair in pairs):,} training examples; "
        f"vocabularies of {manifest['source_vocabulary']:,} and {manifest['target_vocabulary']:,} "
        f"pieces; corpus {manifest['corpus_fingerprint']}"
    )
