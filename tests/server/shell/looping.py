"""A loop with a real socket and peers; the core is one that does as a test says."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import zmq

from protocol import endpoint as endpoints
from protocol import frames
from protocol.ids import InstanceId
from protocol.messages import Ping
from server.core.dispatch import Core
from server.core.effects import Effect, PeerId, ProcessId, SendReply
from server.core.peers import Dropped
from server.shell.actions import Actions
from server.shell.complaints import Complaints
from server.shell.loop import Loop, make_socket
from server.shell.porters import Porters
from server.shell.reports import DrainAsked, Here, Reporter, ReportQueue


@dataclass
class ScriptedCore:
    """Echoes; raises, works and keeps time as told."""

    log: list[str] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    slices: int = 0
    timer_ns: int | None = None
    is_drained: bool = True
    on_request: Callable[[PeerId, bytes], None] | None = None

    def request(self, peer: PeerId, frame: bytes, now_ns: int) -> None:
        self.log.append("request")
        if frame == b"raise" or frame == frames.pack_request(Ping(), 99):
            raise RuntimeError("as asked")
        if self.on_request is not None:
            self.on_request(peer, frame)
        self.effects.append(SendReply(peer, b"echo " + frame[:100]))

    def work(self, now_ns: int) -> bool:
        if self.slices:
            self.slices -= 1
            self.log.append("work")
        return self.slices > 0

    def next_timer_ns(self) -> int | None:
        return self.timer_ns

    def tick(self, now_ns: int) -> None:
        self.log.append("tick")
        self.timer_ns = None

    def take_effects(self) -> list[Effect]:
        taken, self.effects = self.effects, []
        return taken

    def take_faults(self) -> list[str]:
        return []

    def peer_dropped(self, peer: PeerId, is_closed: bool = False) -> Dropped:
        self.log.append("closed" if is_closed else "deaf")
        return Dropped("process 7 (a client)", InstanceId(b"i" * 16))

    def process_quiet(self, process: ProcessId, now_ns: int) -> None:
        self.log.append(f"quiet {process}")

    def begin_drain(self, now_ns: int) -> None:
        self.log.append("drain")

    def drained(self) -> bool:
        return self.is_drained


@dataclass
class Running:
    """A loop in a thread, and who talks to it."""

    core: ScriptedCore
    url: str
    reporter: Reporter
    complaints: Complaints
    loop: Loop
    thread: threading.Thread
    context: zmq.Context[zmq.Socket[bytes]]
    dealers: list[zmq.Socket[bytes]] = field(default_factory=list)

    def connect(self) -> zmq.Socket[bytes]:
        dealer = self.context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.rcvtimeo = 10_000
        dealer.connect(self.url)
        self.dealers.append(dealer)
        return dealer

    def stop(self) -> None:
        self.reporter.post(DrainAsked())
        self.thread.join(10)
        assert not self.thread.is_alive()


def running_loop(short_dir: Path) -> Iterator[Running]:
    """One loop, of whose end it takes care.

    Args:
        short_dir: for its socket.
    """
    inner: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    outer: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = make_socket(inner)
    queue: ReportQueue = deque()
    core, complaints = ScriptedCore(), Complaints()
    reporter = Reporter(inner, "test", queue)
    reporter.post(Here())
    loop = Loop(router, cast(Core, core), queue, complaints, drain_limit_s=0.5)
    nothing = cast(Any, None)
    no_porters = Porters((), lambda name: nothing)
    loop.actions = Actions(cast(Core, core), nothing, nothing, {}, nothing, complaints, no_porters)
    url = f"ipc://{short_dir}/s"
    loop.bind(endpoints.parse(url), [reporter.routing_id])
    thread = threading.Thread(target=loop.run)
    thread.start()
    made = Running(core, url, reporter, complaints, loop, thread, outer)
    yield made
    made.stop()
    for dealer in made.dealers:
        dealer.close()
    router.close()
    reporter.close()
    inner.destroy(linger=0)
    outer.destroy(linger=0)
