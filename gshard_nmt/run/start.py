"""What the user asks of one start of a run."""

import dataclasses
from collections.abc import Collection
from pathlib import Path

from gshard_nmt import paths
from gshard_nmt.run.checkpoint.weights import Chosen
from gshard_nmt.run.log.clock import TimeLimit
from gshard_nmt.settings.config import Key


@dataclasses.dataclass(frozen=True)
class Init:
    """What the user asks for with --init_from.

    Attributes:
      run: the absolute path of the other run folder.
      checkpoint: its weights, as `Chosen.parse` reads them.
    """

    run: str
    checkpoint: str = "best"

    @classmethod
    def of(cls, run: Path, checkpoint: str) -> "Init":
        """Returns the wish for a run folder and a value of --checkpoint.

        Raises:
          UserError: the checkpoint is not a word that names one.
        """
        Chosen.parse(checkpoint)
        return cls(str(paths.absolute(run)), checkpoint)

    def __str__(self) -> str:
        return f"{self.run}, checkpoint {self.checkpoint}"


@dataclasses.dataclass(frozen=True)
class Start:
    """What the user asks of one start of a run.

    Attributes:
      limit: the time that it may take. Then it saves and ends.
      profile: whether to write a trace of a few steps.
      command: the command that the user typed; it is recorded in the run folder.
      init: the run that a new run starts from; None starts with random weights.
      set_by_user: the settings of --gin.
    """

    limit: TimeLimit = dataclasses.field(default_factory=TimeLimit)
    profile: bool = False
    command: str = ""
    init: Init | None = None
    set_by_user: Collection[Key] = ()
