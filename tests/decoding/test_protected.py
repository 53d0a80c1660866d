"""What must not change comes back as it was, whatever the model does with its symbols."""

import json
import random
import types

import pytest

from gshard_nmt.data.text.protection import symbol
from gshard_nmt.data.text.vocabulary import EOS, VocabularySpec, reserved_symbols, train_vocabulary
from gshard_nmt.decoding.pieces import lost_note
from gshard_nmt.decoding.protected import (
    Entry,
    Line,
    Protection,
    encode_translation,
    protect,
    read_glossary,
)
from gshard_nmt.decoding.source_lines import rendered
from gshard_nmt.decoding.text_translator import TextTranslator
from gshard_nmt.errors import UserError
from gshard_nmt.run.checkpoint.weights import Loaded

LINES = [
    *(
        "copy %s to {name}, please",
        "open the files",
        "👍 https://example.org/a: %d",
        "東京 に %s 行く",
    ),
    *(
        "(%s) %s and %s",
        "“<b>open</b>” all 1 2 3 of %d",
        "all",
        "%(name)s! close: %1$s",
        "",
        "... %s ?!",
    ),
]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    text = [
        "copy the files to a folder 1 2 3",
        "“open” (all), and: close!",
        "東京 に 行く please of",
    ]
    spec = VocabularySpec(340, tags=reserved_symbols())
    return train_vocabulary(text * 3, spec, tmp_path_factory.mktemp("vocabulary") / "x.model")


class CopyingModel:
    """A translator of ids that should copy, and loses, repeats and invents symbols, as `breaks` says."""

    longest_source, longest_target = 80, 90

    def __init__(self, vocabulary, breaks) -> None:
        self.symbol, self.breaks, self.scored = symbol(vocabulary), breaks, 0

    def translate_ids(self, sources, prefixes):
        found = [self.breaks(ids[:-1], self.symbol) for ids in sources]
        return [
            [([*prefix, *ids[len(prefix) :]], -float(n)) for n, ids in enumerate(nbest)]
            for nbest, prefix in zip(found, prefixes, strict=True)
        ]

    def score_ids(self, sources, targets):
        """The right translation has score 0, and others minus the number of edits away from it."""
        self.scored += len(sources)
        return [-edits(s[:-1], t) for s, t in zip(sources, targets, strict=True)]

    def length_norms(self, longest):
        return [1.0] * (longest + 1)


def edits(left, right):
    row = list(range(len(right) + 1))
    for i, a in enumerate(left):
        above, row[0] = row[0], i + 1
        for j, b in enumerate(right):
            above, row[j + 1] = row[j + 1], min(above + (a != b), row[j] + 1, row[j + 1] + 1)
    return float(row[-1])


def broken(ids, symbol):
    """Returns ids with one change of a symbol, which depends on the ids alone."""
    drawn = random.Random(repr(ids))
    places = [place for place, token in enumerate(ids) if token == symbol]
    if not places:
        return [[*ids, symbol]]
    place, other = drawn.choice(places), drawn.randrange(len(ids) + 1)
    end = place + min(len(places), 2)  # a digit follows the symbols of several values
    return [
        drawn.choice(
            [
                [*ids[:place], *ids[end:]],
                [*ids[:other], symbol, *ids[other:]],
                [token for token in ids if token != symbol],
                [*ids, *ids[place:end]],
            ]
        )
    ]


def translator(vocabulary, breaks=broken, protection=None, nbest=1):
    run = types.SimpleNamespace(vocabularies=lambda: (vocabulary, vocabulary))
    protection = protection or Protection()
    model = CopyingModel(vocabulary, breaks)
    return TextTranslator(run, model, Loaded({}, 1, "", ""), protection=protection, nbest=nbest)


def texts(translator, lines, **options):
    return [nbest[0].text for nbest in translator.translate(lines, "fr", "en", **options)]


@pytest.mark.parametrize("chunk_size", [1, 3, 1000])
def test_lost_repeated_and_invented_values_are_put_right_in_any_company(vocabulary, chunk_size):
    lines = LINES * 3
    assert texts(translator(vocabulary), lines, chunk_size=chunk_size) == lines
    mended = [best for best, *_ in translator(vocabulary).translate(lines, "fr", "en", chunk_size)]
    assert mended == [
        best for line in lines for best, *_ in translator(vocabulary).translate([line], "fr", "en")
    ]
    assert all(not best.lost for best in mended)


