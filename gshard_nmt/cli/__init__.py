"""The programs as a user types them: flags, help, messages and exit codes."""

import sys
from types import TracebackType

_show = sys.excepthook


def _show_no_interruption(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Prints no traceback of a Ctrl-C while modules are imported. The exit code in a shell is 130."""
    if not issubclass(kind, KeyboardInterrupt):
        _show(kind, error, trace)


sys.excepthook = _show_no_interruption
