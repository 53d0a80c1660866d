"""Capitals and small letters follow the rules of each language."""

import pytest

from gshard_nmt.data.text.capitals import lower, upper


@pytest.mark.parametrize(
    ("language", "small", "capital"),
    [
        ("fr", "Fermer la fenêtre", "FERMER LA FENÊTRE"),
        ("tr", "İki ışık ilk", "İKİ IŞIK İLK"),
        ("ru", "« открыть файл »".replace("о", "О", 1), "« ОТКРЫТЬ ФАЙЛ »"),
        ("en", "It fits. Now 1.5 is in! I see", "IT FITS. NOW 1.5 IS IN! I SEE"),
        ("el", "Το τελος. Ας παμε. Ως", "ΤΟ ΤΕΛΟΣ. ΑΣ ΠΑΜΕ. ΩΣ"),
        ("de", "Datei 2 öffnen: %", "DATEI 2 ÖFFNEN: %"),
    ],
)
def test_a_line_in_capitals_has_small_letters_and_the_same_capitals(language, small, capital):
    assert lower(capital, language) == small
    assert upper(small, language) == capital


@pytest.mark.parametrize(
    "line", ["PDF 17", "FICHIER introuvable", "", "打开 ABCDEFG", "გახსნა ფაილი"]
)
def test_other_lines_are_not_in_capitals(line):
    assert lower(line, "fr") is None
