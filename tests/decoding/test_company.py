"""The comparison of the same sentences in other company, with translators that are right and wrong."""

import dataclasses

import pytest

from gshard_nmt.decoding import company
from gshard_nmt.decoding.company import (
    Arrangement,
    Subject,
    arrangements,
    compare,
    show,
    split_sums,
)
from gshard_nmt.errors import UserError
from gshard_nmt.spmd.mesh import Mesh

EOS = 1
SOURCES = [[*range(5, 5 + n % 7), 9, EOS] for n in range(40)]
# The input has an empty line before each sentence.
SUBJECT = Subject(SOURCES, [2 * n + 2 for n in range(40)], lengths=(4, 12))
ONE = Mesh()
SPLIT = Mesh(shape=(2,), rules={"H": "x"})


def copy(source: list[int], score: float = -1.0):
    return [(source[:-1], score)]


def alone(mesh, rows):
    """A translator whose results depend on the sentence alone."""
    return lambda sources: [copy(source, -len(source)) for source in sources]


def outcomes(new_translator, mesh=ONE, is_cpu=True):
    plans = arrangements(mesh, rows=8, least=2, experts=0, is_cpu=is_cpu)
    return list(compare(dataclasses.replace(SUBJECT, is_cpu=is_cpu), plans, new_translator))


def test_a_translator_that_sees_one_sentence_at_a_time_is_right(capsys):
    results = outcomes(alone)
    assert [result.arrangement.mesh.num_devices for result in results] == [1] * 5 + [2, 8]
    assert {result.arrangement.rows for result in results[:5]} == {8, 2, 16}
    assert all(result.is_right for result in results)
    show(iter(results), len(SOURCES))
    printed = capsys.readouterr().out
    assert printed.count("same translations and scores, bit for bit") == 6
    assert printed.endswith("in 7 arrangements, and the same scores, bit for bit, in 7 of them\n")


def by_order(mesh, rows):
    return lambda sources: [copy(source, -n) for n, source in enumerate(sources)]


def by_neighbors(mesh, rows):
    return lambda sources: [copy([*source[:-1], max(map(len, sources)), EOS]) for source in sources]


def by_rows(mesh, rows):
    return lambda sources: [copy(source, -rows) for source in sources]


def by_devices(mesh, rows):
    return lambda sources: [copy(source, -mesh.num_devices) for source in sources]


@pytest.mark.parametrize(
    ("translator", "name"),
    [
        (by_order, "in random groups"),
        (by_neighbors, "in random groups"),
        (by_rows, "2 rows a batch, in random groups"),
        (by_devices, "on 2 devices with 8 rows a batch, in random groups"),
    ],
)
def test_a_translator_that_sees_its_company_is_caught(translator, name):
    results = outcomes(translator)
    wrong = [result for result in results if not result.is_right]
    assert wrong[0].arrangement.name == name
    with pytest.raises(UserError, match=rf"arrangements of 40 sentences .* {name}: DIFFERENT"):
        show(iter(results), len(SOURCES))


def test_the_sums_that_a_mesh_splits():
    assert split_sums(SPLIT, {}) == "H"
    assert split_sums(ONE, {}) == split_sums(Mesh(shape=(8,)), {"w": "EMH"}) == ""
    assert split_sums(Mesh(shape=(2,), rules={"T": "x"}), {}) == "T"
    override = Mesh(shape=(2,), overrides={"*/wi": [None, "x"], "*/wo": {"M": "x"}})
    assert split_sums(override, {"a/wi": "MH"}) == "H"
    assert split_sums(override, {"a/wo": "HM", "a/wi": "EM"}) == "M"


@pytest.mark.parametrize(
    ("mesh", "other", "is_cpu", "words"),
    [
        (ONE, ONE, False, "(an accelerator may add in another order)"),
        (SPLIT, ONE, True, "(the mesh of the first line splits the sums over H)"),
        (SPLIT, SPLIT, True, "(the mesh splits the sums over H)"),
    ],
)
def test_scores_may_differ_a_little_on_accelerators_and_from_a_mesh_that_splits_sums(
    mesh, other, is_cpu, words, capsys
):
    for gap, is_right in ((5e-6, True), (1e-4, False)):

        def translator(mesh, rows, gap=gap):
            return lambda sources: [copy(source, gap * (rows != 8)) for source in sources]

        plans = [Arrangement("usual", mesh, 8), Arrangement("again", other, 16, seed=1)]
        outcomes = list(compare(dataclasses.replace(SUBJECT, is_cpu=is_cpu), plans, translator))
        assert outcomes[1].is_right == is_right
        assert words in outcomes[1].text
        assert "40 scores differ, by at most" in outcomes[1].text
        if is_right:
            show(iter(outcomes), len(SOURCES))
            assert "in 2 arrangements, and the same scores, bit for bit, in 1 of them" in (
                capsys.readouterr().out
            )


def test_a_difference_is_named_by_its_line_of_the_input():
    def translator(mesh, rows):
        return lambda sources: [
            copy([*source[:-1], rows, EOS] if source == SOURCES[3] else source)
            for source in sources
        ]

    plans = [Arrangement("usual", ONE, 8), Arrangement("again", ONE, 16)]
    (_, outcome) = compare(SUBJECT, plans, translator)
    wrong = [SUBJECT.lines[n] for n, source in enumerate(SOURCES) if source == SOURCES[3]]
    assert len(wrong) > 3
    assert outcome.text.startswith(
        f"again: DIFFERENT: {len(wrong)} translations, such as of line {wrong[0]}, {wrong[1]}, "
    )


def test_experts_that_do_not_divide_over_devices_are_not_tried_there():
    plans = arrangements(ONE, rows=8, least=8, experts=6, is_cpu=True)
    assert [plan.mesh.num_devices for plan in plans[5:]] == [2]
    assert company.DEVICES == (1, 2, 8)
    # Every number of rows is one that a translator really uses.
    assert [plan.rows for plan in plans] == [8, 8, 8, 16, 24, 16]


def test_weights_without_numbers_are_no_proof():
    with pytest.raises(UserError, match="no sentence has a translation"):
        outcomes(lambda mesh, rows: lambda sources: [[] for _ in sources])
