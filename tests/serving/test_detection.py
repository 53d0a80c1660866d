import pytest

from gshard_nmt.serving.detection import can_detect, detect


def test_the_languages_are_ranked_with_their_shares():
    assert can_detect()
    ranked = detect("Die Datei konnte nicht gefunden werden.", ["fr", "de-AT", "de", "nb", "tlh"])
    assert ranked[0][0] == "de-AT"
    assert sorted(language for language, _ in ranked) == ["de-AT", "fr", "nb"]
    assert sum(share for _, share in ranked) == pytest.approx(100, abs=0.2)
    assert detect("x", ["tlh"]) == []
