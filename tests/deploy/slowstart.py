"""A server whose start takes long: it pretends to page-lock memory before it can serve.

``python -m tests.deploy.slowstart steps STEPS SECONDS ALLOWANCE …`` does so in steps, each of which
it announces as the server announces its stages; the rest is for ``launch``. ``hang`` instead of
``steps`` announces one step and does not come back from it. ``loop`` starts at once, and has the
loop's thread alone hang with the first PING. Runs in a process of its own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import MutableMapping
from typing import Any

from protocol.messages import Ping
from server.__main__ import main
from server.core.handlers import Handlers
from server.shell import adoption
from server.shell.sdnotify import Notifier

_HANG_S = 60.0


def pretend(how: str, steps: int, step_s: float, allowance_s: float) -> None:
    """Has the server of this process take its time.

    Args:
        how: ``steps`` or ``hang``.
        steps: how many.
        step_s: each takes so long, in seconds.
        allowance_s: what the manager is asked for, for each, in seconds.
    """
    made: list[Notifier] = []
    from_environ, look = Notifier.from_environ, adoption.look

    def keep(environ: MutableMapping[str, str], pid: int) -> Notifier:
        made.append(from_environ(environ, pid))
        return made[0]

    def look_slowly(*arguments: Any) -> Any:
        for step in range(steps):
            made[0].stage(f"pinning {step + 1} of {steps}", limit_s=allowance_s)
            time.sleep(_HANG_S if how == "hang" else step_s)
        return look(*arguments)

    Notifier.from_environ = keep  # type: ignore[method-assign]
    adoption.look = look_slowly  # type: ignore[assignment]


def hang_on_ping() -> None:
    """Has the loop of this process stand still within a request, and nothing else of it."""
    handle = Handlers.handle

    def hang(self: Handlers, process: Any, body: Any, ticket: Any) -> Any:
        if isinstance(body, Ping):
            time.sleep(_HANG_S)
        return handle(self, process, body, ticket)

    Handlers.handle = hang  # type: ignore[method-assign]


if __name__ == "__main__":
    how, number, seconds, allowance = sys.argv[1:5]
    if how == "loop":
        hang_on_ping()
    else:
        pretend(how, int(number), float(seconds), float(allowance))
    sys.argv[1:5] = ["launch"]
    main()
