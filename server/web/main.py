"""``python -m server.web --side PATH --listen [HOST:]PORT`` serves the pages until told to end.

A child of the server, or started by hand beside one. Threads and connections are bounded: whoever
comes when all are taken waits, and the server's loop never learns of it. Must not know: the
server's inside. Runs in: its own process; this module in its main thread.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

import click
from waitress.server import create_server

from server.heartbeat import Heartbeat
from server.web.history import History
from server.web.listen import Listen, parse
from server.web.pages import Pages
from server.web.watch import LIMIT_S, Watch

_log = logging.getLogger("kvkeep.web")

THREADS = 4
MAX_CONNECTIONS = 64
MAX_HEADER_BYTES = 16_384
MAX_BODY_BYTES = 1_024
QUIET_S = 30
"""A connection that neither asks nor reads for so long is closed."""

EXIT_CANNOT_LISTEN = 3

_PR_SET_PDEATHSIG = 1

_BESIDE_FDS = -1
"""No descriptor has this number."""


class _Turns:
    """What waitress's loop asks with each turn, at least once a second; it has nothing to do.

    Args:
        turn: called with each.
    """

    accepting = False

    def __init__(self, turn: Callable[[], None]) -> None:
        self._turn = turn

    def readable(self) -> bool:
        """Nothing to read."""
        self._turn()
        return False

    def writable(self) -> bool:
        """Nothing to write."""
        return False


def _listen(context: click.Context, option: click.Parameter, text: str) -> Listen:
    try:
        return parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error), context, option) from None


@click.command()
@click.option("--side", required=True, metavar="PATH", help="The server's side socket.")
@click.option(
    "--listen",
    required=True,
    metavar="[HOST:]PORT",
    callback=_listen,
    help="Where to serve the pages.",
)
@click.option("--parent", type=int, hidden=True, help="End with this process, which started it.")
def main(side: str, listen: Listen, parent: int | None) -> None:
    """Serve /metrics, /healthz, /readyz and the dashboard of a running server.

    The exit code is 3 when it cannot listen there.
    """
    logging.basicConfig(format="kvkeep %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # it warns of each that waits
    if parent is not None:
        _end_with(parent)
    history = History()
    watch = Watch(side, history.note)
    try:
        door = _bound(listen)
    except OSError as error:
        number = error.errno or 0  # below 0: of a name that leads nowhere
        why = os.strerror(number) if number > 0 else error.strerror
        if number == errno.EADDRINUSE:
            why = f"{why}: ss -ltnp 'sport = :{listen.port}' names who has it"
        click.echo(f"kvkeep: no pages at {listen.netloc()}: {why}", err=True)
        raise SystemExit(EXIT_CANNOT_LISTEN) from None
    turns = {} if parent is None else {_BESIDE_FDS: _Turns(Heartbeat(sys.stdout.fileno()))}
    server = create_server(
        Pages(listen, watch.view, history),
        map=turns,
        sockets=[door],
        threads=THREADS,
        connection_limit=MAX_CONNECTIONS + len(turns),
        channel_timeout=QUIET_S,
        max_request_header_size=MAX_HEADER_BYTES,
        max_request_body_size=MAX_BODY_BYTES,
        ident="kvkeep",
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    watch.start()
    click.echo(f"kvkeep pages: http://{listen.netloc(door.getsockname()[1])}/")
    sys.stdout.flush()
    try:
        server.run()  # until SIGTERM, which raises SystemExit in here
    finally:
        server.close()
        watch.stop(LIMIT_S + 1)


def _bound(listen: Listen) -> socket.socket:
    """A socket at the first address that a name has; waitress would take them all."""
    kind = socket.SOCK_STREAM
    found = socket.getaddrinfo(listen.host, listen.port, type=kind, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    return socket.create_server(address[:2], family=family)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _end_with(parent: int) -> None:
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL)) != 0:
        raise SystemExit("prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it ended before that took hold
        raise SystemExit(0)
