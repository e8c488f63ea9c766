"""A loop's end of the reports for tests of the threads that post them.

Knows ``server.shell.reports`` only. Runs in the pytest process.
"""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import TypeVar

import zmq

from server.shell.loop import make_socket
from server.shell.reports import Report, Reporter, ReportQueue
from tests.wire.process import wait_until

R = TypeVar("R", bound=Report)


class Reports:
    """A ROUTER, a queue, one reporter."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.router = make_socket(self.context)
        self.queue: ReportQueue = deque()
        self.reporter = Reporter(self.context, "test", self.queue)

    def one_more(self, name: str) -> Reporter:
        """A reporter for one more thread; whoever asked closes it."""
        return Reporter(self.context, name, self.queue)

    def wait_for(self, kind: type[R], limit_s: float = 15.0) -> R:
        """The next report, which must be of this kind."""
        assert wait_until(lambda: len(self.queue) > 0, limit_s), f"no {kind.__name__} came"
        report = self.queue.popleft()
        assert isinstance(report, kind), report
        return report

    def __enter__(self) -> Reports:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.reporter.close()
        self.router.close()
        self.context.destroy(linger=0)
