"""Runs a piece of a test as another user: forked, so that it needs no files of its own.

The interpreter may lie where only this user may read, hence no exec: whatever the piece imports is
imported before. Needs root; ``needs_root`` marks tests that use it. Runs in the pytest process.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import pytest

LIMIT_S = 60.0

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


class AsUser:
    """A child process under other ids, with no capability, running one function.

    Args:
        function: what to run; its JSON-able result is the child's.
        uid: user.
        gid: primary group.
        groups: supplementary groups.

    Attributes:
        pid: of the child.
    """

    def __init__(
        self,
        function: Callable[[], Any],
        uid: int,
        gid: int | None = None,
        groups: Sequence[int] = (),
    ) -> None:
        self._read, write = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._read)
                os.setgroups(list(groups))
                os.setresgid(*[uid if gid is None else gid] * 3)
                os.setresuid(uid, uid, uid)
                answer = {"result": function()}
            except BaseException:  # noqa: BLE001 - told to the parent
                answer = {"error": traceback.format_exc()}
            try:
                os.write(write, json.dumps(answer).encode())
            finally:
                os._exit(0)
        os.close(write)

    def result(self, limit_s: float = LIMIT_S) -> Any:
        """What the function returned.

        Raises:
            AssertionError: it raised, with its traceback, or took too long.
        """
        poller = select.poll()
        poller.register(self._read, select.POLLIN)
        said = os.read(self._read, 1 << 20) if poller.poll(limit_s * 1000) else b""
        os.close(self._read)
        if not said:
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        assert said, f"no answer within {limit_s} s, or the child died"
        answer = json.loads(said)
        assert "error" not in answer, answer["error"]
        return answer["result"]


def run_as(
    function: Callable[[], Any], uid: int, gid: int | None = None, groups: Sequence[int] = ()
) -> Any:
    """Runs a function as another user and returns its result."""
    return AsUser(function, uid, gid, groups).result()
