"""What a benchmark tells a worker, as the one argument of its command line.

This module imports the standard library alone, because the peers do not have this package.
"""

import argparse
import dataclasses
import json
import os
from typing import Self


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """The work of one process.

    Attributes:
      cores: the numbers of the cores. A process has one thread for each.
      folder: the folder of the files that a system keeps between two runs of the benchmark.
      settings: gin bindings, for this package only.
    """

    cores: tuple[int, ...]
    folder: str = ""
    settings: tuple[str, ...] = ()

    def as_argument(self) -> str:
        """Returns the argument that `of_command_line` reads."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def of_command_line(cls, description: str | None) -> Self:
        """Reads the job of this process, and keeps the process to its cores.

        Call it before any library starts its threads.
        """
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("job", help="the JSON text that the benchmark writes")
        fields = json.loads(parser.parse_args().job)
        job = cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})
        os.sched_setaffinity(0, job.cores)
        return job
