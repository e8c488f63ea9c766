"""How this process logs: the server through its journal, a child of it straight to stderr.

Purpose: every line that is written here, also the last one of a process that breaks, has the form
the operator chose. A child learns that from its environment. Must not know: what lines say. Runs
in: the main thread, at the start of each process.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from types import TracebackType

from protocol.logline import (
    ENV_FORMAT,
    FORMATS,
    TEXT_FORMAT,
    About,
    JsonFormatter,
    json_line,
    wants_json,
)

_UNCAUGHT = "uncaught"


def set_up(handler: logging.Handler, level: str, form: str) -> None:
    """Has the server's lines go to a handler.

    Args:
        handler: that writes them.
        level: least that is written, as ``WARNING``.
        form: ``text`` or ``json``; children hear of it through the environment.
    """
    os.environ[ENV_FORMAT] = form
    if form == FORMATS[1]:
        handler.setFormatter(JsonFormatter("server"))
    logging.basicConfig(level=level, format=TEXT_FORMAT, handlers=[handler])
    child("server")


def child(process: str) -> None:
    """Has what breaks this process be told in the form that the server logs in.

    Args:
        process: its name, as ``copier``.
    """
    if not wants_json(os.environ):
        return

    def uncaught(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        told = "".join(traceback.format_exception(kind, error, trace))
        _write(json_line(time.time(), "CRITICAL", process, repr(error), About(_UNCAUGHT), told))

    def in_thread(happened: threading.ExceptHookArgs) -> None:
        if happened.exc_value is not None and happened.exc_type is not SystemExit:
            uncaught(happened.exc_type, happened.exc_value, happened.exc_traceback)

    sys.excepthook = uncaught
    threading.excepthook = in_thread


def say(process: str, event: str, text: str) -> None:
    """Writes one line of a child that has no other way to say something.

    Args:
        process: its name.
        event: stable word for this kind of line.
        text: one line for a person.
    """
    if wants_json(os.environ):
        _write(json_line(time.time(), "WARNING", process, text, About(event)))
    else:
        _write(f"kvkeep {process}: {text}")


def _write(line: str) -> None:
    """At once, and in one piece: others write to the same pipe."""
    try:
        os.write(2, line.encode("utf-8", "backslashreplace") + b"\n")
    except OSError:
        pass  # nobody reads it any more
