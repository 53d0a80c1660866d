"""Both vocabularies of a run with a new language."""

import pytest

from gshard_nmt.data.preparation.vocabulary_growth import Newcomer, grow_pair
from gshard_nmt.data.sets.corpus import find_pairs
from gshard_nmt.data.text.vocabulary import Vocabulary
from tests.newcomer import CONFIG, make_run, write_corpus


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("newcomer")
    write_corpus(folder / "new", "el")
    return folder


@pytest.fixture(scope="module")
def run(folder):
    return make_run(folder)


def newcomer(folder, run, directions=(("el", "en"),), targets=("en",), **settings) -> Newcomer:
    config = CONFIG.replace(data=settings).data
    pairs = find_pairs(folder / "new")
    return Newcomer("el", pairs, directions, set(targets), config, run.path, 40)


def sizes(models) -> list[int]:
    return [Vocabulary.load(models[side]).size for side in ("source", "target")]


def test_only_the_side_that_has_the_language_grows(folder, run, tmp_path):
    (old, data), said = run, []
    models = grow_pair(
        newcomer(folder, old), data, tmp_path, lambda text, **options: said.append(text)
    )
    source, target = old.vocabularies()
    grown = Vocabulary.load(models["source"])
    assert grown.size > source.size
    assert grown.keys()[: source.size] == source.keys()
    assert models["target"].read_bytes() == target.content
    (line,) = said
    assert "new ones for el" in line
    assert "Of 24 old dev lines, 0 are split in another way (0.00%)." in line


def test_a_target_language_gets_a_tag_if_there_are_several(folder, run):
    both = (("el", "en"), ("en", "el"))
    assert newcomer(folder, run[0]).tags() == []
    assert newcomer(folder, run[0], both).tags() == ["<2el>"]
    assert newcomer(folder, run[0], [("en", "el")], ["fr"]).tags() == ["<2el>"]
    assert newcomer(folder, run[0], language_tags=True).tags() == ["<el>"]


def test_a_tag_alone_keeps_the_size_and_takes_a_spare_tag(folder, run, tmp_path):
    old, data = run
    models = grow_pair(
        newcomer(folder, old, [("en", "el")], ["en"]), data, tmp_path, lambda *_, **__: None
    )
    source, target = old.vocabularies()
    assert sizes(models)[0] == source.size
    assert sizes(models)[1] > target.size
    assert Vocabulary.load(models["source"]).tag("<2el>") == source.tag("<spare1>")


def test_a_joint_vocabulary_grows_once(folder, tmp_path):
    joint = {"vocabulary": "joint", "source_vocabulary": 340, "target_vocabulary": 340}
    old, data = make_run(tmp_path, CONFIG.replace(data=joint))
    (tmp_path / "models").mkdir()
    models = grow_pair(
        newcomer(folder, old, **joint), data, tmp_path / "models", lambda *_, **__: None
    )
    assert models["source"].read_bytes() == models["target"].read_bytes()
    assert sizes(models)[0] > old.vocabularies()[0].size
