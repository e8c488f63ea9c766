"""The processes beside the server that the operator may want: pages, and traces.

Purpose: which of them there are follows from the settings; they start and end together. Must not
know: what they do. Runs in: the main thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from protocol import traceparent
from server.config import ServerConfig
from server.core.dispatch import Core
from server.shell.complaints import Complaints
from server.shell.sidechild import SideChild
from server.shell.tracechild import TraceChild
from server.shell.webchild import WebChild


def wants_traces(config: ServerConfig, environ: Mapping[str, str]) -> bool:
    """Whether traces were asked for and there is somewhere for them to go.

    Args:
        config: settings.
        environ: of this process.
    """
    return bool(config.traces and traceparent.endpoint(environ))


class SideChildren:
    """All of them.

    Args:
        config: settings.
        side_path: of the side socket.
        environ: of this process.
        complaints: counts what goes wrong.

    Attributes:
        traces: takes what is to be traced; None where nothing is.
    """

    def __init__(
        self,
        config: ServerConfig,
        side_path: str,
        environ: Mapping[str, str],
        complaints: Complaints,
    ) -> None:
        self._web = WebChild(side_path, config.http, complaints) if config.http else None
        self.traces: TraceChild | None = None
        if wants_traces(config, environ):
            self.traces = TraceChild(config.traces, complaints)
        elif config.traces:
            names = " nor ".join(traceparent.ENV_ENDPOINTS)
            complaints.note("traces_off", f"traces are off: neither {names} is set")
        self._all: list[SideChild] = [one for one in (self._web, self.traces) if one is not None]

    @property
    def url(self) -> str:
        """Where pages are served; empty while they are not."""
        return self._web.url if self._web is not None else ""

    def tell(self, core: Core) -> None:
        """Has STATS tell their figures."""
        for child in self._all:
            core.tell_more(child.figures)

    def start(self, listens: Callable[[str], None]) -> None:
        """Starts them; waits for none.

        Args:
            listens: told where pages are served, in another thread.
        """
        if self._web is not None:
            self._web.listens = listens
        for child in self._all:
            child.start()

    def abandon(self) -> None:
        """Has them end, without waiting."""
        for child in self._all:
            child.abandon()

    def stop(self, limit_s: float) -> bool:
        """Ends them.

        Args:
            limit_s: longest wait, seconds.

        Returns:
            Whether all ended.
        """
        end_s = time.monotonic() + limit_s
        ended = [child.stop(max(0.0, end_s - time.monotonic())) for child in self._all]
        if self.traces is not None:
            self.traces.close()
        return all(ended)
