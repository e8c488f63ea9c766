"""How the command ends when it is told to: everything it started is gone then.

SIGTERM, which ends a Python process at once, is made to unwind as Ctrl-C does. Must not know: what
is run. Handlers run in the process's main thread.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

EXIT_INTERRUPTED: Final = 128 + signal.SIGINT
EXIT_TERMINATED: Final = 128 + signal.SIGTERM


class TerminatedError(KeyboardInterrupt):
    """SIGTERM came. No ``Exception``: what a connector raises is caught, this is not."""


@contextmanager
def unwinding() -> Iterator[None]:
    """Has SIGTERM raise ``TerminatedError`` in the block, once; a second one changes nothing.

    Outside the main thread, where Python takes no handlers, signals stay as they are.

    Raises:
        TerminatedError: SIGTERM came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def again(number: int, frame: FrameType | None) -> None:
        """Lets the end go on. A handler, not SIG_IGN, which children would inherit."""

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, again)
        raise TerminatedError

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """The exit code of a command that was told to end.

    Args:
        interrupt: what came.
    """
    return EXIT_TERMINATED if isinstance(interrupt, TerminatedError) else EXIT_INTERRUPTED
