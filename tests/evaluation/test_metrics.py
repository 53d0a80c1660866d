"""Scores and signatures equal those of the sacreBLEU command line to the last digit."""

import json
import subprocess
import sys

import numpy as np
import pytest
import sentencepiece
from sacrebleu.metrics import BLEU

from gshard_nmt.errors import UserError
from gshard_nmt.evaluation import metrics

WORDS = {
    "zh": ["文件", "没有", "找到", "，", "在", "文件夹", "里", "2024年", "今天", "。", "API", "打开"],
    "ja": ["ファイル", "が", "見つかり", "ません", "、", "今日", "は", "フォルダ", "を", "開く", "。"],
    "fr": ["le", "fichier", "n'est", "pas", "là,", "dossier", "«", "été", "»", "3,5", "aujourd'hui."],
    "ar": ["الملف", "غير", "موجود", "في", "المجلد", "،", "اليوم", "افتح", "؟", "3.5", "مرة"],
}  # fmt: skip
SPACES = {"zh": "", "ja": "", "fr": " ", "ar": " "}
SCORERS = ["bleu", "chrf", "chrfpp", "ter"]

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


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def test_scores_and_signatures_equal_the_command_line_of_sacrebleu(tmp_path):
    tokenizers = {"zh": "zh", "ja": metrics.tokenizer("ja"), "fr": "13a", "ar": "13a"}
    options = {
        "bleu": lambda language: ["-m", "bleu", "-tok", tokenizers[language]],
        "chrf": lambda language: ["-m", "chrf"],
        "chrfpp": lambda language: ["-m", "chrf", "--chrf-word-order", "2"],
        "ter": lambda language: ["-m", "ter"],
    }
    commands, ours = [], []
    for seed, (language, references) in enumerate((lang, n) for lang in WORDS for n in (1, 2)):
        hypotheses, all_references = system(language, seed)
        results = metrics.scores(
            hypotheses, all_references[:references], language, ("chrf++", "ter")
        )
        assert list(results) == SCORERS
        ours += [(results[key].value, results[key].signature) for key in SCORERS]
        files = [
            write(tmp_path / f"{language}{seed}.ref{i}", lines)
            for i, lines in enumerate(all_references[:references])
        ]
        translated = write(tmp_path / f"{language}{seed}.hyp", hypotheses)
        common = [*files, "-i", translated, "-w", "14", "-f", "json", "-q", "--no-color"]
        commands += [[*common, *options[key](language)] for key in SCORERS]
    out = subprocess.run(
        [sys.executable, "-c", SACREBLEU, json.dumps(commands)],
        env={"SACREBLEU": str(tmp_path), "PATH": ""},
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        check=True,
        text=True,
    ).stdout
    theirs = [json.loads(part) for part in out.split("\f")[:-1]]
    assert len(theirs) == len(ours) == 4 * 2 * len(SCORERS)
    for result, (value, signature) in zip(theirs, ours, strict=True):
        assert (f"{result['score']:.14f}", result["signature"]) == (f"{value:.14f}", signature)


def test_spbleu_is_bleu_on_pieces_and_needs_the_model_of_sacrebleu(tmp_path, monkeypatch):
    def no_network(url, path):
        raise OSError("no network")

    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.download_file", no_network)
    with pytest.raises(UserError, match=r"cannot fetch it \(no network\)\. Copy it to .*flores"):
        metrics.check_names(["ter", "spbleu"])
    hypotheses, references = system("fr", 0)
    (tmp_path / "models").mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(references[0]),
        model_prefix=str(tmp_path / "models" / "flores200sacrebleuspm"),
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    model = tmp_path / "models" / "flores200sacrebleuspm.model"
    model.rename(model.with_suffix(""))
    metrics.check_names(["spbleu"])
    result = metrics.scores(hypotheses, references, "fr", ["spbleu"])["spbleu"]
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model.with_suffix("")))
    split = [
        [" ".join(pieces.encode_as_pieces(line)) for line in x] for x in (hypotheses, *references)
    ]
    assert result.value == BLEU(tokenize="none").corpus_score(split[0], split[1:]).score
    assert "tok:flores200" in result.signature


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


def test_bleu_alone_is_that_of_all_scores():
    hypotheses, references = system("fr", 3)
    expected = metrics.scores(hypotheses, references[:1], "fr")["bleu"].value
    assert metrics.bleu(hypotheses, references[0], "fr") == expected


def test_signatures_that_differ_name_their_directions():
    assert metrics.joined_signatures({"fr-en": "a", "en-fr": "a"}) == "a"
    assert metrics.joined_signatures({"fr-en": "a", "en-zh": "b"}) == "a (fr-en); b (en-zh)"
