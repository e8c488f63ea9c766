"""Mistakes of order, planted in the adapter: each makes wrong answers on a simulated device.

For each one the same story is played with the adapter as it is, which answers as an engine without
a cache does. Streams are held where the mistake shows, so nothing here is left to chance. The
copier's mistakes are planted in ``test_p05_no_wait_for_anothers_event``. Host contract rules 5, 6
and §5.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

from adapter.conformance.host.errors import RequestCancelledError
from adapter.conformance.host.simulated import simulating
from adapter.saveflow import SaveFlow, Settlement
from adapter.saver import Saver
from protocol.device.simulated.device import SimulatedDevice
from protocol.device.simulated.streams import SimulatedEvent, SimulatedStream
from tests.faults.ondevice import BLOCK, WAIT_S, Gate, Player, Stage, ask_anew, staged

pytestmark = pytest.mark.torch

HELD_S = 0.3
"""How long streams are held when nothing is to happen meanwhile."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with simulating(7) as environ, staged(environ, tmp_path_factory.mktemp("models")) as made:
        yield made


both = pytest.mark.parametrize("is_broken", [False, True], ids=["whole", "broken"])


# --- a missing wait -----------------------------------------------------------------------------


@both
def test_loads_before_the_forward_that_do_not_go_behind_the_main_stream(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, is_broken: bool
) -> None:
    """They are queued on a stream of the adapter's own, and nothing waits for that one."""
    astray: list[SimulatedStream] = []
    borrow = SimulatedDevice.borrow_stream

    def borrow_another(device: SimulatedDevice, stream: object) -> Any:
        if not astray:
            astray.append(device.create_stream("astray"))
        return borrow(device, astray[0])

    if is_broken:
        monkeypatch.setattr(SimulatedDevice, "borrow_stream", borrow_another)
    with stage.engine("E2", "v1", "sync") as player:
        ask = ask_anew()
        player.store(ask)
        if is_broken:
            player.store(ask, may_be_wrong=True)  # makes the stream, and may race on it already
        gate = Gate()

        def hold() -> None:
            gate.hold(astray[0] if is_broken else player.host.device.main)
            if not is_broken:
                gate.open_after(HELD_S)

        player.probe.once("queried", hold)
        try:
            assert player.loads_rightly(ask, 3 * BLOCK) is not is_broken
        finally:
            gate.open()


@both
@pytest.mark.parametrize(("epoch", "mode"), [("E4", "async"), ("E2", "layerwise")])
def test_loads_beside_a_forward_that_do_not_wait_for_the_main_stream(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, epoch: str, mode: str, is_broken: bool
) -> None:
    """What the host still does to the pages comes after the loads, then."""
    with stage.engine(epoch, "v1", mode) as player:
        ask = ask_anew()
        player.store(ask)
        gate = Gate()

        def hold() -> None:
            gate.hold(player.host.device.execution)
            gate.open_after(HELD_S)

        player.probe.once("queried", hold)
        if is_broken:
            monkeypatch.setattr(SimulatedDevice, "wait", lambda *_: None)
        assert player.loads_rightly(ask, 3 * BLOCK) is not is_broken


# --- published too early ------------------------------------------------------------------------


class DoneMark:
    """A point in a stream that says it is passed."""

    def query(self) -> bool:
        return True


@both
@pytest.mark.parametrize("layout", ["v1", "v1_private"], ids=["handle", "ring"])
def test_a_store_that_does_not_wait_for_its_forward(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, layout: str, is_broken: bool
) -> None:
    bound = Saver.bound
    if is_broken:
        monkeypatch.setattr(Saver, "bound", lambda self, told, mark: bound(self, told, DoneMark()))
    with stage.engine("E2", layout, "sync", overlap=True) as player:
        ask, gate = ask_anew(max_new_tokens=4), Gate()
        before = player.gauge("stores_answered")
        player.probe.once("bound", lambda: gate.hold(player.host.device.execution))
        handle = player.submit(ask)
        is_copied = player.awaits(
            lambda: player.gauge("stores_answered") > before, WAIT_S if is_broken else HELD_S
        )
        gate.open()
        assert is_copied is is_broken
        assert player.is_right(ask, handle.result(WAIT_S))
        player.subject.forget_reuse(WAIT_S)
        assert player.loads_rightly(ask, 3 * BLOCK) is not is_broken


