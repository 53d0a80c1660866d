"""The two exceptions that end a program on purpose. Every stage may raise them."""


class UserError(ValueError):
    """The user made a mistake. The message says what was given, what is allowed and what to do.

    Programs print only the message, without a traceback, and exit with code 2.
    """


class TryAgain(RuntimeError):
    """The request is right, but another process died or a machine was taken away.

    Programs print the message and exit with code 75 (EX_TEMPFAIL). The same command resumes the run.
    """
