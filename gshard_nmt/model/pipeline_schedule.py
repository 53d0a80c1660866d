"""Says which microbatch each stage of a pipeline works on in each iteration (GSPMD section 3.3).

A microbatch moves to the next stage in each iteration. After the last stage it leaves the pipeline, or,
in a circular schedule, goes back to stage 0 for its next visit.
"""

import dataclasses
from typing import Any

SCHEDULES = ("gpipe", "circular")

Number = Any
"""An int, or an int32 tensor."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The order of the work in a pipeline.

    Two stages and three microbatches, one visit each; a bubble is "-":

        iteration   0  1  2  3
        stage 0     0  1  2  -
        stage 1     -  0  1  2

    With several visits, as many microbatches as there are stages make all their visits before the next
    ones enter. Two stages, four microbatches and two visits, in which 1b is the second visit of 1:

        iteration   0   1   2   3   4   5   6   7   8
        stage 0     0a  1a  0b  1b  2a  3a  2b  3b  -
        stage 1     -   0a  1a  0b  1b  2a  3a  2b  3b
    """

    stages: int  # the number of stages
    microbatches: int  # the number of microbatches
    visits: int = 1  # how often each microbatch passes each stage

    @property
    def iterations(self) -> int:
        return self.leaves(self.microbatches - 1)

    def enters(self, microbatch: int) -> int:
        """Returns the iteration in which stage 0 works on a microbatch for the first time."""
        turn, place = divmod(microbatch, self.stages)
        return turn * self.stages * self.visits + place

    def leaves(self, microbatch: int) -> int:
        """Returns the first iteration in which a microbatch has left the pipeline."""
        return self.enters(microbatch) + self.stages * self.visits

    def work(self, iteration: Number, stage: Number) -> "Work":
        """Returns what a stage does in an iteration; the numbers of a bubble have no meaning."""
        since = iteration - stage
        turn, place = since // (self.stages * self.visits), since % (self.stages * self.visits)
        microbatch = turn * self.stages + place % self.stages
        is_valid = (since >= 0) & (microbatch < self.microbatches)
        return Work(microbatch, place // self.stages, is_valid)


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of a stage in an iteration."""

    microbatch: Number  # the number of the microbatch
    visit: Number  # how often the microbatch has been in this stage before
    is_valid: Any  # False in a bubble
