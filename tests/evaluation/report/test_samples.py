"""The choice of samples follows the seed, and nothing else that could favor a system."""

from gshard_nmt.evaluation.report import samples


def test_a_choice_is_repeatable_and_in_order():
    chosen = samples.choose(("fr", "en"), 1000, 16)
    assert chosen == samples.choose(("fr", "en"), 1000, 16)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == 3


def test_directions_get_different_sentences_and_not_the_first_lines():
    choices = {tuple(samples.choose((f"l{i}", "en"), 1000, 20)) for i in range(20)}
    assert len(choices) == 20
    assert sum(0 in choice or 1 in choice for choice in choices) <= 1
    positions = [position for choice in choices for position in choice]
    assert 300 < sum(positions) / len(positions) < 700


def test_another_seed_chooses_others(monkeypatch):
    before = samples.choose(("fr", "en"), 1000, 16)
    monkeypatch.setattr(samples, "SEED", 2)
    assert samples.choose(("fr", "en"), 1000, 16) != before


def test_many_languages_get_one_sample_each_and_short_tests_all_they_have():
    assert len(samples.choose(("fr", "en"), 1000, 100)) == 1
    assert samples.choose(("fr", "en"), 2, 3) == [0, 1]
    assert samples.choose(("fr", "en"), 0, 3) == []
