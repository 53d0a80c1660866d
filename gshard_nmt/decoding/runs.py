"""Translators of several run folders: a run and its bilingual baselines."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt import paths
from gshard_nmt.decoding.expert_use import ExpertUse
from gshard_nmt.decoding.pieces import lost_note, pieces_note
from gshard_nmt.decoding.protected import trained_protection
from gshard_nmt.decoding.source_lines import Hypothesis
from gshard_nmt.decoding.text_translator import TextTranslator, call, follow, load_translator
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.config import differences
from gshard_nmt.settings.values import Changes, read_run_config
from gshard_nmt.spmd.processes import Processes

RULES_VERSION = 6
"""Raise it if the same weights, settings and text give other translations than before.

Translations that were stored with another version are not used again."""


@dataclasses.dataclass(frozen=True)
class Choices:
    """What the user has chosen instead of the run: the weights, and settings of Mesh and Decode."""

    checkpoint: str = "best"
    changes: Changes = dataclasses.field(default_factory=Changes)

    def settings(self, run: RunFolder) -> str:
        """Returns the settings that translations depend on, as text.

        They are those of the run, and the changes of Decode. Translations are the same on every mesh.
        """
        text = run.config.read_text(encoding="utf-8")
        config = read_run_config(run.config)
        new = differences(config.decode, self.changes.apply(config).decode)
        if protection := trained_protection(config):
            new.append(f"protected text: {protection.digest}")
        return "\n".join([text, *new])


class RunTranslators:
    """Translates with the models of run folders, and loads each when it is first used.

    Several processes make all calls together, see `from_first`.
    """

    def __init__(self, trust_programs: bool, changes: Changes, processes: Processes) -> None:
        """Loads nothing yet."""
        self._trust_programs, self._changes = trust_programs, changes
        self._processes = processes
        self._loaded: dict[tuple[str, str], tuple[TextTranslator, str]] = {}  # at most one

    def from_first(self, method: str) -> Callable[..., Any]:
        """Returns a method, which process 0 calls with a run folder and values that JSON can write.

        The other processes are in `follow` then, and call it too.
        """
        return lambda workdir, *rest: call(self._processes, self, method, str(workdir), *rest)

    def translate(
        self, workdir: Path | str, source: str, target: str, lines: Sequence[str], checkpoint: str
    ) -> tuple[list[str], str, str]:
        """Translates lines with the model of a run folder, and says on stderr which were too long.

        Returns the best translation of each line, a text that names the training step and the search, and
        the label of the checkpoint.
        """
        best, made_by, label = self.hypotheses(workdir, source, target, lines, checkpoint)
        in_pieces = [number for number, line in enumerate(best, 1) if line.pieces > 1]
        if in_pieces and self._processes.is_first:
            longest = self._translator(workdir, checkpoint)[0].longest_source
            sys.stderr.write(f"{source}-{target}: {pieces_note(in_pieces, longest)}\n")
        lost = {number: line.lost[0] for number, line in enumerate(best, 1) if line.lost}
        if lost and self._processes.is_first:
            sys.stderr.write(f"{source}-{target}: {lost_note(lost)}\n")
        return [translation.text for translation in best], made_by, label

    def hypotheses(
        self, workdir: Path | str, source: str, target: str, lines: Sequence[str], checkpoint: str
    ) -> tuple[list[Hypothesis], str, str]:
        """Returns the best translation of each line, with what it was made by, as `translate`."""
        translator, search = self._translator(workdir, checkpoint)
        best = [nbest[0] for nbest in translator.translate(lines, source, target)]
        return best, translator.made_by(search), translator.checkpoint

    def expert_use(
        self, workdir: Path | str, tests: Sequence[Sequence], checkpoint: str
    ) -> ExpertUse:
        """Counts which experts the model of a run folder uses for text."""
        translator, _ = self._translator(workdir, checkpoint)
        return translator.expert_use(tests)

    def follow(self) -> None:
        """Does what process 0 does, until it ends the calls."""
        follow(self._processes, self)

    def _translator(self, workdir: Path | str, checkpoint: str) -> tuple[TextTranslator, str]:
        key = str(workdir), checkpoint
        if key in self._loaded:
            return self._loaded[key]
        self._loaded.clear()  # before the next one needs its memory
        run = RunFolder(paths.folder_path("workdir", str(workdir)), self._trust_programs)
        config = self._changes.apply(read_run_config(run.config))
        fits = not self._changes.name_a_mesh
        protection = trained_protection(config)  # as gshard-decode: this is what users get
        translator = load_translator(config, run, 1, checkpoint, self._processes, fits, protection)
        self._loaded[key] = translator, config.decode.settings()
        return self._loaded[key]
