"""What a user asks of a report."""

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gshard_nmt.decoding.runs import Choices
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.metrics.metrics import Measures
from gshard_nmt.evaluation.systems.opening import Others
from gshard_nmt.evaluation.texts.test_sets import Published


@dataclasses.dataclass(frozen=True)
class Options:
    """What a user has chosen to measure.

    Attributes:
      measures: the metrics.
      length_edges: the source lengths, in words, at which the buckets of lengths begin.
      leave_out_overlap: whether to score without the test sentences that are in the training text.
    """

    measures: Measures = dataclasses.field(default_factory=Measures)
    length_edges: tuple[int, ...] = (10, 20, 30, 40)
    leave_out_overlap: bool = False

    def check(self) -> None:
        """Raises UserError if a metric cannot be computed, or the lengths do not ascend from 1."""
        self.measures.check()
        edges = [0, *self.length_edges]
        if any(after <= before for before, after in itertools.pairwise(edges)):
            raise UserError(
                f"--length_edges is {' '.join(map(str, self.length_edges))}; lengths are whole numbers "
                "from 1 in ascending order. Give for example --length_edges 10 20 30 40."
            )


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user asks of a report.

    Attributes:
      baselines: a folder of run folders that are named by language, or a JSON file {"fr": 30.1, ...}.
      sentences: number of sentences of each language, from the start of the split; 0 means all.
      choices: the weights of the runs, and changed settings. Each baseline uses its best checkpoint.
      options: the metrics, the buckets of lengths, and whether to leave out overlap.
      published: a test set that takes the place of the corpus.
      others: other runs and published scores to compare the run with.
      command: the command that makes the report. The page shows it.
      count_experts: counts which experts the runs use for the test sets; None leaves this out.
    """

    baselines: Path | None = None
    sentences: int = 0
    choices: Choices = dataclasses.field(default_factory=Choices)
    options: Options = dataclasses.field(default_factory=Options)
    published: Published | None = None
    others: Others = dataclasses.field(default_factory=Others)
    command: str = ""
    count_experts: Callable[..., Any] | None = None