# --- an event used again ------------------------------------------------------------------------


@both
def test_an_event_that_is_recorded_again_before_its_load_was_seen_done(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, is_broken: bool
) -> None:
    """One event for all: when another stream's point is reached, a load counts as done."""
    event, own = SimulatedEvent(), list[SimulatedStream]()
    create, on_a_stream = SimulatedDevice.create_stream, SimulatedDevice._on

    def create_noted(device: SimulatedDevice, name: str = "") -> SimulatedStream:
        made = create(device, name)
        if not name:
            own.append(made)
        return made

    monkeypatch.setattr(SimulatedDevice, "create_stream", create_noted)
    with stage.engine("E4", "v1_private", "async") as player:
        ask, gate = ask_anew(), Gate()
        player.store(ask)
        before = list(own)  # of the saver
        assert player.loads_rightly(ask, 3 * BLOCK)
        player.subject.forget_reuse(WAIT_S)
        (of_loads,) = (stream for stream in own if stream not in before)
        if is_broken:
            monkeypatch.setattr(
                SimulatedDevice,
                "record",
                lambda device, stream: on_a_stream(device, stream, "record").record_event(event),
            )
        gate.hold(of_loads)
        handle = player.submit(ask)
        try:
            # Meanwhile another request is saved, through the ring, with an event behind its copies.
            saved = player.gauge("stores_answered")
            other = player.submit(ask_anew())
            other.result(WAIT_S)
            assert player.awaits(lambda: player.gauge("stores_answered") > saved)
            came_early = player.awaits(handle.done, WAIT_S if is_broken else HELD_S)
            assert came_early is is_broken
        finally:
            gate.open()
        assert player.is_right(ask, handle.result(WAIT_S)) is not is_broken


# --- committed after its pages were recycled ----------------------------------------------------


def commit_all(self: SaveFlow, entry: Any, lane: Any, now_s: float) -> Settlement:
    return Settlement(entry.key, lane.group, lane.store, lane.copied)


@both
def test_a_copy_of_recycled_pages_that_is_committed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, is_broken: bool
) -> None:
    """Cancelled without a callback; another request computes on its pages before they are read."""
    monkeypatch.setattr("adapter.saveflow.PROOF_S", 1.0)
    if is_broken:
        monkeypatch.setattr(SaveFlow, "_settle", commit_all)
    with stage.engine("E2", "v1", "sync", num_blocks=6) as player:  # few, so that it gets those
        player.store(ask_anew())
        ask = ask_anew(max_new_tokens=20)
        copier = copier_of(player)
        os.kill(copier, signal.SIGSTOP)
        try:
            cancel_while_copied(player, ask)
            other = ask_anew(max_new_tokens=1)
            assert player.is_right(other, player.submit(other).result(WAIT_S))
        finally:
            os.kill(copier, signal.SIGCONT)
        player.subject.forget_reuse(WAIT_S)
        assert player.awaits(lambda: player.gauge("stores") == 0)
        answer = player.submit(ask).result(WAIT_S)
        assert player.is_right(ask, answer) is not is_broken
        assert (answer.num_loaded_tokens > 0) is is_broken


def copier_of(player: Player) -> int:
    """Process id of the copier of the only device in use."""
    values = player.subject.look()[0].server
    (pid,) = (value for name, value in values.items() if name.startswith("copier_pid_GPU"))
    return pid


def cancel_while_copied(player: Player, ask: Any) -> None:
    """Ends a request while its first blocks are in the copier's hands."""
    is_cancelled = threading.Event()
    player.probe.actions["launched"] = lambda: is_cancelled.wait(1.0)  # it lasts that long
    handle = player.submit(ask)
    assert player.awaits(lambda: player.gauge("copies_in_flight") > 0)
    player.subject.cancel(handle)
    is_cancelled.set()
    with pytest.raises(RequestCancelledError):
        handle.result(WAIT_S)
