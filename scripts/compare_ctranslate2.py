r"""Compares CTranslate2 with gshard-decode: translations of the same lines, and their scores.

    gshard-export --workdir RUN --out EXPORTED --format ctranslate2
    gshard-decode --workdir RUN --lang en --target fr --beam 4 --length_norm none --expansion fairseq \
      --scores --input LINES --output OURS.tsv
    python -m scripts.compare_ctranslate2 EXPORTED LINES OURS.tsv --source "<2fr>" --longest 48

It needs ctranslate2 and sentencepiece. A score of CTranslate2 is computed for the tokens that it found,
with those that the translation begins with. The scores of a TSV have 4 decimals. Leave out lines that
`gshard-decode` translates in pieces; it names them.
"""

import argparse
import sys
from pathlib import Path

import ctranslate2
import sentencepiece

ENOUGH = 0.999
"""The part of the lines that must be equal."""
TOLERANCE = 5e-3
"""The largest difference of scores for each token. CTranslate2 has a bias for ids that we leave out."""
_LINES = 32
"""The lines of a batch. With all lines in one, the logits would need gigabytes of memory."""


def main() -> int:
    """Compares the files that the command names; returns 1 if they differ too much."""
    parser = argparse.ArgumentParser(prog="python -m scripts.compare_ctranslate2")
    parser.add_argument("folder", type=Path, help="the export")
    parser.add_argument("lines", type=Path, help="the lines that were translated")
    parser.add_argument("ours", type=Path, help="what gshard-decode --scores wrote")
    parser.add_argument("--source", nargs="*", default=[], help="tags before the source")
    parser.add_argument(
        "--target", nargs="*", default=[], help="tags that a translation begins with"
    )
    parser.add_argument(
        "--longest", type=int, default=256, help="Data.target_length of the run (default: 256)"
    )
    arguments = parser.parse_args()
    source, target = (
        sentencepiece.SentencePieceProcessor(model_file=str(arguments.folder / f"{side}.model"))
        for side in ("source", "target")
    )
    rows = [row.split("\t") for row in arguments.ours.read_text().splitlines()]
    lines = arguments.lines.read_text().splitlines()[: len(rows)]
    tokens = [[*arguments.source, *source.encode(line, out_type=str)] for line in lines]
    translator = ctranslate2.Translator(str(arguments.folder))
    prefix = [arguments.target] * len(tokens) if arguments.target else None
    results = translator.translate_batch(
        tokens,
        target_prefix=prefix,
        beam_size=4,
        length_penalty=0,
        # Our limit counts EOS, and theirs does not.
        max_decoding_length=arguments.longest - 1,
        min_decoding_length=0,  # the default is 1, which forbids an empty translation
        max_batch_size=_LINES,
    )
    found = [result.hypotheses[0] for result in results]
    scores = [
        sum(s.log_probs) for s in translator.score_batch(tokens, found, max_batch_size=_LINES)
    ]
    texts = [target.decode_pieces(pieces[len(arguments.target) :]) for pieces in found]
    equal = sum(text == row[2] for text, row in zip(texts, rows, strict=True))
    worst = max(
        abs(score - float(row[1])) / (len(pieces) + 1)
        for score, row, pieces, text in zip(scores, rows, found, texts, strict=True)
        if text == row[2]
    )
    print(f"{equal} of {len(rows)} lines are equal; scores differ by {worst:.1e} a token at most")
    return int(equal < ENOUGH * len(rows) or worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
