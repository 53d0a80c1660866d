"""The two ways a program ends early on purpose; every stage may raise them."""


class UserError(ValueError):
    """The user's mistake: the message says what was given, what is allowed and what to do.

    Programs print the message alone, without a traceback, and exit with code 2.
    """


class TryAgain(RuntimeError):
    """Nothing is wrong with the request: a peer died or a machine was taken.

    Programs print the message and exit with code 75 (EX_TEMPFAIL); the same command resumes.
    """
