"""What identifies a preparation: fingerprints of the corpora, and the keys of texts and vocabularies."""

import dataclasses

import numpy as np
import pytest

from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation.inputs import Text, digest_of, fingerprint, name_of
from gshard_nmt.data.preparation.plan import Choice, Plan
from gshard_nmt.data.sets.corpus import find_pairs, write_pairs
from gshard_nmt.data.text.vocabulary import VocabularySpec, train_vocabulary

CONFIG = Data(direction="many-to-many")


def plan_of(tmp_path, config=CONFIG):
    pairs = []
    for subset, name in (("", "fr-en"), ("back", "fr-en"), ("", "de-en")):
        for split in ("train", "dev"):
            rows = [(f"{subset} {name} {split}", "x")]
            folder = tmp_path / (subset or "main")
            write_pairs(folder / name, split, *name.split("-"), rows)
    for subset in ("", "back"):
        pairs += find_pairs(tmp_path / (subset or "main"), subset=subset)
    texts = {name_of(i): Text(digest_of(i), (1,)) for pair in pairs for i in pair.texts}
    return Plan(config, Cleaning(), pairs, texts)


@pytest.fixture
def plan(tmp_path):
    return plan_of(tmp_path)


def changed(plan, config=None, cleaning=None, **digests):
    """Returns a plan with other settings, or with other digests of `<corpus>_<split>` of fr-en."""
    texts = {
        name_of(i): dataclasses.replace(
            plan.texts[name_of(i)],
            digest=digests.get(f"{pair.subset or 'main'}_{i.split}", plan.texts[name_of(i)].digest),
        )
        for pair in plan.pairs
        if pair.source == "fr"
        for i in pair.texts
    }
    return dataclasses.replace(
        plan,
        config=dataclasses.replace(plan.config, **config or {}),
        cleaning=dataclasses.replace(plan.cleaning, **cleaning or {}),
        texts={**plan.texts, **texts},
    )


def keys(plan):
    return plan.text_keys["fr-en"], plan.text_keys["fr-en.back"]


def test_each_corpus_has_a_fingerprint_and_each_direction_a_folder(tmp_path, plan):
    facts = plan.facts()
    assert facts["corpus_fingerprint"] == fingerprint(find_pairs(tmp_path / "main"))
    assert list(facts["subset_fingerprints"]) == ["back"]
    names = [direction.folder for direction in plan.directions]
    assert names == ["de-en", "en-de", "fr-en", "en-fr", "fr-en.back", "en-fr.back"]
    assert [direction.is_reversed for direction in plan.directions] == [False, True] * 3
    assert [languages.names for languages in plan.languages()] == [
        ["de-en"],
        ["fr-en", "fr-en.back"],
    ]


@pytest.mark.parametrize(
    ("digest", "differ"),
    [
        ("main_train", (True, True)),  # its duplicates are dropped from the subset
        ("back_train", (False, True)),
        ("main_dev", (True, True)),
        ("back_dev", (True, True)),  # no training text may be in any dev text
    ],
)
def test_the_key_of_clean_text_changes_with_the_text_it_depends_on(plan, digest, differ):
    pairs = zip(keys(plan), keys(changed(plan, **{digest: "x"})), strict=True)
    assert tuple(a != b for a, b in pairs) == differ


def test_the_key_of_clean_text_changes_with_the_settings_that_matter(plan):
    before = keys(plan)
    assert keys(changed(plan, {"seed": 7, "source_length": 99})) == before
    assert keys(changed(plan, cleaning={"ratio": 9.0})) != before
    some = keys(changed(plan, {"maximum_pairs": 5}))
    assert some != before
    assert some != keys(changed(plan, {"maximum_pairs": 5, "seed": 7}))
    # Without duplicates to drop, the main corpus does not matter to the subset.
    alone = changed(plan, cleaning={"duplicates": ()})
    assert keys(alone)[1] == keys(changed(alone, main_train="x"))[1]


def test_the_keys_of_directions_change_with_all_that_matters(tmp_path, plan):
    file = tmp_path / "x.model"
    small, other = (
        train_vocabulary([line], VocabularySpec(300), file).content for line in ("a b", "c d")
    )
    models = {"source": small, "target": small}
    before = plan.keys(models)
    assert len({*before.values()}) == 7
    assert plan.keys(models) == before
    for key in (
        changed(plan, main_dev="x").keys(models)["fr-en"],
        changed(plan, {"target_length": 32}).keys(models)["fr-en"],
        plan.keys({**models, "target": other})["fr-en"],
    ):
        assert key not in before.values()


def test_the_key_of_the_vocabularies_changes_with_what_they_are_learned_from(plan):
    before = plan.vocabulary_key
    assert changed(plan, {"rows": 8}).vocabulary_key == before
    for setting in ({"vocabulary_sentences": 9}, {"source_vocabulary": 999}, {"seed": 5}):
        assert changed(plan, setting).vocabulary_key != before
    assert dataclasses.replace(plan, pairs=plan.pairs[:2]).vocabulary_key != before
    assert changed(plan, cleaning={"ratio": 2.0}).vocabulary_key != before


def test_the_key_of_romanizing_vocabularies_changes_with_the_rules(tmp_path, monkeypatch):
    config = dataclasses.replace(CONFIG, romanize_source=True)
    before = plan_of(tmp_path, config).vocabulary_key
    monkeypatch.setattr("gshard_nmt.data.preparation.plan.rules", lambda: "E9\t65\n")
    assert plan_of(tmp_path, config).vocabulary_key != before


@pytest.mark.parametrize("limit", [1, 37, 99, 100, 200])
def test_a_choice_has_its_number_of_rows_and_does_not_depend_on_blocks(limit):
    choice = Choice(limit, 100, 3)
    whole = choice.places(0, 100)
    assert len(whole) == min(limit, 100)
    parts = [choice.places(first, 7) + first for first in range(0, 98, 7)]
    parts.append(choice.places(98, 2) + 98)
    assert np.array_equal(np.concatenate(parts), whole)
    if limit == 37:
        assert not np.array_equal(Choice(limit, 100, 4).places(0, 100), whole)
