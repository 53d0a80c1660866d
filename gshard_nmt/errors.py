"""The two exceptions that end a program on purpose, and the suggestion of a known word for an error."""

import difflib
from collections.abc import Iterable, Sequence


class UserError(ValueError):
    """The user made a mistake. The message says what was given, what is allowed and what to do.

    Programs print only the message, without a traceback, and exit with code 2.

    Attributes:
      settings: names of the settings that are wrong or contradict each other, such as "Mesh.axes".
    """

    def __init__(self, message: str, settings: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.settings = tuple(settings)


class TryAgain(RuntimeError):
    """The request is right, but a disk or server failed, a process died, or a machine was taken away.

    Programs print the message and exit with code 75 (EX_TEMPFAIL). The same command resumes the run.
    """


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Returns the end of a sentence: "; did you mean 'x'?", or "." if no known word is near.

    A word is near if it has almost the same letters, or else if one of the two words begins with the
    other, as pt-BR begins with pt. Upper and lower case count as equal. `prefix` is written before the
    suggestion, such as "--".
    """
    word = word.lower()
    by_lower_case = {known_word.lower(): known_word for known_word in known}
    near = difflib.get_close_matches(word, by_lower_case, n=1, cutoff=0.6)
    near += [candidate for candidate in by_lower_case if word and candidate.startswith(word)]
    near += [candidate for candidate in by_lower_case if candidate and word.startswith(candidate)]
    return f"; did you mean {prefix + by_lower_case[near[0]]!r}?" if near else "."
