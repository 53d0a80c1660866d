"""The keys of texts and directions change with everything that their shards depend on."""

import dataclasses

from gshard_nmt.data.preparation.texts import Direction, LanguageText, SplitText, folder_of

from gshard_nmt.data.preparation.inputs import Text, name_of
from gshard_nmt.data.sets.corpus import find_pairs, write_pairs


def pair_of(tmp_path, subset=""):
    for split in ("train", "dev"):
        write_pairs(tmp_path / subset / "fr-en", split, "fr", "en", [("un", "one")])
    (pair,) = find_pairs(tmp_path / subset, subset=subset)
    return pair


def texts_of(*pairs):
    return {name_of(item): Text(item.split, (3, 2)) for pair in pairs for item in pair.texts}


def test_the_text_of_a_split_has_a_name_a_size_and_a_key(tmp_path):
    pair = pair_of(tmp_path, "back")
    train, dev = (SplitText.of(pair, split, texts_of(pair)) for split in ("train", "dev"))
    assert (train.name, train.total) == ("fr-en.back/train", 5)
    assert train.key != dev.key
    assert SplitText.of(pair, "test", {}).total == 0


def test_a_corpus_without_test_text_does_not_change_what_is_held_out(tmp_path):
    main, back = pair_of(tmp_path / "a"), pair_of(tmp_path / "b", "back")
    back = dataclasses.replace(back, texts=tuple(t for t in back.texts if t.split == "train"))
    alone, both = (LanguageText.of(p, texts_of(main, back)) for p in ([main], [main, back]))
    assert alone.held_out == both.held_out
    assert [folder_of(pair) for pair in both.pairs] == ["fr-en", "fr-en.back"]


def test_the_key_of_a_direction_changes_with_all_that_matters(tmp_path):
    pair = pair_of(tmp_path)
    forth, back = Direction(pair, "fr", "en"), Direction(pair, "en", "fr")
    assert (forth.is_reversed, back.is_reversed) == (False, True)
    assert (forth.folder, back.folder) == ("fr-en", "en-fr")
    keys = [
        forth.key(["a", "b"], [64, 64], ["v", "w"]),
        back.key(["a", "b"], [64, 64], ["v", "w"]),
        forth.key(["a", "c"], [64, 64], ["v", "w"]),
        forth.key(["a", "b"], [64, 32], ["v", "w"]),
        forth.key(["a", "b"], [64, 64], ["v", "x"]),
    ]
    assert len(set(keys)) == 5
    assert keys[0] == forth.key(["a", "b"], [64, 64], ["v", "w"])
