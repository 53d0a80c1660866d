"""Scores sentences with CTranslate2, for tests/exchange/random_exports.py, which writes FOLDER.

    python -m scripts.score_with_ctranslate2 FOLDER tests/exchange/goldens/ctranslate2_scores.json

It needs ctranslate2, which the project itself does not install.
"""

import json
import sys
from pathlib import Path

import ctranslate2


def main() -> None:
    folder = Path(sys.argv[1])
    sources, targets = zip(*json.loads((folder / "sentences.json").read_text()), strict=True)
    golden = {}
    for model in sorted(path.parent for path in folder.glob("*/model.bin")):
        translator = ctranslate2.Translator(str(model), compute_type="float32")
        results = translator.score_batch(list(sources), list(targets))
        golden[model.name] = [[round(p, 6) for p in result.log_probs] for result in results]
    Path(sys.argv[2]).write_text(json.dumps(golden, indent=0) + "\n")


if __name__ == "__main__":
    main()
