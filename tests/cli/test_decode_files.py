"""The files of gshard-decode; tests/cli/test_decode_command.py has those of its flags."""

import io

from gshard_nmt.cli.decode_files import open_beside, open_input, open_output


def test_a_file_beside_the_input_is_read_line_by_line(tmp_path):
    path = tmp_path / "prefixes"
    path.write_text("x\n\ny")
    with open_beside(("prefix", path)) as lines:
        assert lines.take(9) == ["x", "", "y"]
    with open_beside(None) as nothing:
        assert nothing is None


def test_stdin_is_read_as_bytes(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n")))
    with open_input(None) as stream:
        assert stream.read() == b"\xff\n"
    (tmp_path / "in").write_bytes(b"\xfe")
    with open_input(tmp_path / "in") as stream:
        assert stream.read() == b"\xfe"


def test_stdout_is_written_when_lines_are_committed(capsys):
    with open_output(None, None, {}) as output:
        output.write("A\n")
        output.commit(1)
        assert output.lines == 1
        assert capsys.readouterr().out == "A\n"
