import json

import numpy as np
import pytest

from gshard_nmt.data.preparation.inputs import fingerprint
from gshard_nmt.data.sets.corpus import find_pairs, write_pairs
from gshard_nmt.decoding.expert_use import ExpertUse
from gshard_nmt.decoding.runs import Choices
from gshard_nmt.errors import UserError
from gshard_nmt.evaluate import Request, evaluate
from gshard_nmt.evaluation import test_sets
from gshard_nmt.evaluation.report.page import chosen_samples
from tests.evaluation.run_folders import make_run
from tests.run.facts import data_facts

SENTENCES = [
    f"sentence number {n} is here for you" for n in ["one", "two", "three", "four", "five"]
]


pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture
def folders(tmp_path):
    """Returns a folder with a corpus, a run of two languages, and a baseline of one of them."""
    for language in ("fr", "de"):
        rows = [(english.upper(), english) for english in SENTENCES]
        for split in ("train", "test"):
            write_pairs(tmp_path / "corpus" / f"{language}-en", split, language, "en", rows)
    digest = fingerprint(find_pairs(tmp_path / "corpus"))
    for run, languages in (("run", ["fr", "de"]), ("baselines/fr", ["fr"])):
        pairs = data_facts(languages)["pairs"]
        for pair in pairs:
            pair["train_pairs"] = 1000 * len(pair["language"] + run)
        make_run(tmp_path / run, languages, corpus_fingerprint=digest, pairs=pairs)
    return tmp_path


class Translator:
    """Translates well for a run and badly for a baseline, and records its calls."""

    def __init__(self, checkpoint: str = "") -> None:
        self.calls: list[tuple[str, str]] = []
        self.choices: set[tuple[str, str]] = set()
        self.checkpoint = checkpoint

    def __call__(self, workdir, source, target, lines, checkpoint):
        self.calls.append((workdir.name, source))
        self.choices.add((workdir.name, checkpoint))
        if workdir.name == "run":
            return [line.lower() for line in lines], "step 9", self.checkpoint
        return ["sentence number one" for _ in lines], "step 9", self.checkpoint


def scores_of(folders, translate, **asked):
    """Returns the bleu.json of the run, with these fields of the request."""
    words = (folders / "run", {"": folders / "corpus"}, "test", folders / "report", translate)
    evaluate(*words, Request(**asked))
    return json.loads((folders / "report" / "bleu.json").read_text())


def test_the_report_and_the_terminal_say_how_the_baselines_were_trained(folders, capsys):
    contents = scores_of(folders, Translator(), baselines=folders / "baselines")
    assert "baselines" not in contents
    assert "It is not recorded how" in contents["provenance"]["baselines"]
    record = {
        **dict.fromkeys(("weights", "steps", "tokens", "seconds", "train_pairs"), 70),
        "kind": "converged",
        "language": "fr",
        "size": "small",
        "vocabulary": "shared",
        "ended": "patience",
        "key": "0",
        "limits": {},
    }
    (folders / "baselines" / "fr" / "baseline.json").write_text(json.dumps(record))
    contents = scores_of(folders, Translator(), baselines=folders / "baselines")
    assert [row["ended"] for row in contents["baselines"]["languages"]] == ["patience"]
    sentence = "1 of 1 baselines were trained until dev BLEU did not improve."
    assert sentence in contents["provenance"]["baselines"]
    assert sentence in (folders / "report" / "index.html").read_text()
    assert sentence in capsys.readouterr().out


def test_every_language_is_scored_and_compared(folders, capsys):
    contents = scores_of(folders, Translator(), baselines=folders / "baselines")
    by_language = {row["lang"]: row for row in contents["languages"]}
    assert by_language["fr"]["bleu"] == pytest.approx(100)
    assert by_language["fr"]["sentences"] == 5
    assert (by_language["fr"]["source"], by_language["fr"]["target"]) == ("fr", "en")
    assert by_language["fr"]["delta_bleu"] == pytest.approx(
        100 - by_language["fr"]["baseline_bleu"]
    )
    low, high = by_language["fr"]["delta_ci95"]
    assert 0 < low <= by_language["fr"]["delta_bleu"] <= high
    assert by_language["de"]["baseline_bleu"] is None
    assert by_language["de"]["delta_ci95"] is None
    assert ": the same corpus" in (folders / "report" / "index.html").read_text()
    out = capsys.readouterr().out
    assert "average" in out
    assert "BLEU: 0 of 1 directions are significantly better than the baseline" in out
    scores_of(folders, Translator())
    assert "gain" not in capsys.readouterr().out


def test_the_choice_of_weights_is_for_the_run_alone(folders):
    translator = Translator()
    scores_of(folders, translator, baselines=folders / "baselines", choices=Choices("average:2"))
    assert translator.choices == {("run", "average:2"), ("fr", "best")}


