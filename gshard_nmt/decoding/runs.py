"""Translators of several run folders: a run and its bilingual baselines."""

import collections
from collections.abc import Sequence
from pathlib import Path

from gshard_nmt import paths
from gshard_nmt.decoding.translator import TextTranslator, load_translator
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.changes import Changes
from gshard_nmt.settings.values import read_run_config
from gshard_nmt.spmd.processes import ALONE, Processes

_MOST = 2
"""The number of translators in memory: for a run and its baseline."""


class RunTranslators:
    """Translates with the models of run folders, and loads each when it is first used."""

    def __init__(
        self,
        trust_programs: bool = False,
        changes: Changes | None = None,
        processes: Processes = ALONE,
    ) -> None:
        """Loads nothing yet.

        Args:
          trust_programs: `RunFolder` explains it.
          changes: settings of Mesh and Decode that replace those of each run.
          processes: the processes that decode together.
        """
        self._trust_programs, self._processes = trust_programs, processes
        self._changes = changes or Changes()
        self._loaded: collections.OrderedDict[str, tuple[TextTranslator, str]] = (
            collections.OrderedDict()
        )

    def translate(
        self, workdir: Path | str, source: str, target: str, lines: Sequence[str]
    ) -> tuple[list[str], str, str]:
        """Translates lines with the model of a run folder.

        Args:
          workdir: the run folder.
          source, target: BCP 47 tags of a direction that the run was trained on.
          lines: source text.

        Returns:
          The best translation of each line, a text that names the training step and the search, and the
          label of the checkpoint.
        """
        translator, search = self._translator(str(workdir))
        best = [nbest[0].text for nbest in translator.translate(lines, source, target)]
        return best, f"step {translator.step}, {search}", translator.checkpoint

    def _translator(self, workdir: str) -> tuple[TextTranslator, str]:
        if workdir in self._loaded:
            self._loaded.move_to_end(workdir)
            return self._loaded[workdir]
        if len(self._loaded) == _MOST:
            self._loaded.popitem(last=False)  # before the next one needs its memory
        run = RunFolder(paths.folder_path("workdir", workdir), self._trust_programs)
        config = self._changes.apply(read_run_config(run.config))
        translator = load_translator(
            config, run, processes=self._processes, fits=not self._changes.name_a_mesh
        )
        self._loaded[workdir] = translator, config.decode.settings()
        return self._loaded[workdir]
