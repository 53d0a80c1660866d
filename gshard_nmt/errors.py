"""The two exceptions that end a program on purpose. Every stage may raise them."""

from collections.abc import Sequence


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
