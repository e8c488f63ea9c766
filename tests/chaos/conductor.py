"""A whole run: brings everything up, follows the script, ends everything, and looks what is left.

Must not know: how deeds are done, what figures mean. The caller's thread.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from protocol.errors import KvkeepError
from tests.chaos.cast import CAST, Place, write_models
from tests.chaos.deeds import Deeds
from tests.chaos.host import Server, Succession
from tests.chaos.lookout import Lookout, files_of
from tests.chaos.plant import Flipper
from tests.chaos.players import Player
from tests.chaos.processes import descriptors_of
from tests.chaos.script import EVERYTHING, Event, Script
from tests.chaos.stops import HANG_NS, Call, Stops
from tests.chaos.tally import Tally

GONE: Final = (
    *("sessions", "instances", "leases", "pinned_slots", "slots_reserved", "stores"),
    *("copies_in_flight", "arena_quarantined_bytes", "extents_unmapped", "parties_awaited"),
)
"""Gauges of the server that are 0 when every engine has left; one it does not know is 0."""

_STOPS: Final = ("engine_stops", "copier_stops", "porter_stops", "server_stops")
_EVENTS: Final = (
    *("engine_kills", "server_kills", "copier_kills", "porter_kills", *_STOPS),
    *(
        "engine_stops_with_offer",
        "servers_killed_past_stopped_engines",
        "servers_killed_at_start",
        "engine_starts",
        "server_starts",
        "server_ends",
    ),
    *("arena_resizes", "sockets_dropped", "sockets_hidden", "requests", "cancelled", "calls"),
    "verified_pages",
)

_KNOWN: Final = re.compile(r"arena|lock|boot|\d+\.extent|(parties|namespaces)/[0-9a-f]+")

_LINE_EVERY_S: Final = 60.0
_IDLE_S: Final = 1.0
_TICK_S: Final = 0.05
_PLAYERS_END_S: Final = 90.0
_DEEDS_END_S: Final = 30.0
_CLEAN_S: Final = 15.0
_ASK_S: Final = 5.0
_OWN_DISK: Final = "disk:{}/tier?size=64M"
"""Three times what engines ask for: enough for most of it, and evicted from all the same."""


@dataclass(frozen=True)
class Settings:
    """Of a run.

    Attributes:
        seed: decides everything.
        length_s: how long processes are hit.
        rate: requests per second of each engine at most.
        plant: a fault to be planted; empty for none.
        launcher: of the server.
        script: kind of run.
        keep_log: where the servers' log is copied to; empty for nowhere.
        l2: URLs of lower tiers; ``disk`` stands for a folder of the run's own.
    """

    seed: int
    length_s: float
    rate: float
    plant: str = ""
    launcher: tuple[str, ...] = ("server", "launch")
    script: Script = EVERYTHING
    keep_log: str = ""
    l2: tuple[str, ...] = ()


class Conductor:
    """One run.

    Args:
        settings: of it.
        events: the script.
        say: prints a line.
    """

    def __init__(
        self, settings: Settings, events: Sequence[Event], say: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._events = list(events)
        self._say = say
        self.tally, self.stops = Tally(), Stops()
        self.minutes: list[dict[str, Any]] = []
        self._leaks: dict[str, Any] = {}
        self._server_log: dict[str, int] = {}
        self._parties = self._begin_ns = 0

    def run(self) -> dict[str, Any]:
        """Runs it.

        Returns:
            Figures, JSON-ready.
        """
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvk-chaos-")))
            shared = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="kvk-chaos-", dir="/dev/shm")
            )
            write_models(folder / "models")
            wish, tally, stops = self._settings, self.tally, self.stops
            server = self._server = Server(
                folder,
                Path(shared) / "a",
                tally,
                stops,
                wish.script.extent,
                wish.launcher,
                [_OWN_DISK.format(folder) if url == "disk" else url for url in wish.l2],
            )
            lookout = self._lookout = Lookout(server, stops, tally)
            script = wish.script
            place = Place(
                server.url,
                server.wire,
                server.side,
                folder / "models",
                wish.rate,
                script.fresh,
                script.again,
            )
            players = [
                Player(role, wish.seed, place, tally, stops)
                for role in CAST
                if not script.roles or role.name in script.roles
            ]
            server.start()
            try:
                self._play(server, lookout, players)
            finally:
                for player in players:
                    player.end()
                lookout.end()
                server.end()
                server.join(_PLAYERS_END_S)
            self._count_left("files", len(files_of(Path(shared) / "a")) if server.failure else 0)
            self._server_log = server.log_kinds()
            for kind, count in self._server_log.items():
                if kind == "Traceback" or kind.endswith("_fault"):
                    self.tally.trouble(f"{count} of {kind} in the servers' log")
            if self._settings.keep_log:
                shutil.copy(server.log_path, self._settings.keep_log)
            self._count_left("processes", server.processes_left())
        return self._figures()

    def _play(self, server: Server, lookout: Lookout, players: Sequence[Player]) -> None:
        first = Succession(0, 0.0, self._settings.script.full_arena)
        server.succeed(first)
        first.done.wait(_PLAYERS_END_S)
        if server.now is None:
            raise RuntimeError(f"no server: {server.failure}")
        time.sleep(_IDLE_S)  # its copier comes up
        self._parties = num_parties(files_of(server.arena_dir))
        idle = descriptors_of(server.now.grip.pid, str(server.arena_dir))
        for thread in (lookout, *players):
            thread.start()
        deeds = Deeds(players, server, lookout, self.tally, self.stops)
        flipper = Flipper(server.arena_dir, self._settings.seed)
        if self._settings.plant == "flip":
            flipper.start()
        self._follow(deeds, server)
        if not deeds.finish(_DEEDS_END_S):
            self.tally.trouble("a deed did not end")
        flipper.end()
        self._part(server, lookout, players, idle)

    def _follow(self, deeds: Deeds, server: Server) -> None:
        self._begin_ns = time.monotonic_ns()
        begin_s, due = time.monotonic(), list(self._events)
        next_line_s, before = _LINE_EVERY_S, self.tally.sums()
        while (now_s := time.monotonic() - begin_s) < self._settings.length_s:
            while due and due[0].at_s <= now_s:
                deeds.do(due.pop(0))
            if now_s >= next_line_s:
                next_line_s += _LINE_EVERY_S
                before = self._line(now_s, before)
            if server.failure or self._is_plant_found():
                return
            time.sleep(_TICK_S)
        self._line(time.monotonic() - begin_s, before)

    def _is_plant_found(self) -> bool:
        """Whether a planted fault was seen: it is all that such a run is for."""
        return bool(self._settings.plant) and self.tally.sums()["wrong_bytes"] > 0

    def _line(self, now_s: float, before: Any) -> Any:
        sums = self.tally.sums()
        row = {name: sums[name] - before[name] for name in sums}
        told = {
            "minute": round(now_s / 60, 1),
            "loads": row.get("loads", 0),
            "chunks": row.get("chunks", 0),
            "hit_ratio": ratio(row.get("loaded_tokens", 0), row.get("prompt_tokens", 0)),
            **{name: row.get(name, 0) for name in ("engine_kills", "server_kills")},
            "wrong_bytes": sums["wrong_bytes"],
            "failed_offers": sums["failed_offers"],
            "troubles": self.tally.num_troubles,
        }
        self.minutes.append(told)
        self._say("  ".join(f"{name} {value}" for name, value in told.items()))
        return sums

    def _part(
        self, server: Server, lookout: Lookout, players: Sequence[Player], idle: dict[str, int]
    ) -> None:
        """Every engine leaves; what the server still holds of them then is a leak."""
        for player in players:
            player.end()
        end_s = time.monotonic() + _PLAYERS_END_S
        for player in players:
            player.join(max(0.0, end_s - time.monotonic()))
            if player.is_alive():
                self.tally.event("stuck_requests")
                self.tally.trouble(f"{player.who} ({player.part}) did not end")
        self._count_left("engine_processes", sum(player.processes_left() for player in players))
        lookout.end()
        lookout.join(2 * _ASK_S)
        now = server.now
        if now is None:
            return
        end_s = time.monotonic() + _CLEAN_S
        while True:
            # Before it is asked: whoever asks is one connection more for a moment.
            extra = _more(descriptors_of(now.grip.pid, str(server.arena_dir)), idle)
            left = self._held(lookout)
            if not (left or extra) or time.monotonic() > end_s:
                break
            time.sleep(0.2)
        for name, value in left.items():
            self._count_left(name, value)
        for name, value in extra.items():
            self._count_left(f"descriptors: {name}", value)

    def _held(self, lookout: Lookout) -> dict[str, int]:
        try:
            found = lookout.ask(_ASK_S)
        except (OSError, KvkeepError) as error:
            return {f"no answer at the end: {error!r}": 1}
        left = {name: found[name] for name in GONE if found.get(name)}
        return left | files_left(files_of(self._server.arena_dir), found["extents"], self._parties)

    def _count_left(self, name: str, count: int) -> None:
        if count:
            self._leaks[name] = count

    def _at(self, call: Call) -> str:
        return f"at {(call.begin_ns - self._begin_ns) / 1e9:.1f} s"

    def _figures(self) -> dict[str, Any]:
        sums, lookout = self.tally.sums(), self._lookout
        growth, over_s = lookout.memory()
        long = self.tally.long_calls()
        hangs = [(who, call) for who, call in long if call.own_ns > HANG_NS]
        hooks = [call for _, call in long if _is_hook_without_load(call.name)]
        answers = sorted(lookout.answer_ms)
        return {
            **{name: sums[name] for name in _EVENTS},
            "stops": sum(sums[name] for name in _STOPS),
            "loads_verified": sums["loads"],
            "chunks_verified": sums["chunks"],
            "tier_chunks": lookout.tier_chunks,
            "hit_ratio": ratio(sums["loaded_tokens"], sums["prompt_tokens"]),
            "hit_ratio_of_first_requests": ratio(sums["first_loaded_tokens"], sums["first_tokens"]),
            "device_ratio": ratio(sums["device_tokens"], sums["prompt_tokens"]),
            **{
                name: sums[name]
                for name in ("wrong_bytes", "failed_offers", "failed_requests", "engine_deaths")
            },
            "hangs": len(hangs) + sums["server_hangs"] + sums["stuck_requests"],
            "hang_list": [f"{who}: {call}, {self._at(call)}" for who, call in hangs[:20]],
            "hang_stacks": {who: self.tally.stacks(who) for who, _ in hangs[:20]},
            "hook_p99_9_ms_at_most": self.tally.hook_us(0.999) / 1000,
            "longest_hook_ms": round(max((c.own_ns for c in hooks), default=0) / 1e6, 1),
            "longest_calls": [
                f"{who}: {call.name} {call.own_ns / 1e6:.0f} ms, {self._at(call)}"
                for who, call in long[:10]
            ],
            "stats_ms_p50": round(answers[len(answers) // 2], 2) if answers else None,
            "stats_ms_max": round(answers[-1], 1) if answers else None,
            "server_ready_s_longest": round(max(self._server.ready_s, default=0), 2),
            "leaks": sum(1 for _ in self._leaks),
            "leak_list": dict(self._leaks),
            "rss_slope_mib_per_min": None if growth is None else round(growth, 3),
            "rss_slope_over_s": round(over_s, 1),
            "rss_mib": lookout.memory_samples(),
            "adapter": self.tally.adapter(),
            "server_log": self._server_log,
            "server": lookout.last,
            "server_most": lookout.most,
            "troubles": self.tally.num_troubles,
            "trouble_list": self.tally.troubles(),
        }


def num_parties(names: Sequence[str]) -> int:
    """Files that say who may touch the arena."""
    return sum(name.startswith("parties/") for name in names)


def files_left(names: Sequence[str], num_extents: int, parties: int) -> dict[str, int]:
    """What lies in an arena's folder without a reason.

    Args:
        names: of its files.
        num_extents: that the server has.
        parties: files of the server itself and its copier.
    """
    extents = sum(name.endswith(".extent") for name in names)
    more = {
        "extent files": extents - num_extents,
        "party files": num_parties(names) - parties,
        **{f"file {name}": 1 for name in names if not _KNOWN.fullmatch(name)},
    }
    return {kind: count for kind, count in more.items() if count}


def ratio(part: int, whole: int) -> float:
    """Rounded; 0 of nothing."""
    return round(part / whole, 4) if whole else 0.0


def _more(now: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """What there is more of than before."""
    more = {kind: count - before.get(kind, 0) for kind, count in now.items()}
    return {kind: count for kind, count in more.items() if count > 0}


def _is_hook_without_load(name: str) -> bool:
    return name.startswith("hook ") and "with a load" not in name
