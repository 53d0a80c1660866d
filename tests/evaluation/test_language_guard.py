"""The guard of the old languages: what it finds, which step it chooses, and what it refuses."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.language_guard import Change, DevOutput, Guard, Verdict, best_of
from gshard_nmt.evaluation.metrics import metrics

REFERENCES = [
    f"the {word} house stands near the river number {i}" for i, word in enumerate("ab" * 20)
]
WORSE = [line.replace("near the", "by a") for line in REFERENCES]
SLIGHTLY_WORSE = [*WORSE[:1], *REFERENCES[1:]]


def guard(tmp_path, **translations) -> Guard:
    before = {f"{language}-en": lines for language, lines in translations.items()}
    return Guard(tmp_path / "guard.json", "nn", "step 7 of old", before)


def outputs(**hypotheses) -> list[DevOutput]:
    return [
        DevOutput(f"{language}-en", language, "en", lines, REFERENCES)
        for language, lines in hypotheses.items()
    ]


def test_a_significant_loss_of_one_language_does_not_pass(tmp_path):
    before = guard(tmp_path, fr=REFERENCES, de=WORSE)
    verdict = before.judge(5, 12.0, outputs(fr=WORSE, de=REFERENCES, nn=WORSE))
    # The new language is not guarded, and what de wins does not make up for fr.
    assert [change.direction for change in verdict.changes] == ["fr-en", "de-en"]
    assert verdict.mean == pytest.approx(0)
    assert verdict.losses == ["fr-en"]
    assert not verdict.passes
    assert verdict.text == (
        f"old languages +0.00 ± {verdict.error:.2f} BLEU on average, 1 of 2 directions significantly "
        "worse: does not pass"
    )


def test_the_error_of_the_mean_is_that_of_other_sentences(tmp_path):
    """Drawn without the bootstrap's code: many sets of dev sentences, and the spread of their means."""
    rng = np.random.default_rng(5)
    half = [WORSE[i] if i % 2 else line for i, line in enumerate(REFERENCES)]
    third = [WORSE[i] if i % 3 == 0 else line for i, line in enumerate(REFERENCES)]
    before = guard(tmp_path, fr=REFERENCES, de=REFERENCES)
    found = before.judge(5, 12.0, outputs(fr=half, de=third))
    deltas = []
    for _ in range(400):
        means = []
        # Both directions have the same references, so they are drawn together.
        drawn = rng.integers(0, 40, 40)
        for lines in (half, third):
            references = [REFERENCES[i] for i in drawn]
            after = metrics.bleu([lines[i] for i in drawn], references, "en")
            means.append(after - 100)
        deltas.append(np.mean(means))
    assert found.error == pytest.approx(np.std(deltas), rel=0.1)
    equal = before.judge(5, 12.0, outputs(fr=REFERENCES, de=REFERENCES))
    assert equal.error == 0
    assert equal.text.startswith("old languages +0.00 ± 0.00 BLEU on average")


def test_a_loss_by_chance_passes_and_so_do_equal_translations(tmp_path):
    before = guard(tmp_path, fr=REFERENCES, de=REFERENCES)
    equal = before.judge(5, 12.0, outputs(fr=REFERENCES, de=REFERENCES))
    assert [(c.before, c.after, c.p) for c in equal.changes] == [
        (pytest.approx(100),) * 2 + (1.0,)
    ] * 2
    assert equal.passes
    # One sentence of 40 is worse: in many draws it is not there.
    few = before.judge(5, 12.0, outputs(fr=SLIGHTLY_WORSE, de=REFERENCES))
    assert few.changes[0].delta < -0.1
    assert few.changes[0].p > 0.05
    assert not few.losses


def test_p_values_are_adjusted_for_the_number_of_directions(tmp_path):
    languages = [f"x{i}" for i in range(9)]
    before = guard(tmp_path, fr=REFERENCES, **dict.fromkeys(languages, REFERENCES))
    alone = guard(tmp_path, fr=REFERENCES).judge(1, 0.0, outputs(fr=WORSE)).changes[0]
    rest = dict.fromkeys(languages, REFERENCES)
    among = before.judge(1, 0.0, outputs(fr=WORSE, **rest)).changes[0]
    assert among.p == pytest.approx(10 * alone.p)


def verdict(step: int, bleu: float, *deltas: float, p: float = 1.0) -> Verdict:
    changes = [Change(f"x{i}-en", 20.0, 20.0 + delta, p) for i, delta in enumerate(deltas)]
    return Verdict(step, bleu, changes)


@pytest.mark.parametrize(
    ("found", "passes"),
    [
        (verdict(1, 9.0, -0.5, -0.5), True),
        (verdict(1, 9.0, -0.6, -0.5), False),
        (verdict(1, 9.0, -0.1, 0.3, p=0.05), False),
        (verdict(1, 9.0, -0.1, 0.3, p=0.051), True),
        (verdict(1, 9.0, 0.1, 0.3, p=0.001), True),
        (verdict(1, 9.0), True),
    ],
)
def test_what_passes(found, passes):
    assert found.passes == passes


