"""What programs print."""

from gshard_nmt.terminal import Terminal


def test_text_is_printed_as_it_is(capsys):
    Terminal().print("a :smile: [bold] runs/x:100:y")
    assert capsys.readouterr().out == "a :smile: [bold] runs/x:100:y\n"
