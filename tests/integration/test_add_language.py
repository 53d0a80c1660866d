"""A language in an unknown script is added to a trained run, by the program that a user runs."""

import json
import re

import numpy as np
import pytest
from gshard_nmt.run.blend import SHARES

from gshard_nmt.data.sets.corpus import write_pairs
from tests.integration.conftest import WORDS, program, succeed

GREEK = str.maketrans("abdeghilnprstuv", "αβδεγηιλνπρστυβ")


@pytest.mark.slow
def test_a_language_is_added_and_the_same_command_resumes(prepared, trained, tmp_path):
    rng = np.random.default_rng(1)
    for split, number in (("train", 100), ("dev", 8), ("test", 4)):
        chosen = [rng.choice(WORDS, rng.integers(1, 5)) for _ in range(number)]
        rows = [(" ".join(words).translate(GREEK), " ".join(words)) for words in chosen]
        write_pairs(tmp_path / "text" / "el-en", split, "el", "en", rows)
    workdir = tmp_path / "with-el"
    words = ["--add_language", "el", "--init_from", trained, "--data", tmp_path / "text"]
    words += ["--workdir", workdir, "--gin=Train.bleu_sentences = 4"]
    stopped = succeed(program("train", *words, "--gin=Train.steps = 2"))
    assert "0 are split in another way" in stopped.stderr
    begins = [row["begins"] for row in json.loads((workdir / "init.json").read_text())["arrays"]]
    (source,) = [text for text in begins if "means of old rows" in text]
    # Up to three new spare tags make the size a multiple of 4; no text uses them.
    assert re.fullmatch(
        r"\d+ rows copied by their pieces, [1-9]\d* means of old rows, [0-3] new; 0 old rows left out",
        source,
    )
    again = succeed(program("train", *words, "--gin=Train.steps = 4"))
    assert "old languages" in again.stderr
    guard = json.loads((workdir / "guard.json").read_text())
    assert {len(lines) for lines in guard["translations"].values()} == {4}
    assert set(guard["translations"]) == {"fr-en", "de-en"}
    # Parts of the change are judged at the end of each start, and only there.
    judged = {}
    for verdict in guard["steps"]:
        judged.setdefault(verdict["step"], []).append(verdict["share"])
    assert list(judged) == [1, 2, 3, 4]
    assert judged[1] == judged[3] == [1.0]
    for step in (2, 4):
        parts = judged[step]
        assert parts == [1.0, *SHARES][: len(parts)]
        assert len(parts) >= 2
    shown = again.stdout
    assert "el and the old languages" in shown
    assert re.search(r"fr-en +\d", shown)
    (line,) = succeed(
        program("decode", "--workdir", workdir, "--lang", "el", stdin="ρεδ ηουσε\n")
    ).stdout.splitlines(keepends=True)
    assert line.endswith("\n")
