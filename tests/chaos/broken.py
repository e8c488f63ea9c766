"""A server that is broken on purpose: ``python -m tests.chaos.broken quarantine --endpoint …``.

Takes one guard away and launches. A run against it must find wrong bytes or offers that fail; else
the run, not the guard, is worth nothing. Must not know: runs. Runs in place of the server.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from server.__main__ import main
from server.core.quarantine import Quarantine


def without_quarantine() -> None:
    """What former engines may still read is reused at once."""
    _replace(Quarantine, "seal", lambda self, extent: None)


def _replace(kind: type, name: str, function: Callable[..., Any]) -> None:
    assert callable(getattr(kind, name)), f"{kind.__name__} has no {name}: nothing would be broken"
    setattr(kind, name, function)


BREAKS: Final[Mapping[str, Callable[[], None]]] = {"quarantine": without_quarantine}
"""By name."""

if __name__ == "__main__":
    BREAKS[sys.argv[1]]()
    sys.argv[:2] = ["server", "launch"]
    main()
