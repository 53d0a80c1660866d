"""A program that does units of work and kills itself at every system call that changes a file.

`python -m tests.data.killed_work FOLDER` starts a child for each of these places. After the kill, another
child does the work again. The files must be the same as without a kill, and units that were finished must
not be done again. It prints the number of places, and the number of kills after which units were there.
"""

import os
import pathlib
import sys

from gshard_nmt.data.preparation.work import Stage, Unit, WorkFolder, key_of
from gshard_nmt.data.worker_pool import WorkerPool
from tests.kills import kill_at

COUNT = 3


class Silent:
    def begin(self, about, total, done):
        pass

    def advance(self, rows):
        pass

    def end(self):
        pass


def shout(task, folder: pathlib.Path):
    """Writes a file, and notes in `task[0]` that it was called."""
    log, number = task
    with open(log, "a") as file:
        file.write(f"{number}\n")
    (folder / "text").write_text(f"unit {number}\n" * 3)
    return {"number": number}


def stage(log: pathlib.Path) -> Stage:
    units = [Unit(f"fr-en/{n}", key_of(n), (str(log), n)) for n in range(COUNT)]
    return Stage("shout", "shouting", shout, units)


def work(folder: pathlib.Path) -> None:
    with WorkerPool(1) as pool, WorkFolder(folder / "work", pool) as place:
        place.run(stage(folder / "log"), Silent())


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
