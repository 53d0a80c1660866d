"""Progress: nothing for little text, a line now and then, or a bar on a terminal."""

from gshard_nmt.decoding.progress import DecodingProgress


class Clock:
    seconds = 100.0

    def __call__(self):
        return self.seconds


def shown(capsys, total, steps, done=0, **options):
    """Returns stderr after each step, (seconds until the step, lines that are done then)."""
    clock, texts = Clock(), []
    with DecodingProgress(total, clock=clock, **options) as progress:
        progress.begin(done)
        for seconds, lines in steps:
            clock.seconds += seconds
            progress.show(lines)
            texts.append(capsys.readouterr().err)
    return texts


def test_a_line_comes_at_most_every_30_seconds_with_speed_and_time_left(capsys):
    steps = [(29, 100), (1, 1200), (10, 1300), (25, 3250), (40, 5000)]
    assert shown(capsys, 5000, steps, done=900) == [
        "",
        "1,200 of 5,000 lines, 10.0 lines/s, 6 min left\n",
        "",
        "3,250 of 5,000 lines, 58.6 lines/s, 30 s left\n",
        "",
    ]


def test_an_input_of_unknown_length_has_no_time_left(capsys):
    assert shown(capsys, None, [(50, 100)]) == ["100 lines, 2.0 lines/s\n"]


def test_quiet_shows_nothing(capsys):
    assert shown(capsys, 10, [(50, 1), (50, 2)], quiet=True) == ["", ""]


def use_terminal(monkeypatch, kind="xterm"):
    """Makes stderr a terminal, as pytest has it now."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich asks this too
    monkeypatch.setenv("TERM", kind)


def test_a_terminal_has_a_bar(capsys, monkeypatch):
    use_terminal(monkeypatch)
    text = "".join(shown(capsys, 50_000, [(1, 64), (1, 128)])) + capsys.readouterr().err
    assert "64/50000" in text
    assert "translating" in text


def test_what_is_translated_at_once_has_no_bar(capsys, monkeypatch):
    use_terminal(monkeypatch)
    assert shown(capsys, 64, [(1, 64)]) == [""]
    assert capsys.readouterr().err == ""
