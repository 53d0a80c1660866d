"""A run of French and German, and a corpus of a language that it does not know, without training."""

import random
import shlex
from pathlib import Path

from gshard_nmt.data.sets.corpus import write_pairs
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.prepare import Options, prepare
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.gin_reader import load_config

LETTERS = {
    "fr": ("bcdfgl", "aei"),
    "de": ("bdgklm", "aou"),
    "el": ("βγδζκλ", "αεο"),
    "en": ("mnprst", "aiu"),
}
CONFIG = load_config("demo").replace(
    data={
        "minimum_pairs": 1,
        "source_vocabulary": 340,
        "target_vocabulary": 330,
        "rows": 4,
        "source_length": 48,
        "target_length": 48,
    },
    mesh={"shape": (1,)},
)


def write_corpus(folder: Path, language: str, train: int = 120) -> None:
    """Writes a corpus of words of one to three syllables, translated word by word into English."""
    rng = random.Random(language)
    words = {
        side: [
            "".join(rng.choice(c) + rng.choice(v) for _ in range(rng.randint(1, 3)))
            for _ in "x" * 40
        ]
        for side, (c, v) in LETTERS.items()
        if side in (language, "en")
    }
    for split, number in (("train", train), ("dev", 12), ("test", 12)):
        lines = [rng.choices(range(40), k=rng.randint(3, 6)) for _ in range(number)]
        rows = [
            (" ".join(words[language][i] for i in line), " ".join(words["en"][i] for i in line))
            for line in lines
        ]
        write_pairs(folder / f"{language}-en", split, language, "en", rows)


def make_run(folder: Path, config: Config = CONFIG) -> tuple[RunFolder, PreparedData]:
    """Makes the folder of a run without weights, and its prepared data."""
    for language in ("fr", "de"):
        write_corpus(folder / "corpus", language)
    prepare(config.data, folder / "corpus", folder / "prepared", Options(workers=1))
    data = PreparedData.open(folder / "prepared")
    run = RunFolder(folder / "run")
    run.claim(config, data)
    command = ["gshard-train", "--config=x", f"--data={data.folder}", f"--workdir={run.path}"]
    run.record_command(shlex.join(command))
    return run, data
