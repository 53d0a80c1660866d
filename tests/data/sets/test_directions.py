"""Which pairs of corpora are used, in which directions, and what is said about the others."""

import pytest

from gshard_nmt.data.config import Data
from gshard_nmt.data.sets.corpus import find_pairs, read_pairs, write_pairs
from gshard_nmt.data.sets.directions import candidates, choose, directions_of, joined
from gshard_nmt.errors import UserError


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    root = tmp_path_factory.mktemp("corpus")
    for name, number in {"fr-en": 5, "de-en": 4, "fr-de": 3, "it-de": 2}.items():
        source, target = name.split("-")
        rows = [(f"{source} {n}", f"{target} {n}") for n in range(number)]
        write_pairs(root / name, "train", source, target, rows)
        write_pairs(root / name, "dev", source, target, rows[:1])
    return root


def used(corpus, **settings):
    """Returns the directions that a config uses, and the notes."""
    config = Data(**settings)
    usable = candidates(config, find_pairs(corpus))

    def rows(pair):
        return len(list(read_pairs(pair, "train", pair.source, pair.target)))

    return [
        f"{source}-{target} as {pair.language}"
        for pair in choose(config, usable.pairs, rows, [])
        for source, target in directions_of(config.direction, pair.source, pair.target)
    ], usable.notes


def test_pairs_without_english_are_left_out_and_named(corpus):
    directions, notes = used(corpus)
    assert directions == ["fr-en as fr", "de-en as de"]
    assert notes == [
        "2 pairs (fr-de, it-de) are left out: no English; Data.direction = 'all' or 'as-named' takes them"
    ]
    assert used(corpus, direction="en-xx")[0] == ["en-fr as fr", "en-de as de"]
    assert used(corpus, direction="many-to-many", languages=("de",))[0] == [
        "de-en as de",
        "en-de as de",
    ]


def test_every_pair_in_both_directions(corpus):
    directions, notes = used(corpus, direction="all")
    assert directions == [
        *("fr-en as fr", "en-fr as fr", "de-en as de", "en-de as de"),
        *("fr-de as fr-de", "de-fr as fr-de", "it-de as it-de", "de-it as it-de"),
    ]
    assert not notes
    assert used(corpus, direction="as-named")[0] == directions[::2]


def test_languages_name_pairs_by_their_languages_or_by_their_names(corpus):
    names = used(corpus, direction="as-named", languages=("de", "fr"))[0]
    assert names == ["de-en as de", "fr-de as fr-de", "fr-en as fr"]
    assert used(corpus, direction="as-named", languages=("fr-de",))[0] == ["fr-de as fr-de"]
    with pytest.raises(UserError, match=r"'it', which the corpus does not have.* It has: de, fr\."):
        used(corpus, languages=("it",))
    with pytest.raises(UserError, match=r"'fr-dee', .*did you mean 'fr-de'"):
        used(corpus, direction="all", languages=("fr-dee",))


def test_a_second_folder_of_a_language_is_read_too(tmp_path):
    write_pairs(tmp_path / "en-fr", "train", "en", "fr", [("one", "un")])
    write_pairs(tmp_path / "fr-en", "train", "fr", "en", [("deux", "two")])
    (tmp_path / "fra-eng").mkdir()
    (tmp_path / "fra-eng" / "a.tsv").write_text("trois\tthree\n")
    usable = candidates(Data(), find_pairs(tmp_path))
    (pair,) = usable.pairs
    assert (pair.source, pair.target, pair.language) == ("fr", "en", "fr")
    rows = list(read_pairs(pair, "train", "fr", "en"))
    assert rows == [("un", "one"), ("deux", "two"), ("trois", "three")]
    names = [text.name for text in pair.inputs("train")]
    assert names == ["en-fr/train.en", "fr-en/train.fr", "fra-eng/a.tsv"]
    folders = [tmp_path / name for name in ("fr-en", "fra-eng")]
    assert usable.notes == [
        f"{folder} has the languages of {tmp_path / 'en-fr'}; the text of both is used as fr"
        for folder in folders
    ]


def test_named_corpora_give_training_text_and_test_sets_only_if_no_other_has_them(tmp_path):
    for corpus, name, splits in (
        ("main", "fr-en", ("train", "dev")),
        ("back", "fr-en", ("train", "dev", "test")),
        ("back", "en-de", ("train", "dev")),
        ("mined", "de-en", ("train", "dev")),
    ):
        for split in splits:
            write_pairs(tmp_path / corpus / name, split, *name.split("-"), [("a", "b")])
    pairs = [
        *find_pairs(tmp_path / "main"),
        *find_pairs(tmp_path / "back", subset="back"),
        *find_pairs(tmp_path / "mined", subset="mined"),
    ]
    usable = candidates(Data(), pairs)
    assert [(p.language, p.subset, [t.split for t in p.texts]) for p in usable.pairs] == [
        ("fr", "", ["dev", "train"]),
        ("de", "back", ["dev", "train"]),
        ("fr", "back", ["test", "train"]),
        ("de", "mined", ["train"]),
    ]
    assert [note.split(";")[0] for note in usable.notes] == [
        f"dev of {tmp_path / 'back' / 'fr-en'} is not used",
        f"dev of {tmp_path / 'mined' / 'de-en'} is not used",
    ]
    chosen = choose(Data(minimum_pairs=2), usable.pairs, lambda pair: 1, [])
    assert [(pair.language, pair.subset) for pair in chosen] == [
        *(("de", "back"), ("de", "mined")),
        *(("fr", ""), ("fr", "back")),
    ]


def test_a_pair_has_the_same_order_in_all_corpora(tmp_path):
    write_pairs(tmp_path / "main" / "fr-de", "train", "fr", "de", [("a", "b")])
    write_pairs(tmp_path / "back" / "de-fr", "train", "de", "fr", [("c", "d")])
    pairs = [*find_pairs(tmp_path / "main"), *find_pairs(tmp_path / "back", subset="back")]
    main, back = joined("all", pairs, [])
    assert (main.language, back.language) == ("fr-de", "fr-de")
    assert list(read_pairs(back, "train", "fr", "de")) == [("d", "c")]


def test_languages_with_too_few_pairs_are_noted(tmp_path):
    sizes = {f"{tag}-en": size for size, tag in enumerate(("br", "cy", "gd", "fr"))}
    for name in sizes:
        write_pairs(tmp_path / name, "train", *name.split("-"), [("a", "b")])
    pairs = candidates(Data(), find_pairs(tmp_path)).pairs

    def notes_of(minimum, most=0):
        notes, config = [], Data(minimum_pairs=minimum, maximum_languages=most)
        choose(config, pairs, lambda pair: sizes[pair.folder.name], notes)
        return notes

    assert notes_of(1) == [
        "1 language (br) is left out: fewer than 1 training pairs (Data.minimum_pairs)"
    ]
    assert notes_of(3) == [
        "3 languages (gd, cy, br) are left out: fewer than 3 training pairs (Data.minimum_pairs)"
    ]
    (_, cut) = notes_of(1, most=2)
    assert cut == "1 language (gd) is left out: Data.maximum_languages is 2"
