"""A program that decodes a file and kills itself at every system call that changes a file, one at a time.

`python -m tests.decoding.killed_decoding FOLDER` starts a child for each of these places. The child is
killed there with SIGKILL, in the middle of a write if it is one. Then another child goes on. The file
must be the same in every byte as without a kill. It prints the number of places, and the number of kills
after which there were lines to go on from.
"""

import collections
import os
import pathlib
import sys
import types

from gshard_nmt.decode import Job, decode
from gshard_nmt.decoding.progress import DecodingProgress
from gshard_nmt.decoding.resumable_file import ResumableFile
from gshard_nmt.decoding.source_lines import SourceLines
from gshard_nmt.spmd.processes import ALONE
from tests.kills import kill_at

Best = collections.namedtuple("Best", "text score pieces lost", defaults=[()])

INPUT = "".join(f"Zeile é {i}\n" for i in range(21)) + "the end"


class Shouting:
    """Two translations a line, of which the second has the length of the line."""

    of_ids = types.SimpleNamespace(rows=1)

    def translate(self, lines, source, target):
        return ([Best(line.upper(), -1.0, 1), Best(str(len(line)), -2.0, 1)] for line in lines)


def translate(folder: pathlib.Path) -> None:
    """Translates `in` to `out`, in chunks of two lines and then more."""
    job = Job(None, None, "de", "en", 2, "tsv", "best", ALONE, fits=True)
    with (folder / "in").open("rb") as stream, ResumableFile(folder / "out", {"input": "x"}) as out:
        decode(job, Shouting(), SourceLines(stream, "in"), out, DecodingProgress(None, True))


CHANGES = {os: ("open", "write", "fsync", "ftruncate"), pathlib.Path: ("replace", "unlink")}


def child(folder: pathlib.Path, place: int) -> int:
    """Translates in a process of its own, and returns the signal that ended it."""
    if (number := os.fork()) == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        kill_at(place, CHANGES)
        translate(folder)
        os._exit(0)
    _, status = os.waitpid(number, 0)
    return status


def main(folder: pathlib.Path) -> None:
    (folder / "in").write_text(INPUT, encoding="utf-8")
    translate(folder)
    expected = (folder / "out").read_bytes()
    assert expected.count(b"\n") == 2 * 22
    resumed = place = 0
    while True:
        place += 1
        (folder / "out").write_bytes(b"old")
        if child(folder, place) == 0:
            break
        whole = (folder / "out").read_bytes()
        assert whole in (b"old", expected), place
        log = folder / "out.partial.progress"
        if whole == b"old" and log.exists() and log.read_bytes().count(b"\n") > 1:
            resumed += 1
        # A second kill at another place, then the rest.
        child(folder, 1 + place % 7)
        assert child(folder, -1) == 0
        assert (folder / "out").read_bytes() == expected, place
        assert sorted(os.listdir(folder)) == ["in", "out"], place
    print(place - 1, resumed)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