def test_translations_are_made_once(folders):
    translate = Translator()
    scores_of(folders, translate, baselines=folders / "baselines")
    assert sorted(translate.calls) == [("fr", "fr"), ("run", "de"), ("run", "fr")]
    scores_of(folders, translate, baselines=folders / "baselines")
    assert len(translate.calls) == 3


def test_a_file_of_scores_replaces_baseline_runs(folders):
    (folders / "scores.json").write_text('{"fr": 30.5}')
    contents = scores_of(folders, Translator(), baselines=folders / "scores.json")
    french = next(row for row in contents["languages"] if row["lang"] == "fr")
    assert (french["baseline_bleu"], french["delta_bleu"]) == (30.5, pytest.approx(69.5))
    assert french["delta_ci95"] is None


def set_data(run, **changes):
    """Changes the values of a run's data.json."""
    contents = json.loads((run / "data.json").read_text())
    (run / "data.json").write_text(json.dumps(contents | changes))


def test_a_run_of_both_directions_counts_each_language_once(folders):
    pairs = [
        {"language": "fr", "source": source, "target": target, "train_pairs": 5}
        for source, target in (("fr", "en"), ("en", "fr"))
    ]
    digest = fingerprint([p for p in find_pairs(folders / "corpus") if p.language == "fr"])
    set_data(folders / "run", corpus_fingerprint=digest, pairs=pairs)
    contents = scores_of(folders, Translator())
    facts = contents["provenance"]
    assert facts["training text"] == f"fingerprint {digest}: the same corpus"
    assert {(row["source"], row["target"]) for row in contents["languages"]} == {
        ("fr", "en"),
        ("en", "fr"),
    }
    assert list(contents["length_buckets"]["directions"]) == ["fr-en", "en-fr"]
    assert "<summary>en-fr</summary>" in (folders / "report" / "index.html").read_text()
    set_data(folders / "run", corpus_fingerprint="another")
    facts = scores_of(folders, Translator())["provenance"]
    assert f"fingerprint {digest} (text of the run's languages)" in facts["test text"]


def test_what_is_missing_or_cannot_be_read_is_named_in_a_partial_report(folders):
    corpus, run = folders / "corpus", folders / "run"
    set_data(run, pairs=data_facts(["fr", "de", "ru", "pl"])["pairs"])
    (corpus / "de-en" / "test.en").write_text("one line\n")
    write_pairs(corpus / "ru-en", "train", "ru", "en", [("a", "b")])
    write_pairs(corpus / "ru-en", "test", "ru", "en", [])
    contents = scores_of(folders, Translator())
    assert [row["lang"] for row in contents["languages"]] == ["fr"]
    missing, unequal, empty = contents["checks"]
    assert missing == (
        f"pl-en is not scored: --corpus {corpus} has no text of this direction, which {run} was trained "
        "on; give the corpus of the run."
    )
    assert unequal.startswith("de-en is not scored: the two files of de-en have different lengths")
    assert empty == f"ru-en is not scored: --corpus {corpus} has no test text of this direction."
    # Text that cannot be read has no fingerprint.
    text = contents["provenance"]["training text"]
    assert text.startswith("unknown: the two files of de-en have different lengths")


def test_a_run_folder_that_cannot_be_written_is_evaluated(folders, monkeypatch, capsys):
    def fail(*arguments):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("gshard_nmt.evaluation.translations.store", fail)
    assert len(scores_of(folders, Translator())["languages"]) == 2
    err = capsys.readouterr().err
    assert "decodes cannot be written (Read-only file system), so these translations are not" in err


def test_several_systems_are_compared(folders, capsys):
    others = {"others": [folders / "baselines" / "fr"], "names": ["MoE", "small"]}
    translate = Translator()
    contents = scores_of(folders, translate, baselines=folders / "baselines", **others)
    # The small run is also the baseline, so its translations are used twice.
    assert sorted(translate.calls) == [("fr", "fr"), ("run", "de"), ("run", "fr")]
    moe, small = contents["systems"]
    assert (moe["name"], small["name"]) == ("MoE", "small")
    assert {row["lang"]: row["bleu"] for row in moe["languages"]} == {
        row["lang"]: row["bleu"] for row in contents["languages"]
    }
    assert small["missing"] == ["de"]
    (row,) = small["languages"]
    assert (row["delta_bleu"], row["delta_ci95"]) == (0.0, [0.0, 0.0])
    assert row["difference_ci95"][1] < 0
    assert contents["differences"]["small"]["directions"] == 1
    page = (folders / "report" / "index.html").read_text()
    assert "<title>MoE: test BLEU" in page
    assert "<p>small has no scores of de.</p>" in page
    assert "small" in capsys.readouterr().out


def test_another_run_that_cannot_be_compared_is_refused_before_decoding(folders):
    set_data(folders / "baselines" / "fr", pairs=data_facts(["pl"])["pairs"])
    translate = Translator()
    with pytest.raises(UserError, match="have a direction in common"):
        scores_of(folders, translate, others=[folders / "baselines" / "fr"])
    assert translate.calls == []


