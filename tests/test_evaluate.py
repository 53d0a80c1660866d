import json

import pytest

from gshard_nmt.data.corpus import find_pairs, fingerprint, write_pairs
from gshard_nmt.errors import UserError
from gshard_nmt.evaluate import evaluate

SENTENCES = [
    f"sentence number {n} is here for you" for n in ["one", "two", "three", "four", "five"]
]


@pytest.fixture
def folders(tmp_path):
    """A corpus, a run folder of two languages, and baselines of one of them."""
    for language in ("fr", "de"):
        rows = [(english.upper(), english) for english in SENTENCES]
        for split in ("train", "test"):
            write_pairs(tmp_path / "corpus" / f"{language}-en", split, language, "en", rows)
    digest = fingerprint(find_pairs(tmp_path / "corpus"))
    for run, languages in (("run", ["fr", "de"]), ("baselines/fr", ["fr"])):
        folder = tmp_path / run
        folder.mkdir(parents=True)
        pairs = [
            {"language": tag, "source": tag, "target": "en", "train_pairs": 1000 * len(tag + run)}
            for tag in languages
        ]
        (folder / "data.json").write_text(
            json.dumps({"pairs": pairs, "corpus_fingerprint": digest})
        )
        budget = {
            "steps": 9,
            "seconds": 1.0,
            "parameters": 5,
            "tokens_by_language": dict.fromkeys(languages, 70),
        }
        (folder / "budget.json").write_text(json.dumps(budget))
        (folder / "config.gin").write_text("Model.heads = 4\n")
    return tmp_path


class Translator:
    """Translates well for a run, badly for a baseline, and counts its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def __call__(self, workdir, source, target, lines):
        self.calls.append((workdir.name, source))
        if workdir.name == "run":
            return [line.lower() for line in lines], "step 9"
        return ["sentence number one" for _ in lines], "step 9"


def judge(folders, translate, **options):
    evaluate(folders / "run", folders / "corpus", "test", folders / "report", translate, **options)
    return json.loads((folders / "report" / "bleu.json").read_text())


def test_every_language_is_judged_and_compared(folders, capsys):
    found = judge(folders, Translator(), baselines=folders / "baselines")
    by_language = {one["lang"]: one for one in found["languages"]}
    assert by_language["fr"]["bleu"] == pytest.approx(100)
    assert by_language["fr"]["sentences"] == 5
    assert by_language["fr"]["delta_bleu"] == pytest.approx(
        100 - by_language["fr"]["baseline_bleu"]
    )
    low, high = by_language["fr"]["delta_ci95"]
    assert 0 < low <= by_language["fr"]["delta_bleu"] <= high
    assert by_language["de"]["baseline_bleu"] is None
    assert by_language["de"]["delta_ci95"] is None
    page = (folders / "report" / "index.html").read_text()
    assert "the same" in page
    assert "average" in capsys.readouterr().out


def test_what_is_decoded_is_not_decoded_again(folders):
    translate = Translator()
    judge(folders, translate, baselines=folders / "baselines")
    assert sorted(translate.calls) == [("fr", "fr"), ("run", "de"), ("run", "fr")]
    judge(folders, translate, baselines=folders / "baselines")
    assert len(translate.calls) == 3


def test_fewer_sentences_are_the_first(folders):
    found = judge(folders, Translator(), sentences=2)
    assert {one["sentences"] for one in found["languages"]} == {2}


def test_scores_may_stand_for_baselines(folders):
    (folders / "scores.json").write_text('{"fr": 30.5}')
    found = judge(folders, Translator(), baselines=folders / "scores.json")
    french = next(one for one in found["languages"] if one["lang"] == "fr")
    assert (french["baseline_bleu"], french["delta_bleu"]) == (30.5, pytest.approx(69.5))
    assert french["delta_ci95"] is None


@pytest.mark.parametrize("text", ["[1, 2]", '{"fr": "high"}', "{"])
def test_unreadable_scores_are_a_mistake(folders, text):
    (folders / "scores.json").write_text(text)
    with pytest.raises(UserError, match=r"is not JSON like \{"):
        judge(folders, Translator(), baselines=folders / "scores.json")


def test_another_corpus_is_said(folders):
    rows = [("X", "a new sentence")]
    write_pairs(folders / "corpus" / "de-en", "dev", "de", "en", rows)
    judge(folders, Translator())
    assert "another one" in (folders / "report" / "index.html").read_text()


def test_a_corpus_without_a_language_of_the_run_is_a_mistake(folders, tmp_path):
    for path in (folders / "corpus" / "de-en").iterdir():
        path.unlink()
    (folders / "corpus" / "de-en").rmdir()
    with pytest.raises(UserError, match="has no text of de"):
        judge(folders, Translator())


def test_a_split_that_is_not_there_is_a_mistake(folders):
    with pytest.raises(UserError, match="has no dev text"):
        evaluate(folders / "run", folders / "corpus", "dev", folders / "report", Translator())