def test_all_processes_score_what_is_mended(vocabulary):
    model, calls = translator(vocabulary), []
    first = types.SimpleNamespace(from_first=lambda value: calls.append(json.dumps(value())))
    model.leads, model._processes = True, first
    assert texts(model, LINES) == LINES
    assert {json.loads(call)[0] for call in calls} == {"translate_ids", "score_ids"}


def test_a_lost_value_never_goes_into_a_word_or_a_symbol(vocabulary):
    line, words = "copy é %s to %s profiles", "copy é to profiles"
    ids = vocabulary.encode([words])[0]
    model = translator(vocabulary, lambda _, symbol: [ids])
    for wanted in range(len(ids) + 6):
        model.of_ids.score_ids = lambda _, targets, wanted=wanted: [
            -abs(target[::-1].index(model.of_ids.symbol) - wanted) for target in targets
        ]
        ((best,),) = model.translate([line], "fr", "en")
        assert best.text.count("%s") == 2
        assert " ".join(best.text.replace("%s", "").split()) == words


def test_a_whole_translation_of_the_search_comes_before_a_better_one_that_is_not(vocabulary):
    def search(ids, symbol):
        without = [token for token in ids if token != symbol]
        return [without, [*ids, ids[-1]], ids] if symbol in ids else [ids, ids[:1], ids[:2]]

    model = translator(vocabulary, search, nbest=2)
    (two, one) = model.translate(["copy %s to all", "open all"], "fr", "en")
    assert [(h.text, h.score) for h in two] == [("copy %s to alll", -1.0), ("copy %s to all", -2.0)]
    assert [h.score for h in one] == [0.0, -1.0]
    assert model.of_ids.scored == 0


def test_the_pieces_of_a_long_line_have_their_own_values_and_none_is_cut(vocabulary):
    values = ["https://example.org/a.b,c?d=1", "{n, plural, one {# file. A} other {# files}}", "%s"]
    line = " ".join(f"copy all to {values[n % 3]} and close. Open" for n in range(30))
    model = translator(vocabulary)
    ((best,),) = model.translate([line], "fr", "en")
    assert best.pieces > 3
    assert (best.text, best.lost) == (line, ())
    assert all(len(ids) <= model.longest_source for _, ids in model.sentences([line], "fr", "en"))


def test_a_value_that_is_part_of_another_is_counted_apart():
    line = Line("a {} b {}", ("/tmp", "/tmp/x"), ("/tmp", "/tmp/x"))
    assert line.lost("see /tmp/x") == ("/tmp",)
    assert line.lost("/tmp/x, /tmp") == ()


def test_what_cannot_be_kept_is_said(vocabulary):
    line = "copy " + " ".join(f"%{n}$s" for n in range(1, 12))

    def without_the_end(ids, symbol):
        return [ids[:-3]]

    ((best,),) = translator(vocabulary, without_the_end).translate([line], "fr", "en")
    assert best.lost == ("%11$s",)
    assert '"lost": ["%11$s"]}' in rendered("jsonl", 1, line, [best])
    note = lost_note(dict.fromkeys(range(3, 10), "%s"), "text")
    assert note.endswith("is lost, such as '%s': texts 3, 4, 5, 6, 7 and 2 more.")
    model = translator(vocabulary)
    model.of_ids.longest_target = 3
    ((best,),) = model.translate(["all %s"], "fr", "en")
    assert (best.text, best.lost) == ("all", ("%s",))


def test_a_line_of_values_alone_is_copied_and_no_value_breaks_a_line(vocabulary):
    def never(ids, symbol):
        raise AssertionError(ids)

    lines = [" %s: <b>%d</b> ", "{name}", "a_file.txt", "1\ufe0f\u20e3"]
    assert texts(translator(vocabulary, never), lines) == [line.strip() for line in lines]
    lines = ["all <b\tclass='x'> op\xaden"]
    assert texts(translator(vocabulary), lines) == ["all <b class='x'> open"]


