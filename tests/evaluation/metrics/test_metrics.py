"""Scores and signatures equal those of the sacreBLEU command line to the last digit."""

import json
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest
import sentencepiece

from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.metrics import metrics
from gshard_nmt.evaluation.metrics.metrics import Measures

# fmt: off
WORDS = {
    "zh": ["文件", "没有", "找到", "，", "在", "文件夹", "里", "2024年", "今天", "。", "API", "打开"],
    "ja": ["ファイル", "が", "見つかり", "ません", "、", "今日", "は", "フォルダ", "を", "開く", "。"],
    "fr": ["le", "fichier", "n'est", "pas", "là,", "dossier", "«", "été", "»", "3,5", "aujourd'hui."],
    "ar": ["الملف", "غير", "موجود", "في", "المجلد", "،", "اليوم", "افتح", "؟", "3.5", "مرة"],
}
# fmt: on
SPACES = {"zh": "", "ja": "", "fr": " ", "ar": " "}
SCORERS = ["bleu", "chrf", "chrfpp", "ter", "spbleu"]

SACREBLEU = """
import json, sys
from sacrebleu.sacrebleu import main

streams = []  # main opens them again, and a stream that nobody refers to would close its file
for words in json.loads(sys.argv[1]):
    sys.argv = ["sacrebleu", *words]
    streams += [sys.stdin, sys.stdout]
    main()
    print("\\f", flush=True)
"""
"""Runs the command line of sacreBLEU several times in one process."""