def test_other_metrics_are_in_the_rows_the_page_and_the_terminal(folders, capsys):
    asked = {"metrics": ("chrf++", "ter"), "baselines": folders / "baselines"}
    contents = scores_of(folders, Translator(), **asked)
    assert list(contents["signature"]) == ["bleu", "chrf", "chrfpp", "ter"]
    for row in contents["languages"]:
        assert (row["chrfpp"], row["ter"]) == (pytest.approx(100), 0)
    page = (folders / "report" / "index.html").read_text()
    assert ">chrF++</th>" in page
    assert ">TER</th>" in page
    assert "Which gains are significant" in page
    assert "Scores by length of the source" in page
    out = capsys.readouterr().out
    assert "TER" in out
    assert f"TER {contents['signature']['ter']}" in out
    assert "chrfpp" in (folders / "report" / "bleu.csv").read_text().splitlines()[0]


def test_a_published_test_set_takes_the_place_of_the_corpus(folders, capsys):
    place = folders / "flores" / "devtest"
    place.mkdir(parents=True)
    for code, change in (("fra_Latn", str.upper), ("eng_Latn", str), ("nob_Latn", str)):
        lines = [change(line) for line in SENTENCES]
        (place / f"{code}.devtest").write_text("".join(f"{line}\n" for line in lines))
    published = test_sets.open_folder(folders / "flores")
    contents = scores_of(folders, Translator(), published=published, sentences=4)
    (row,) = contents["languages"]
    assert (row["source"], row["target"], row["sentences"]) == ("fr", "en", 4)
    assert row["bleu"] == pytest.approx(100)
    facts = contents["provenance"]
    assert facts["test text"].startswith(f"flores.devtest of {folders / 'flores'}; fingerprint ")
    assert facts["left out"] == (
        "the test set has no text of de-en, which the run was trained on; the run was not trained on nb, "
        "so they are left out"
    )
    assert "--test_set: the test set has no text of de-en" in capsys.readouterr().err
    assert any("no text of de-en" in check for check in contents["checks"])
    assert (folders / "run" / "decodes" / "flores.devtest.fr-en.txt").exists()


def test_the_experts_of_the_run_are_a_section_of_the_report(folders):
    calls = []

    def count(workdir, tests, checkpoint):
        calls.append((workdir.name, [test[:2] for test in tests], checkpoint))
        chosen = np.full((1, len(tests), 4), 600.0)
        chosen[..., 3] = 0
        tokens, nothing = np.full((1, len(tests)), 900.0), np.zeros(2, int)
        return ExpertUse(["decoder_1"], tokens, chosen, chosen / 2, nothing, "step 9")

    result = scores_of(folders, Translator(), choices=Choices("last"), count_experts=count)
    # Both languages have equal training text.
    assert calls == [("run", [("de", "en"), ("fr", "en")], "last")]
    assert result["routing"]["load"] == [[0.3333, 0.3333, 0.3333, 0]]
    page = (folders / "report" / "index.html").read_text()
    assert "decoder_1: 1 of 4 experts get almost no token (3)" in page
    assert "Which experts each language uses" in page


def test_a_dense_run_has_no_experts_to_count(folders):
    (folders / "run" / "config.gin").write_text("Model.experts = 0\n")
    translate = Translator()
    with pytest.raises(UserError, match=r"is a dense model \(Model.experts is 0\)"):
        scores_of(folders, translate, count_experts=pytest.fail)
    assert translate.calls == []


def test_the_page_shows_the_commands_and_samples_that_the_seed_has_chosen(folders):
    command = "gshard-eval --workdir='a run' --report=r"
    (folders / "run" / "command.txt").write_text("gshard-train a\ngshard-train b\n")
    (folders / "baselines" / "fr" / "command.txt").write_text("gshard-train --baselines_of=run\n")
    asked = {"command": command, "baselines": folders / "baselines"}
    facts = scores_of(folders, Translator(), **asked)["provenance"]
    assert facts["command"] == command
    assert facts["training command"] == "gshard-train a\ngshard-train b"
    assert facts["training command of the baselines"] == "gshard-train --baselines_of=run"
    text = (folders / "report" / "index.html").read_text()
    assert "<pre class='command'>gshard-eval --workdir=&#x27;a run&#x27; --report=r</pre>" in text
    of_french = text[text.index("<summary>fr") :].partition("</details>")[0]
    for place, sentence in enumerate(SENTENCES):
        is_chosen = place in chosen_samples(("fr", "en"), len(SENTENCES), 2)
        assert (f">{sentence}<" in of_french) == is_chosen


def test_a_report_replaces_reports_and_no_other_pages(folders):
    for _ in range(2):
        scores_of(folders, Translator())
    (folders / "report" / "bleu.json").unlink()
    with pytest.raises(UserError, match=r"report has a file index\.html that is not of a report"):
        scores_of(folders, Translator())
