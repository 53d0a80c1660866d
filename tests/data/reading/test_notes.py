from gshard_nmt.data.reading.rows import listed, note


def test_a_note_names_the_first_and_counts_the_others(capsys):
    note(f"{listed('abcde')} are left out")
    assert capsys.readouterr().err == "note: a, b, c and 2 more are left out.\n"