def system(language: str, seed: int, number: int = 40) -> tuple[list[str], list[list[str]]]:
    """Returns translations and two references, all with some words in common."""
    rng = np.random.default_rng(seed)
    words, space = WORDS[language], SPACES[language]
    plain = [list(rng.choice(words, rng.integers(1, 14))) for _ in range(number)]

    def noisy(rate):
        changed = [
            [word if rng.random() > rate else rng.choice(words) for word in line] for line in plain
        ]
        return [space.join(line[: len(line) - int(rng.integers(0, 2))]) for line in changed]

    return noisy(0.3), [[space.join(line) for line in plain], noisy(0.2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a SentencePiece model at the place where sacreBLEU looks for it."""
    root = tmp_path_factory.mktemp("metrics")
    lines = [line for language in WORDS for line in system(language, 5)[1][0]]
    (root / "models").mkdir()
    with (root / "models" / "flores200sacrebleuspm").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=file, vocab_size=140, minloglevel=2
        )
    return root


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def test_scores_and_signatures_equal_the_command_line_of_sacrebleu(folder):
    tokenizers = {"zh": "zh", "ja": metrics.tokenizer("ja"), "fr": "13a", "ar": "13a"}
    options = {
        "bleu": lambda language: ["-m", "bleu", "-tok", tokenizers[language]],
        "chrf": lambda language: ["-m", "chrf"],
        "chrfpp": lambda language: ["-m", "chrf", "--chrf-word-order", "2"],
        "ter": lambda language: ["-m", "ter"],
        "spbleu": lambda language: ["-m", "bleu", "-tok", "flores200"],
    }
    measures = Measures(("chrf++", "ter", "spbleu"), folder / "models" / "flores200sacrebleuspm")
    commands, ours = [], []
    for seed, (language, references) in enumerate((lang, n) for lang in WORDS for n in (1, 2)):
        hypotheses, all_references = system(language, seed)
        results = metrics.scores(hypotheses, all_references[:references], language, measures)
        assert list(results) == SCORERS
        ours += [(results[key].value, results[key].signature) for key in SCORERS]
        files = [
            write(folder / f"{language}{seed}.ref{i}", lines)
            for i, lines in enumerate(all_references[:references])
        ]
        translated = write(folder / f"{language}{seed}.hyp", hypotheses)
        common = [*files, "-i", translated, "-w", "14", "-f", "json", "-q", "--no-color"]
        commands += [[*common, *options[key](language)] for key in SCORERS]
    out = subprocess.run(
        [sys.executable, "-c", SACREBLEU, json.dumps(commands)],
        env={"SACREBLEU": str(folder), "PATH": ""},
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        check=True,
        text=True,
    ).stdout
    theirs = [json.loads(part) for part in out.split("\f")[:-1]]
    assert len(theirs) == len(ours) == 4 * 2 * len(SCORERS)
    for result, (value, signature) in zip(theirs, ours, strict=True):
        assert (f"{result['score']:.14f}", result["signature"]) == (f"{value:.14f}", signature)


def test_the_tokenizer_of_a_language_without_its_package_is_characters(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert metrics.tokenizer("ja") == metrics.tokenizer("ko") == "char"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert (metrics.tokenizer("ja"), metrics.tokenizer("ko")) == ("ja-mecab", "ko-mecab")


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("zh", ("zh", "zh-Hant", "zho_Hans", "zh_CN", "cmn", "yue", "lzh", "wuu", "nan", "hak")),
        ("ja-mecab", ("ja", "jpn", "jp", "ja_JP")),
        ("ko-mecab", ("ko", "kor_Hang")),
        ("char", ("th", "khm", "lo", "mya_Mymr", "bo", "dz")),
        ("13a", ("en", "zh-Latn", "iw", "no language")),
    ],
)
def test_the_tokenizer_of_a_language_however_its_code_is_written(monkeypatch, name, codes):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert {metrics.tokenizer(code) for code in codes} == {name}


def test_the_signature_of_another_sentencepiece_model_names_the_file(folder):
    shutil.copy(folder / "models" / "flores200sacrebleuspm", folder / "own.model")
    measures = Measures(("spbleu",), folder / "own.model")
    hypotheses, references = system("fr", 1)
    result = metrics.scores(hypotheses, references[:1], "fr", measures)["spbleu"]
    assert "|tok:spm[own.model," in result.signature


def test_comet_is_the_mean_over_references(monkeypatch, tmp_path):
    class Model:
        def predict(self, rows, batch_size, gpus):
            assert [row["src"] for row in rows] == ["un", "deux"]
            share = sum(row["mt"] == row["ref"] for row in rows) / len(rows)
            return types.SimpleNamespace(system_score=share)

    package = types.ModuleType("comet")
    package.load_from_checkpoint = lambda path: Model()
    monkeypatch.setitem(sys.modules, "comet", package)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.2")
    metrics._comet_model.cache_clear()
    measures = Measures(("comet",), comet_model=tmp_path / "model.ckpt")
    references = [["one", "two"], ["one", "2"]]
    result = metrics.scores(["one", "two"], references, "en", measures, ["un", "deux"])["comet"]
    metrics._comet_model.cache_clear()
    assert result == metrics.Measured(0.75, "nrefs:2|model:model.ckpt|version:2.2")


@pytest.mark.parametrize(
    ("measures", "message"),
    [
        (Measures(("blue",)), "--metrics names 'blue'; the metrics are bleu, chrf, chrf++, ter"),
        (Measures(("spbleu",)), "--metrics spbleu needs a SentencePiece model. Give the model of"),
        (Measures(spm_model="m"), "--spm_model m is for spbleu alone; add --metrics spbleu."),
        (Measures(comet_model="m"), "--comet_model m is for comet alone; add --metrics comet."),
        (Measures(("comet",)), "Install it with: pip install unbabel-comet"),
    ],
)
def test_a_metric_that_cannot_be_computed_is_an_error(monkeypatch, measures, message):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError) as raised:
        measures.check()
    assert message in str(raised.value)


def test_a_file_that_is_no_sentencepiece_model_is_an_error(tmp_path):
    (tmp_path / "x").write_text("no model")
    for name, message in (("x", "is not a SentencePiece model"), ("y", "cannot be read (No such")):
        with pytest.raises(UserError) as raised:
            Measures(("spbleu",), tmp_path / name).check()
        assert message in str(raised.value)


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        ([], [[]], "the test set is empty; give at least one sentence."),
        (["a"], [], "there are no references; give at least one reference."),
        (
            ["a", "b"],
            [["a", "b"], ["a"]],
            "the numbers of translations and references are 2 and 1; give one translation for each "
            "reference.",
        ),
    ],
)
def test_an_empty_test_set_and_different_numbers_of_lines_are_errors(
    hypotheses, references, message
):
    with pytest.raises(UserError) as raised:
        metrics.scores(hypotheses, references, "en")
    assert str(raised.value) == message


def test_bleu_alone_is_that_of_all_scores():
    hypotheses, references = system("fr", 3)
    expected = metrics.scores(hypotheses, references[:1], "fr")["bleu"].value
    assert metrics.bleu(hypotheses, references[0], "fr") == expected
