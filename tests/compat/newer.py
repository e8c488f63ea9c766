"""Runs a program as it might be one minor version from now: ``newer PYTHON -m MODULE ARGUMENT...``.

There is no other version to run yet, so this tree pretends to be one: it speaks minor 1, its server
announces an ability and serves an operation that nobody else knows, and its clients know those. A
program begun by this one (a copier) is of this tree as it is. Runs in the program's own process,
before it imports anything.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any, ClassVar

from protocol import messages

MINOR = 1
ABILITY = "of-tomorrow"
OPERATION = 4001


class Tomorrow(messages.Request, frozen=True, kw_only=True):
    """An operation that minor 1 might have; answered with ``Done``."""

    op: ClassVar[Any] = OPERATION
    wish: int = 0


def become_newer() -> None:
    """Changes what this process knows of the protocol; before other modules take it from there."""
    late = ("protocol.session", "server.", "adapter.")
    early = sorted(name for name in sys.modules if name.startswith(late))
    assert not early, f"imported too early: {early}"
    messages.VERSION_MINOR = MINOR
    messages.REQUEST_TYPES[OPERATION] = Tomorrow
    messages.REPLY_TYPES[OPERATION] = messages.Done


def _serve_it() -> None:
    """The server's part; in a client it is never asked for."""
    from server.core import dispatch, handlers

    abilities = tuple(sorted((*dispatch.CAPABILITIES, ABILITY)))
    setattr(dispatch, "CAPABILITIES", abilities)  # noqa: B010 - longer than its type says
    made = handlers.Handlers.__init__

    def make(self: handlers.Handlers, state: Any) -> None:
        made(self, state)
        self._table[Tomorrow] = lambda process, body, ticket: messages.Done()

    handlers.Handlers.__init__ = make  # type: ignore[method-assign]


def main() -> None:
    """Becomes what the rest of the command line says."""
    at = sys.argv.index("-m")
    module, sys.argv = sys.argv[at + 1], sys.argv[at + 1 :]
    become_newer()
    if module == "server":
        _serve_it()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    # As the module of that name: the program takes the name __main__ away from this one.
    from tests.compat import newer

    newer.main()
