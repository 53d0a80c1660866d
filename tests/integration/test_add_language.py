"""A language in an unknown script is added to a trained run, by the program that a user runs."""

import json
import re

import numpy as np
import pytest

from gshard_nmt import add_language
from gshard_nmt.cli import commands
from gshard_nmt.data.sets.corpus import write_pairs
from gshard_nmt.evaluation.language_guard import Outcome
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints
from tests.integration.conftest import WORDS

GREEK = str.maketrans("abdeghilnprstuv", "αβδεγηιλνπρστυβ")


@pytest.mark.slow
def test_a_language_is_added_and_the_old_ones_are_compared(
    prepared, trained, tmp_path, monkeypatch, capsys
):
    rng = np.random.default_rng(1)
    for split, number in (("train", 100), ("dev", 8), ("test", 4)):
        chosen = [rng.choice(WORDS, rng.integers(1, 5)) for _ in range(number)]
        rows = [(" ".join(words).translate(GREEK), " ".join(words)) for words in chosen]
        write_pairs(tmp_path / "text" / "el-en", split, "el", "en", rows)
    workdir = tmp_path / "with-el"
    words = ["--add_language", "el", "--init_from", trained, "--data", tmp_path / "text"]
    words += ["--workdir", workdir, "--gin=Train.bleu_sentences = 2", "--gin=Train.steps = 2"]
    # As if the old languages lost with most of the new weights.
    monkeypatch.setattr(Outcome, "loses", property(lambda outcome: outcome.share > 0.7))
    monkeypatch.setattr(add_language, "SHARES", (0.5, 0.2))
    assert commands.main(["train", *map(str, words)]) == 0
    output, log = capsys.readouterr()
    assert re.search(r"source.model: 364 pieces, and [1-9]\d* new ones for el", log)
    begins = [row["begins"] for row in json.loads((workdir / "init.json").read_text())["arrays"]]
    (source,) = [text for text in begins if "means of old rows" in text]
    # Up to three new spare tags make the size a multiple of 4; no text uses them.
    assert re.fullmatch(
        r"\d+ rows copied by their pieces, [1-9]\d* means of old rows, [0-3] new; 0 old rows left out",
        source,
    )
    assert re.search(r"fr-en +\d", output)
    assert "0.2 of the new weights: BLEU of el" in output
    assert "checkpoints/3 has this average; gshard-decode uses it" in " ".join(output.split())
    checkpoints = Checkpoints(workdir / "checkpoints")
    assert checkpoints.steps()[-2:] == [2, 3]
    manifest, name = checkpoints.manifest(3), "decoder/block/moe_0/wi"
    share, old, new = _parts(manifest.average_of, trained, workdir, name)
    mean = (1 - share) * old + share * new
    np.testing.assert_allclose(checkpoints.read(manifest, "parameters", name), mean, rtol=1e-5)


def _parts(average_of, old, new, name):
    """Returns the share of the new weights, and a weight of both runs, as the average names them."""
    values = []
    for words, run in zip(average_of, (old, new), strict=True):
        share, step = re.fullmatch(rf"(0\.\d) of step (\d+) \(Train.ema\) of {run}", words).groups()
        checkpoints = Checkpoints(run / "checkpoints")
        values.append(checkpoints.read(checkpoints.manifest(int(step)), "ema", name))
    return float(share), *values
