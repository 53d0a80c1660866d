"""What identifies a preparation: fingerprints of the corpora, the key of the vocabularies."""

import dataclasses

from gshard_nmt.data.preparation.cleaning import Cleaner

from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation.inputs import Text, fingerprint, name_of
from gshard_nmt.data.preparation.inputs import digest_of as read_digest
from gshard_nmt.data.preparation.plan import Plan
from gshard_nmt.data.sets.corpus import find_pairs, write_pairs

CONFIG = Data(direction="many-to-many")


def plan_of(tmp_path, config=CONFIG):
    pairs = []
    for subset, name in (("", "fr-en"), ("back", "fr-en"), ("", "de-en")):
        rows = [(f"{subset} {name}", "x")]
        folder = tmp_path / (subset or "main")
        write_pairs(folder / name, "train", *name.split("-"), rows)
    for subset in ("", "back"):
        pairs += find_pairs(tmp_path / (subset or "main"), subset=subset)
    texts = {name_of(i): Text(read_digest(i), (1,)) for pair in pairs for i in pair.texts}
    return Plan(config, pairs, texts)


def test_each_corpus_has_a_fingerprint(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    plan = plan_of(tmp_path)
    facts = plan.facts()
    assert facts["corpus_fingerprint"] == fingerprint(find_pairs(tmp_path / "main"))
    assert list(facts["subset_fingerprints"]) == ["back"]
    names = [direction.folder for direction in plan.directions]
    assert names == ["de-en", "en-de", "fr-en", "en-fr", "fr-en.back", "en-fr.back"]
    assert [len(languages.pairs) for languages in plan.languages()] == [1, 2]


def test_the_key_of_the_vocabularies_changes_with_what_they_are_learned_from(tmp_path):
    plan = plan_of(tmp_path)

    def key(plan, cleaning=Cleaning()):  # noqa: B008
        return plan.vocabulary_key(Cleaner(plan.config, cleaning, lambda *_: []))

    before = key(plan)
    assert key(dataclasses.replace(plan, config=dataclasses.replace(CONFIG, rows=8))) == before
    for setting in ({"vocabulary_sentences": 9}, {"source_vocabulary": 999}, {"seed": 5}):
        changed = dataclasses.replace(CONFIG, **setting)
        assert key(dataclasses.replace(plan, config=changed)) != before
    assert key(dataclasses.replace(plan, pairs=plan.pairs[:2])) != before
    assert key(plan, Cleaning(ratio=2.0)) != before


def test_the_key_of_romanizing_vocabularies_changes_with_the_rules(tmp_path, monkeypatch):
    plan = plan_of(tmp_path, dataclasses.replace(CONFIG, romanize_source=True))
    cleaner = Cleaner(plan.config, Cleaning(), lambda *_: [])
    before = plan.vocabulary_key(cleaner)
    monkeypatch.setattr("gshard_nmt.data.preparation.plan.rules", lambda: "E9\t65\n")
    assert plan.vocabulary_key(cleaner) != before
