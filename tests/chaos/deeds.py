"""Does what the script says: kills, stops and continues processes, drops and hides sockets.

Each deed runs in a thread of its own, for some take seconds. Whatever was stopped is continued.
Must not know: the script's times, what comes of it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from tests.chaos.host import Server, Succession
from tests.chaos.lookout import Lookout
from tests.chaos.players import Player
from tests.chaos.processes import Grip
from tests.chaos.script import Event
from tests.chaos.stops import Stops
from tests.chaos.tally import Tally

POINTS: Final = ("queried", "bound", "forward", "launched", "iteration")
_OFFER_S: Final = 1.5
_TRY_S: Final = 4.0
_TRY_EVERY_S: Final = 0.05
_PORTER_TRY_S: Final = 15.0
"""Longer than the pause before one that keeps dying is started again."""

_BEFORE_KILL_S: Final = 0.3
_SUCCESSION_S: Final = 60.0


class Deeds:
    """Acts.

    Args:
        players: engines.
        server: theirs.
        lookout: is told when sockets are hidden.
        tally: counts what was done.
        stops: who was stopped when.
    """

    def __init__(
        self,
        players: Sequence[Player],
        server: Server,
        lookout: Lookout,
        tally: Tally,
        stops: Stops,
    ) -> None:
        self._players, self._server, self._lookout = players, server, lookout
        self._tally, self._stops = tally, stops
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()

    def do(self, event: Event) -> None:
        """Begins a deed; returns at once."""
        deed: Callable[[Event], None] = getattr(self, event.kind)
        thread = threading.Thread(target=deed, args=(event,), name=event.kind, daemon=True)
        thread.start()
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]

    def finish(self, limit_s: float) -> bool:
        """Ends stops and waits for everything under way; whether it ended."""
        self._over.set()
        end_s = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    # --- engines ---

    def kill_engine(self, event: Event) -> None:
        """kill -9 of one rank of an engine; its job dies of it."""
        for player in self._tries(event):
            if player.hit(signal.SIGKILL, event.target):
                self._tally.event("engine_kills")
                return

    def kill_engine_at_a_point(self, event: Event) -> None:
        """kill -9 of an engine at a point of its iteration."""
        for player in self._tries(event):
            if player.kill_at(POINTS[event.target % len(POINTS)]):
                self._tally.event("engine_kills")
                return

    def stop_engine(self, event: Event) -> None:
        """SIGSTOP of one rank for a while."""
        for player in self._tries(event):
            grip = player.hit(signal.SIGSTOP, event.target)
            if grip is not None:
                self._tally.event("engine_stops")
                self._let_go_on(player, grip, event.seconds)
                return

    def stop_engine_with_offer(self, event: Event) -> None:
        """Stops an engine that was offered something and has not begun to load it."""
        for player in self._tries(event):
            grip = player.stop_at(("queried", "bound")[event.target % 2], _OFFER_S)
            if grip is not None:
                self._tally.event("engine_stops")
                self._tally.event("engine_stops_with_offer")
                self._let_go_on(player, grip, event.seconds)
                return

    def drop_side(self, event: Event) -> None:
        """One rank loses its connection to the side socket."""
        self._ask(event, "drop_side")

    def drop_wire(self, event: Event) -> None:
        """One rank loses its connections to the endpoint."""
        self._ask(event, "drop_wire")

    def _ask(self, event: Event, what: str) -> None:
        for player in self._tries(event):
            count = player.ask(what, event.target)
            if count:
                self._tally.event("sockets_dropped", count)
                return

    def _tries(self, event: Event) -> Sequence[Player] | _Tries:
        return _Tries(self._players, event.target, self._over)

    def _let_go_on(self, player: Player, grip: Grip, seconds: float) -> None:
        self._over.wait(seconds)
        player.let_go_on(grip)

    # --- the server ---

    def kill_server(self, event: Event) -> None:
        """kill -9, and the next one after a moment."""
        self._succeed(signal.SIGKILL, event.seconds, event.arena)

    def kill_server_past_stopped_engine(self, event: Event) -> None:
        """kill -9 while an engine is stopped that was offered something.

        The engine goes on when the next server has filled some of its arena.
        """
        for player in self._tries(event):
            grip = player.stop_at(("queried", "bound")[event.target % 2], _OFFER_S)
            if grip is None:
                continue
            self._tally.event("engine_stops")
            self._tally.event("engine_stops_with_offer")
            self._tally.event("servers_killed_past_stopped_engines")
            self._over.wait(_BEFORE_KILL_S)
            self._succeed(signal.SIGKILL, 0.0, event.arena)
            self._let_go_on(player, grip, event.seconds)
            return
        self._succeed(signal.SIGKILL, 0.0, event.arena)

    def kill_server_twice(self, event: Event) -> None:
        """kill -9, and kill -9 of the next one while it starts."""
        self._succeed(signal.SIGKILL, 0.0, event.arena, stillborn_s=event.seconds)

    def end_server(self, event: Event) -> None:
        """SIGTERM, and the next one after a moment."""
        self._succeed(signal.SIGTERM, event.seconds, event.arena)

    def _succeed(self, number: int, wait_s: float, arena: str, stillborn_s: float = 0.0) -> None:
        before = self._server.now
        order = Succession(number, wait_s, arena, stillborn_s)
        self._server.succeed(order)
        order.done.wait(_SUCCESSION_S)
        if before is not None and before.arena != arena:
            self._tally.event("arena_resizes")

    def stop_server(self, event: Event) -> None:
        """SIGSTOP of the server for a while."""
        now = self._server.now
        if now is not None:
            self._stop(now.grip, event.seconds, "server_stops")

    def kill_copier(self, event: Event) -> None:
        """kill -9 of the copier."""
        self._kill(self._server.copier, _TRY_S, "copier_kills")

    def stop_copier(self, event: Event) -> None:
        """SIGSTOP of the copier for a while."""
        grip = self._server.copier()
        if grip is not None:
            self._stop(grip, event.seconds, "copier_stops")

    def wedge_copier(self, event: Event) -> None:
        """SIGSTOP for longer than the server waits for a copy: it kills this copier."""
        self.stop_copier(event)

    def kill_porter(self, event: Event) -> None:
        """kill -9 of a lower tier's porter; one that keeps dying comes again after a pause."""
        self._kill(self._server.porter, _PORTER_TRY_S, "porter_kills")

    def stop_porter(self, event: Event) -> None:
        """SIGSTOP of a porter for a while."""
        grip = self._server.porter()
        if grip is not None:
            self._stop(grip, event.seconds, "porter_stops")

    def wedge_porter(self, event: Event) -> None:
        """SIGSTOP for longer than the server waits for a porter: it kills this one."""
        self.stop_porter(event)

    def _kill(self, find: Callable[[], Grip | None], limit_s: float, name: str) -> None:
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s and not self._over.is_set():
            grip = find()
            if grip is not None and grip.signal(signal.SIGKILL):
                self._tally.event(name)
                return
            time.sleep(_TRY_EVERY_S)

    def _stop(self, grip: Grip, seconds: float, name: str) -> None:
        self._stops.begin(grip.pid)
        try:
            if grip.signal(signal.SIGSTOP):
                self._tally.event(name)
                self._over.wait(seconds)
        finally:
            grip.signal(signal.SIGCONT)
            self._stops.end(grip.pid)

    def hide_sockets(self, event: Event) -> None:
        """Both socket files are out of the way for a while, as if somebody tidied up."""
        now = self._server.now
        if now is None:
            return
        with self._lookout.hidden():
            away = [path for path in (self._server.wire, self._server.side) if _hide(path)]
            if not now.gone_ns:
                self._over.wait(event.seconds)
            for path in away:
                _show(path)
        self._tally.event("sockets_hidden", len(away))


def _hide(path: str) -> bool:
    try:
        os.rename(path, f"{path}.away")
    except FileNotFoundError:
        return False
    return True


def _show(path: str) -> None:
    """Puts a socket back, unless the next server has made its own."""
    try:
        os.link(f"{path}.away", path)
    except FileExistsError:
        pass
    os.unlink(f"{path}.away")


class _Tries:
    """Players to be hit, the one that was drawn first, again and again until one can be."""

    def __init__(self, players: Sequence[Player], first: int, over: threading.Event) -> None:
        self._players = players
        self._at = first
        self._over = over
        self._end_s = time.monotonic() + _TRY_S

    def __iter__(self) -> _Tries:
        return self

    def __next__(self) -> Player:
        if time.monotonic() > self._end_s or self._over.is_set():
            raise StopIteration
        self._at += 1
        if not self._at % len(self._players):
            time.sleep(_TRY_EVERY_S)
        return self._players[self._at % len(self._players)]
