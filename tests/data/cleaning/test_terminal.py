"""The tables of the verbs that look at data."""

from gshard_nmt.data.cleaning.terminal import Terminal, narrow_table


def test_a_table_of_nine_columns_fits_into_80_characters(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    header = ("pair", "train", "dev", "test", "tokens per pair", "too long", "cleaned")
    numbers = ("123.45M", "10,000", "10,000", "43.4", "123,456", "123,456", "10.16%", "100.0%")
    header = (*header, "byte fallback", "sampled")
    rows = [("sr-Latn-en.backtranslated", *numbers), ("fr-en", *numbers)]
    Terminal().print(narrow_table("prepared", header, rows))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2].split() == [
        *("pair", "train", "dev", "test", "per", "pair", "long", "cleaned", "fallback", "sampled")
    ]
    assert all(number in lines[-1].split() for number in numbers)
    assert "".join(line.split()[0] for line in lines[3:-1]) == rows[0][0]
