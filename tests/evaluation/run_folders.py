"""Run folders that tests make by hand; nothing is trained."""

import json
from collections.abc import Sequence
from pathlib import Path

from gshard_nmt.run.folder import RunFolder
from tests.run.facts import budget_facts, data_facts


def make_run(
    folder: Path, languages: Sequence[str] = ("fr", "de"), config: str = "", **facts: object
) -> RunFolder:
    """Makes a run folder of a MoE model from these languages to English, with `facts` in data.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.gin").write_text(config or "Model.heads = 4\nModel.experts = 8\n")
    (folder / "data.json").write_text(json.dumps(data_facts(languages, **facts)))
    budget = budget_facts(dict.fromkeys(languages, 450)) | {"seconds": 86400.0}
    (folder / "budget.json").write_text(json.dumps(budget))
    return RunFolder(folder)


def write_metrics(run: RunFolder, lines: Sequence[dict[str, object]]) -> None:
    """Writes the log of a run."""
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
