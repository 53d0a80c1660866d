import pytest
from starlette.exceptions import HTTPException

from gshard_nmt.serving.languages import can_detect, detect, direction_of, listed
from tests.serving.fake_translator import DIRECTIONS


def direction(source, target):
    return direction_of(sorted(DIRECTIONS), source, target, "", detects=False)


def refusal(source, target):
    with pytest.raises(HTTPException) as caught:
        direction(source, target)
    assert caught.value.status_code == 400
    return caught.value.detail


@pytest.mark.parametrize("code", ["zh-Hans", "zho_Hans", "cmn", "zh"])
def test_a_language_is_found_by_any_of_its_codes(code):
    assert direction(code, "eng") == ("zh-CN", "en", None)
    assert direction("fr_CA", "de-DE") == ("fr", "de", None)


def test_an_unknown_language_is_named_with_the_nearest_known():
    assert refusal("zh-TW", "en") == (
        "zh-TW is not supported: this server translates from de, fr, zh-CN; did you mean 'zh-CN'? "
        "GET /languages lists the directions."
    )
    assert refusal("auto", "enn").startswith(
        "enn is not supported: this server translates to de, en; did you mean 'en'?"
    )
    assert refusal("de", "de").startswith(
        "de is not supported: this server translates from de to en."
    )


def test_the_language_is_not_detected_if_there_is_a_choice():
    assert refusal("auto", "en") == (
        "source is auto, and this server does not detect languages. Give one of: de, fr, zh-CN."
    )
    assert direction("auto", "de") == ("fr", "de", 100)


def test_every_language_is_listed_with_its_targets():
    assert listed(sorted(DIRECTIONS)) == [
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "en", "name": "English", "targets": []},
        {"code": "fr", "name": "French", "targets": ["de", "en"]},
        {"code": "zh-CN", "name": "Chinese (CN)", "targets": ["en"]},
    ]


def test_the_languages_are_ranked_with_their_shares():
    assert can_detect()
    ranked = detect("Die Datei konnte nicht gefunden werden.", ["fr", "de-AT", "de", "nb", "tlh"])
    assert ranked[0][0] == "de-AT"
    assert sorted(language for language, _ in ranked) == ["de-AT", "fr", "nb"]
    assert sum(share for _, share in ranked) == pytest.approx(100, abs=0.2)
    assert detect("x", ["tlh"]) == []