def test_the_best_step_is_the_best_one_that_passes(tmp_path):
    before = guard(tmp_path)
    for found in (
        verdict(100, 5.0, 0.0),
        verdict(200, 8.0, -0.4),
        verdict(300, 9.0, -0.7),
        verdict(400, 8.0, -0.3),
        verdict(500, 9.5, -0.1, p=0.01),
    ):
        before = before.with_verdict(found)
    assert before.best.step == 200
    assert guard(tmp_path).with_verdict(verdict(1, 9.0, -3.0)).best is None


def translated(share: float, lines: list[str], delta: float = 0.0) -> Verdict:
    """Returns a verdict on translations of the new language."""
    before = Guard(Path("guard.json"), "nn", "step 7 of old", {})
    score = metrics.bleu(lines, REFERENCES, "en")
    found = before.judge(100, score, outputs(nn=lines), share)
    return dataclasses.replace(found, changes=[Change("fr-en", 20.0, 20.0 + delta, 1.0)])


def broken(places) -> list[str]:
    return [WORSE[i] if i in places else line for i, line in enumerate(REFERENCES)]


def test_of_parts_that_are_as_good_for_the_new_language_the_smallest_is_chosen():
    # The second is worse by one sentence of 40, and in each half it differs in many sentences.
    first, second = broken(range(0, 40, 2)), broken([*range(1, 40, 2), 0])
    best, near = translated(0.8, first), translated(0.4, second)
    worse = translated(0.2, broken(range(30)))
    assert worse.bleu < near.bleu < best.bleu
    assert best_of([best, near, worse], -math.inf) is near
    # The new language does not gain by a part that the guard refuses.
    refused = translated(0.4, second, delta=-0.6)
    assert best_of([best, refused, worse], -math.inf) is best
    assert best_of([refused], -math.inf) is None


def test_a_part_that_is_worse_in_nearly_the_same_sentences_is_not_as_good():
    best = translated(0.8, broken(range(20)))
    # Both lose two sentences of 40 against the best; only the first one wins others back.
    assert translated(0.6, broken([*range(5, 20), *range(30, 37)])).is_as_good_as(best)
    assert not translated(0.6, broken(range(22))).is_as_good_as(best)


def test_the_error_of_a_difference_is_that_of_other_sentences():
    """Drawn without the bootstrap's code: a part is as good up to one spread of the differences."""
    rng = np.random.default_rng(3)
    lines = broken(range(0, 40, 2)), broken([*range(1, 40, 2), 0, 2])
    deltas = []
    for _ in range(400):
        drawn = rng.integers(0, 40, 40)
        references = [REFERENCES[i] for i in drawn]
        scores = [metrics.bleu([side[i] for i in drawn], references, "en") for side in lines]
        deltas.append(scores[0] - scores[1])
    spread = float(np.std(deltas))
    best, other = translated(0.8, lines[0]), translated(0.6, lines[1])
    for factor, is_as_good in ((0.85, True), (1.15, False)):
        moved = dataclasses.replace(other, bleu=best.bleu - factor * spread)
        assert moved.is_as_good_as(best) == is_as_good


def test_without_counts_of_the_same_sentences_only_an_equal_score_is_as_good():
    best = verdict(100, 8.0, -0.1)
    assert dataclasses.replace(best, share=0.6).is_as_good_as(best)
    assert not dataclasses.replace(best, bleu=7.99).is_as_good_as(best)
    first, second = broken(range(0, 40, 2)), broken([*range(1, 40, 2), 0])
    best, near = translated(0.8, first), translated(0.4, second)
    assert near.is_as_good_as(best)
    # Train.bleu_sentences was changed before the parts were judged.
    fewer = dataclasses.replace(near, counts={"nn-en": near.counts["nn-en"][:30]})
    assert not fewer.is_as_good_as(best)


def test_two_directions_translate_the_same_sentences_so_their_errors_do_not_cancel():
    first, second = broken(range(0, 40, 2)), broken([*range(1, 40, 2), 0, 2])
    best, other = translated(0.8, first), translated(0.6, second)
    gap = best.bleu - other.bleu
    assert other.is_as_good_as(best)
    both = [
        dataclasses.replace(v, counts={**v.counts, "en-nn": v.counts["nn-en"]})
        for v in (best, other)
    ]
    # The mean of two equal directions has the same error as one of them.
    one_direction, two_directions = [], []
    for factor in (1, 1.2, 1.4, 1.6, 2, 3, 5):
        moved = [dataclasses.replace(v, bleu=best.bleu - factor * gap) for v in (other, both[1])]
        one_direction.append(moved[0].is_as_good_as(best))
        two_directions.append(moved[1].is_as_good_as(both[0]))
    assert one_direction == two_directions
    assert set(one_direction) == {True, False}


