"""Chooses the sentences that a report shows: by a seed, and not by how good their translations are."""

import hashlib
import random

SEED = 1
"""The seed of the choice. The page states it."""

_MOST_OF_A_LANGUAGE = 3
_MOST = 150
"""Samples in a report, if every language can have at least one. More would make the page slow to load."""


def choose(direction: tuple[str, str], sentences: int, directions: int) -> list[int]:
    """Chooses sentences of a test set.

    The choice depends on the seed, the direction and the number of sentences. It does not depend on the
    translations, so it is the same for all systems.

    Args:
      direction: source and target language.
      sentences: number of sentences of the test set.
      directions: number of directions in the report.

    Returns:
      Positions in the test set from 0 on, in increasing order.
    """
    name = "\t".join((str(SEED), *direction))
    generator = random.Random(hashlib.sha256(name.encode()).digest())
    number = max(1, min(_MOST_OF_A_LANGUAGE, _MOST // max(directions, 1)))
    return sorted(generator.sample(range(sentences), min(number, sentences)))
