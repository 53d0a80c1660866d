"""What a check of a corpus reports: findings, each with its place, examples, and advice."""

import dataclasses
import math
from typing import Any

EXAMPLES = 3
"""Examples that a finding has at most."""

ADVICE = {
    "unreadable": "Mend the file. The lines before that place were checked.",
    "missing": "Add the files, or leave the language out with Data.languages.",
    "unused_files": "Rename these files if they are text of the pair. Otherwise move them away.",
    "twice": "Remove one if it is a copy of the other. gshard-data prepare uses the text of both.",
    "swapped": "Exchange the names of the two files.",
    "wrong_language": "Look at the file and rename its folder, or replace the file.",
    "wrong_script": "Look at the file and rename its folder, or replace the file.",
    "same_text": "Find out which of the two languages the text is in, and remove the other copy.",
    "mixed_languages": "Remove these lines; the filters of gshard-data prepare can do it.",
    "shifted": "Insert or delete lines at the first of these lines, so that line N translates line N.",
    "unrelated": "Align the two files again. One of them is shuffled, or it belongs to another file.",
    "empty": "Remove these lines from both files; the filters of gshard-data prepare can do it.",
    "copies": "Remove these lines, or the model learns to copy its source.",
    "mojibake": "Decode the original file again with its true encoding.",
    "decomposed": "Compose them, for instance with uconv -x any-nfc. A model learns target text as it "
    "is, so it would write the same word in two ways.",
    "long": "Split these lines into sentences, because rows are shorter than they are.",
    "no_letters": "Remove these lines from both files; the filters of gshard-data prepare can do it.",
    "odd_ratio": "Look for lines that are cut, joined or wrongly aligned, and remove them.",
    "duplicates": "Remove the duplicates, or let gshard-data prepare do it.",
    "leak": "Remove these lines from the training text, or scores will be too high.",
}
"""The kinds of findings, and what a user can do about each."""

_CERTAINTY = 3.0
"""In standard deviations."""


@dataclasses.dataclass(frozen=True, order=True)
class Example:
    """A line of a corpus: its number from 1, and its sides in the order of the folder's name."""

    line: int
    first: str
    second: str


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that looks wrong.

    Attributes:
      kind: a key of ADVICE.
      pair: the name of the pair, see `CorpusPair.name`.
      split: "train", "dev" or "test"; "" for the whole pair.
      files: the names of the files that are concerned.
      what: says what is wrong, in one or two sentences.
      examples: lines that show it.
    """

    kind: str
    pair: str
    split: str
    files: tuple[str, ...]
    what: str
    examples: tuple[Example, ...] = ()

    @property
    def place(self) -> str:
        """The pair and the split, such as "fr-en train"."""
        return f"{self.pair} {self.split}".strip()

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"advice": ADVICE[self.kind]}


def surely_above(number: int, possible: int, limit: float) -> bool:
    """Returns whether a share is above a limit, by the lower end of its Wilson interval."""
    n, z2 = max(possible, 1), _CERTAINTY**2
    share = number / n
    spread = math.sqrt(z2 * (share * (1 - share) + z2 / (4 * n)) / n)
    return (share + z2 / (2 * n) - spread) / (1 + z2 / n) > limit