def test_the_file_has_the_counts_of_the_new_language(tmp_path):
    found = translated(0.8, broken(range(20)))
    dataclasses.replace(guard(tmp_path), verdicts=[found]).write()
    assert Guard.of(tmp_path).verdicts == [found]
    record = json.loads((tmp_path / "guard.json").read_text())
    lines = record["steps"][0]["counts"]["nn-en"]
    assert [len(line.split()) for line in lines] == [10] * 40
    for damaged in (["1 2 x"], ["1 2 3"], [lines[0], "1"], [[1]]):
        record["steps"][0]["counts"]["nn-en"] = damaged
        (tmp_path / "guard.json").write_text(json.dumps(record))
        with pytest.raises(UserError, match=r"guard\.json is damaged"):
            Guard.of(tmp_path)
    del record["steps"][0]["counts"]
    (tmp_path / "guard.json").write_text(json.dumps(record))
    assert Guard.of(tmp_path).verdicts[0].counts == {}


def test_the_best_step_is_chosen_by_what_its_checkpoint_decodes_with(tmp_path):
    """Step 100 has the best BLEU of all, with a part that its checkpoint does not have."""
    part = translated(0.4, broken([*range(1, 40, 2), 0]))
    whole = translated(0.8, broken(range(0, 40, 2)))
    later = dataclasses.replace(part, step=200, share=1.0, bleu=(part.bleu + whole.bleu) / 2)
    assert dataclasses.replace(guard(tmp_path), verdicts=[whole, part, later]).best is later


def test_a_smaller_part_does_not_make_a_step_worse_than_an_earlier_one(tmp_path):
    part = translated(0.4, broken([*range(1, 40, 2), 0]))
    whole = translated(0.8, broken(range(0, 40, 2)))
    assert part.is_as_good_as(whole)
    between = dataclasses.replace(part, step=50, share=1.0, bleu=(part.bleu + whole.bleu) / 2)
    before = dataclasses.replace(guard(tmp_path), verdicts=[between, whole, part])
    assert before.best is whole
    assert before.best_before(100) is between
    # If the step is no better in any case, it decodes with the smallest part.
    assert best_of([whole, part], whole.bleu) is part
    assert best_of([whole, part], part.bleu - 0.1) is part


def test_a_verdict_replaces_those_that_a_resumed_run_has_undone(tmp_path):
    before = guard(tmp_path).with_verdict(verdict(100, 1.0)).with_verdict(verdict(200, 2.0))
    assert [v.bleu for v in before.with_verdict(verdict(200, 3.0)).verdicts] == [1.0, 3.0]
    assert [v.bleu for v in before.with_verdict(verdict(100, 4.0)).verdicts] == [4.0]


def test_parts_of_the_change_come_after_all_of_it(tmp_path):
    before = guard(tmp_path).with_verdict(verdict(100, 1.0))
    for share, score in ((0.8, 5.0), (0.4, 3.0), (0.4, 4.0)):
        before = before.with_verdict(dataclasses.replace(verdict(100, score), share=share))
    assert [(v.share, v.bleu) for v in before.verdicts] == [(1, 1.0), (0.8, 5.0), (0.4, 4.0)]
    assert before.best.share == 0.8
    before.write()
    assert Guard.of(tmp_path).verdicts == before.verdicts
    # A resumed run judges this step again, all of the change first.
    assert [v.bleu for v in before.with_verdict(verdict(100, 2.0)).verdicts] == [2.0]


def test_verdicts_of_older_versions_are_of_all_of_the_change_and_have_no_error(tmp_path):
    guard(tmp_path).with_verdict(verdict(100, 1.0)).write()
    record = json.loads((tmp_path / "guard.json").read_text())
    del record["steps"][0]["share"], record["steps"][0]["error"]
    (tmp_path / "guard.json").write_text(json.dumps(record))
    known = Guard.of(tmp_path).verdicts[0]
    assert known.share == 1
    assert known.mean_text == "+0.00"


def test_the_file_gives_the_guard_back(tmp_path):
    assert Guard.of(tmp_path) is None
    before = guard(tmp_path, fr=["é", ""]).with_verdict(verdict(100, 1.0, -0.25))
    before.write()
    assert Guard.of(tmp_path) == before


def test_other_sentences_are_refused(tmp_path):
    message = (
        r"has 39 translations of fr-en by the old run, and now 40 .* Set Train\.bleu_sentences"
    )
    with pytest.raises(UserError, match=message):
        guard(tmp_path, fr=REFERENCES[1:]).judge(1, 0.0, outputs(fr=WORSE))


def test_a_damaged_file_is_named(tmp_path):
    before = guard(tmp_path).with_verdict(verdict(100, 1.0, -0.25))
    record = json.loads(before.text)
    del record["steps"][0]["changes"][0]["p"]
    (tmp_path / "guard.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"guard\.json is damaged"):
        Guard.of(tmp_path)
