"""Servers that should refuse to start, and what they say then. Runs in the pytest process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.wire.process import ROOT

LIMIT_S = 60.0


def launch(
    *arguments: str, prefix: Sequence[str] = (), environ: dict[str, str] | None = None
) -> tuple[int, str, str]:
    """Runs ``server launch`` to its end.

    Args:
        arguments: further ones.
        prefix: a command that becomes the server.
        environ: more of its environment.

    Returns:
        Exit code, standard output, standard error.
    """
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "server", "launch", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, **(environ or {})},
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def refused(*arguments: str, prefix: Sequence[str] = (), **environ: str) -> str:
    """The one line with which a server refuses to start; nothing else is said."""
    code, out, err = launch(*arguments, prefix=prefix, environ=environ)
    assert (code, out) == (2, ""), (code, out, err)
    assert err.count("\n") == 1, err
    return err


def places(folder: Path, shared: Path, name: str = "s") -> tuple[str, ...]:
    """Arguments for an endpoint and an arena of its own."""
    return ("--endpoint", f"ipc://{folder}/{name}", "--arena-dir", str(shared / name))
