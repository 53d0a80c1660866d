"""Decides how a run goes on after a bad training step, and records the batch of this step.

The step itself withholds an update that would spoil the weights (model/guard.py), so the state is good
in any case. Here the host decides how to go on: `Train.on_divergence`.
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from gshard_nmt import paths
from gshard_nmt.data.text.vocabulary import Vocabulary
from gshard_nmt.model.guard import FINE, JUMP, REASONS
from gshard_nmt.run.folder import RunFolder

Decision = Literal["skip", "rollback", "stop"]

MOST_SKIPS = 50
"""If this number of updates in a row has been withheld, a run with 'skip' stops: it learns nothing."""

MOST_ROLLBACKS = 3
"""If a run has gone back to the same checkpoint this number of times, it stops."""

MOST_RECORDS = 100
"""Batches of bad steps that each process keeps as text. Later ones are only named in metrics.jsonl."""


class Step(NamedTuple):
    """A training step: its number, the rows of its batch in this process, its metrics on the devices.

    `rows` are the numbers of these rows in the batch of all processes; () if they are 0, 1, 2 and so on.
    """

    number: int
    batch: Mapping[str, np.ndarray]
    metrics: Mapping[str, Any]
    rows: Sequence[int] = ()

    def reason(self) -> str:
        """Returns why the update of the step was withheld; "" if it was not. Waits for the step."""
        status = int(self.metrics["status"])
        if status == FINE:
            return ""
        if status != JUMP:
            return REASONS[status]
        norm, usual = (float(self.metrics[n]) for n in ("gradient_norm", "usual_gradient_norm"))
        return f"{REASONS[JUMP]} to {norm:.3g}, and {usual:.3g} is usual"


class StepWatch:
    """Looks at the status of a step only after the next one has started, so no device waits for the host.

    `bad` has the steps whose update was withheld, without the last step, whose status is not read yet.
    """

    def __init__(self) -> None:
        self.bad: list[Step] = []
        self._last: Step | None = None

    def add(self, step: Step) -> None:
        self.settle()
        self._last = step

    def settle(self) -> None:
        last, self._last = self._last, None
        if last is not None and last.reason():
            self.bad.append(last)

    def take_bad(self) -> list[Step]:
        bad, self.bad = self.bad, []
        return bad


@dataclasses.dataclass
class DivergenceCounts:
    """Counts bad steps and decides how a run goes on. The counts are saved with each checkpoint."""

    last_bad_step: int = -1
    skips_in_row: int = 0
    rollbacks: dict[str, int] = dataclasses.field(default_factory=dict)
    """How often the run has gone back to a checkpoint, by the step of the checkpoint as text."""

    @property
    def total_rollbacks(self) -> int:
        return sum(self.rollbacks.values())

    def decide(self, policy: str, step: int, checkpoint: int | None) -> Decision:
        """Counts a bad step and returns what to do. All processes of a run decide alike.

        `policy` is Train.on_divergence, `checkpoint` the step of the newest checkpoint, if there is one.
        """
        self.skips_in_row = self.skips_in_row + 1 if step == self.last_bad_step + 1 else 1
        self.last_bad_step = step
        if policy == "skip":
            return "skip" if self.skips_in_row < MOST_SKIPS else "stop"
        if policy == "rollback" and checkpoint is not None:
            times = self.rollbacks.get(str(checkpoint), 0)
            if times < MOST_ROLLBACKS:
                self.rollbacks[str(checkpoint)] = times + 1
                return "rollback"
        return "stop"


def record(
    run: RunFolder,
    bad: Step,
    facts: Mapping[str, Any],
    languages: Sequence[str],
    process: int = 0,
) -> str:
    """Writes the batch of a bad step as text, with its languages and what is known of the step.

    The file is divergence/step-N.json, or step-N.2.json if the run has gone back and comes to a bad step
    of this number for the second time. In a run of several processes, each writes its own rows, to
    step-N.process-1.json. Returns its name; "" if the folder has MOST_RECORDS already.
    """
    folder = run.path / "divergence"
    folder.mkdir(parents=True, exist_ok=True)
    ending = f".process-{process}.json" if process else ".json"
    own = {path.name for path in paths.entries(folder)}
    own = {name for name in own if re.fullmatch(rf"step-\d+(\.\d+)?{re.escape(ending)}", name)}
    if len(own) >= MOST_RECORDS:
        return ""
    times = itertools.chain([""], (f".{time}" for time in itertools.count(2)))
    name = next(n for t in times if (n := f"step-{bad.number}{t}{ending}") not in own)
    sentences = sentences_of(bad, run.vocabularies(), languages)
    run.write_json(f"divergence/{name}", {"step": bad.number, **facts, "sentences": sentences})
    return f"divergence/{name}"


def as_json(metrics: Mapping[str, float]) -> dict[str, float | str]:
    """Returns metrics as values for JSON. NaN and infinity become text: JSON has no such numbers."""
    return {name: value if np.isfinite(value) else str(value) for name, value in metrics.items()}


def sentences_of(
    step: Step, vocabularies: tuple[Vocabulary, Vocabulary], languages: Sequence[str]
) -> list[dict[str, str | int]]:
    """Returns `row`, `language`, `source` and `target` of each sentence pair of a batch, by rows.

    Language number i of a batch is languages[i - 1].
    """
    batch = step.batch
    pairs: list[dict[str, str | int]] = []
    sources, targets = [], []
    for row, segments in enumerate(batch["target_segments"]):
        number = step.rows[row] if step.rows else row
        for segment in range(1, int(segments.max(initial=0)) + 1):
            is_target = segments == segment
            language = int(batch["target_languages"][row][is_target][0])
            pairs.append({"row": number, "language": languages[language - 1]})
            is_source = batch["source_segments"][row] == segment
            sources.append(batch["source_ids"][row][is_source].tolist())
            targets.append(batch["target_labels"][row][is_target].tolist())
    texts = (v.decode(ids) for v, ids in zip(vocabularies, (sources, targets), strict=True))
    for pair, source, target in zip(pairs, *texts, strict=True):
        pair |= {"source": source, "target": target}
    return pairs


def explanation(bad: Step, decision: Decision, back_to: int | None) -> str:
    actions = {
        "skip": "its update was left out, and training goes on",
        "rollback": f"training goes on from the checkpoint of step {back_to}, with the next batches",
        "stop": "training stops",
    }
    return f"step {bad.number}: {bad.reason()}; {actions[decision]}"


def stop_message(bad: Step, policy: str, workdir: str, file: str) -> str:
    advice = {
        "stop": "The same command goes on after this batch; Train.on_divergence = 'skip' does so without "
        "stopping.",
        "skip": f"{MOST_SKIPS} updates in a row were left out.",
        "rollback": "Going back to the last checkpoint did not help.",
    }[policy]
    if policy != "stop":
        advice += (
            " Lower Optimizer.learning_rate or set Optimizer.linear_warmup_steps, and start again with a "
            "new --workdir."
        )
    batch = f" The batch is kept in {workdir}/{file}." if file else ""
    return (
        f"{workdir}: training has diverged at step {bad.number}: {bad.reason()}. The weights of the step "
        f"before it are saved.{batch} {advice}"
    )