def test_a_prefix_and_a_given_translation_have_the_symbols_of_their_values(vocabulary):
    model = translator(vocabulary, lambda ids, symbol: [[EOS + 1, *ids]])
    line, prefix = "all %s of %s, {name}", "{name} and %s"
    ids = model._given([prefix], model._encode(model._protect([line], "fr", "en"), "fr", "en")[0])
    assert [token for token in vocabulary.pieces(ids[0]) if token[0] == "<"] == [
        *("<ph>", "<0x33>", "<ph>", "<0x31>")
    ]
    (text,) = texts(model, [line], prefixes=[prefix])
    assert text.startswith(prefix)
    assert sorted(text.count(value) for value in ("%s", "{name}")) == [1, 2]
    assert list(model.score([(line, line), ("%s", "%s")], "fr", "en")) == [0.0, 0.0]
    assert texts(translator(vocabulary), ["%s all"], prefixes=["all"])[0].startswith("all")
    ids = encode_translation(vocabulary, "/a/b and /a", ("/a", "/a/b"))
    assert [p for p in vocabulary.pieces(ids) if p in ("<0x31>", "<0x32>")] == ["<0x32>", "<0x31>"]


def test_a_line_in_capitals_is_read_in_small_letters_and_comes_back_in_capitals(vocabulary):
    read = []

    def copy(ids, _):
        read.append(vocabulary.decode([ids])[0])
        return [ids]

    model = translator(vocabulary, copy)
    lines = ["COPY %s TO {Name}!", "CLOSE ALL", "ALL 1", "COPY THE file", "CLOSE ALL"]
    hypotheses = list(model.translate(lines, "fr", "en", prefixes=["", "", "", "", "CLOSE"]))
    assert [best.text for best, *_ in hypotheses] == lines
    assert not any(best.lost for best, *_ in hypotheses)
    assert [text.split()[0] for text in read] == ["Copy", "Close", "ALL", "COPY", "CLOSE"]


def glossary(*rows):
    return Protection(False, tuple(Entry(*row) for row in rows))


def test_terms_of_a_glossary_are_whole_words_and_the_longest_one_counts(vocabulary):
    terms = glossary(
        ("file", "Akte"),
        ("open file", "offene Akte"),
        ("files", "X"),
        ("files file", "Akten"),
        ("東京", "Tokio"),
        ("Of", "von"),
    )
    lines = ["open file, files file of %s", "File of profile: Open file", "に東京行く", "Open file"]
    expected = ["offene Akte, Akten of %s", "Akte of profile: Offene Akte", "にTokio行く"]
    assert texts(translator(vocabulary, protection=terms), lines) == [*expected, "Offene Akte"]


def test_a_term_counts_in_its_language_and_a_placeholder_before_a_term():
    both = glossary(("a", "x"), ("a", "y", "en-de"), ("a", "z", "fr"))._replace(placeholders=True)
    assert both.terms("en", "it") == ({"a": "x", "A": "X"}, [1])
    assert [both.terms(tag, "de").targets["a"] for tag in ("en", "fr")] == ["y", "z"]
    assert protect("a {a}", True, both.terms("en", "it"), False).outputs == ("{a}", "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tb\n\nc\n", "line 3 is 'c'; it must be a source term, a target term"),
        ("a\tb\n\tb\n", "line 2 is '\\tb'; it must be"),
        ("a\tb\tfr\tx\n", "line 1 is 'a\\tb\\tfr\\tx'; it must be"),
        ("a\tb\tit\n", "line 1 is for 'it'; the model has en, fr. Give one of these or a dir"),
        ("a\tb\na\tc\n", "line 2 translates 'a' as 'c', and an earlier line as 'b'. Keep one"),
        ("a\tb\xc2\x85c\na\tb\n", "line 2 translates 'a' as 'b', and an earlier line as 'b c'"),
        ("a\tb\n\xff\n", "line 2, byte 1: 0xff is not UTF-8"),
    ],
)
def test_a_glossary_that_is_wrong_is_refused_with_its_line(tmp_path, content, message):
    path = tmp_path / "terms.tsv"
    path.write_bytes(b"\n")
    with pytest.raises(UserError, match="has no terms"):
        read_glossary(path, [("fr", "en")])
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError) as error:
        read_glossary(path, [("fr", "en")])
    assert str(error.value).startswith(f"--glossary {path}, {message}")


def test_a_translation_that_invents_a_placeholder_is_left_out_if_another_does_not(vocabulary):
    (invented,) = vocabulary.encode(["20%s"])
    lines = ["open the files", "copy %s to all"]
    assert texts(translator(vocabulary, lambda ids, _: [[*ids, *invented], ids]), lines) == lines
    alone = translator(vocabulary, lambda ids, _: [[*ids, *invented]])
    assert texts(alone, lines) == [f"{line} 20%s" for line in lines]
    glossary = Protection(placeholders=False, glossary=(Entry("files", "folder"),))
    assert texts(translator(vocabulary, lambda ids, _: [ids], glossary), ["%s"]) == ["%s"]
