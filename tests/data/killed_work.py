"""A program that does units of work and kills itself at every system call that changes a file.

`python -m tests.data.killed_work FOLDER` starts a child for each of these places. After the kill, another
child does the work again. The files must be the same as without a kill, and units that were finished must
not be done again. It prints the number of places, and the number of kills after which units were there.
"""

import functools
import os
import pathlib
import sys

from gshard_nmt.data.preparation.work import Unit
from tests.data.preparation.small_corpus import work_folder
from tests.kills import kill_at

COUNT = 3


def shout(folder: pathlib.Path, log: str | pathlib.Path, number: int, word: str = "unit"):
    """Writes a file, and notes in `log` that it was called."""
    with open(log, "a") as file:
        file.write(f"{number}\n")
    (folder / "text").write_text(f"{word} {number}\n" * 3)
    return {"number": number}


def work(folder: pathlib.Path) -> None:
    # The logs of all folders have one name here, so that the keys are the same.
    os.chdir(folder)
    calls = [functools.partial(shout, log="log", number=n) for n in range(COUNT)]
    units = [Unit(f"fr-en/{n}", call) for n, call in enumerate(calls)]
    with work_folder(folder / "work") as place:
        place.run("shout", "shouting", units)


CHANGES = {
    os: ("fsync", "mkdir", "rename", "replace", "link", "rmdir", "unlink"),
    pathlib.Path: ("write_text", "write_bytes"),
}


def child(folder: pathlib.Path, place: int) -> int:
    if (number := os.fork()) == 0:
        kill_at(place, CHANGES)
        work(folder)
        os._exit(0)
    return os.waitpid(number, 0)[1]


def finished(folder: pathlib.Path) -> dict[str, str]:
    files = (folder / "work" / "shout").rglob("*")
    return {str(f.relative_to(folder)): f.read_text() for f in files if f.is_file()}


def main(root: pathlib.Path) -> None:
    (root / "whole").mkdir()
    work(root / "whole")
    expected = finished(root / "whole")
    place = resumed = 0
    while True:
        place += 1
        folder = root / str(place)
        folder.mkdir()
        if child(folder, place) == 0:
            break
        before = [name for name in finished(folder) if name.endswith("result.json")]
        resumed += bool(before)
        (folder / "log").unlink(missing_ok=True)
        assert child(folder, -1) == 0
        assert finished(folder) == expected, place
        log = folder / "log"
        done_again = log.read_text().split() if log.exists() else []
        assert len(done_again) == COUNT - len(before), (place, before, done_again)
        assert os.listdir(folder / "work" / "unfinished" / "files") == [], place
    print(place - 1, resumed)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
