"""Copiers of devices come and go: real processes on simulated devices, and what is left of them."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.device.simulated import settings
from protocol.ids import Epoch
from server.core.effects import CopierId
from server.shell import keeper, parties
from server.shell.copiers import CopierLink
from server.shell.devicecopiers import DeviceCopiers
from server.shell.parties import Parties, Party, Surroundings
from server.shell.reports import (
    CopierEnded,
    CopierGone,
    CopierLost,
    CopierReady,
    CopierRefused,
    CopierStuck,
    Reporter,
)
from server.shell.supervisor import device_name
from tests.faults.undying import Undying
from tests.server.shell.reporting import Reports
from tests.wire.process import is_alive, wait_until

ONE, TWO = CopierId(1), CopierId(2)
UUID = settings.uuid_of(0)


@pytest.fixture
def reports(shm_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reports]:
    monkeypatch.setenv(settings.FOLDER, str(shm_dir))
    with Reports() as made:
        yield made


class Setup:
    def __init__(self, reports: Reports, kept: Parties | None = None) -> None:
        self.reports = reports
        self.links: dict[CopierId, CopierLink] = {}
        self.made: list[str] = []
        self.devices = DeviceCopiers(self.links, self.one_more, kept)

    def one_more(self, name: str) -> Reporter:
        self.made.append(name)
        return self.reports.one_more(name)

    def up(self, copier: CopierId, device: bytes = UUID) -> CopierReady:
        self.devices.start(copier, device)
        ready = self.reports.wait_for(CopierReady)
        assert ready.copier == copier
        told = (ready.device_bytes, ready.numa_node)
        self.links[copier].attach(ready.channel, ready.pid, 0, *told)
        return ready

    def down(self, copier: CopierId) -> None:
        assert self.devices.retire(copier)
        assert self.reports.wait_for(CopierLost).copier == copier
        self.ended(copier)

    def ended(self, copier: CopierId) -> None:
        assert self.reports.wait_for(CopierEnded).copier == copier
        self.devices.ended(copier)

    def close(self) -> None:
        assert self.devices.close(10)
        for link in self.links.values():
            link.detach()
        self.devices.close_reporters()


@pytest.fixture
def setup(reports: Reports) -> Iterator[Setup]:
    made = Setup(reports)
    yield made
    made.close()


def test_each_sees_its_own_device_only_and_says_what_it_takes(setup: Setup) -> None:
    ready = setup.up(ONE)
    environ = Path(f"/proc/{ready.pid}/environ").read_bytes().split(b"\0")
    assert b"CUDA_VISIBLE_DEVICES=" + device_name(UUID).encode() in environ
    arguments = Path(f"/proc/{ready.pid}/cmdline").read_bytes().split(b"\0")
    assert UUID.hex().encode() in arguments
    other = setup.up(TWO, settings.uuid_of(1))
    assert other.pid != ready.pid
    figures = setup.devices.figures()
    assert figures[f"copier_pid_{device_name(UUID)}"] == ready.pid
    names = [setup.devices.name(CopierId(number)) for number in (0, 1, 9)]
    assert names == ["host", device_name(UUID), "9"]
    assert figures[f"copier_pid_{device_name(settings.uuid_of(1))}"] == other.pid
    assert figures[f"copier_device_bytes_{device_name(UUID)}"] >= settings.Machine().context_bytes
    node = f"copier_numa_node_{device_name(UUID)}"
    assert node not in figures  # this machine is told of no second node
    setup.links[ONE].numa_node = 1
    assert setup.devices.figures()[node] == 1
    assert device_name(bytes(range(16))) == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_however_many_come_and_go_nothing_grows(setup: Setup) -> None:
    threads = threading.active_count()
    for number in range(1, 4):
        ready = setup.up(CopierId(number))
        setup.down(CopierId(number))
        assert not is_alive(ready.pid)
        assert not setup.links
        assert not setup.devices.figures()
    assert setup.made == ["device-0"]
    assert wait_until(lambda: threading.active_count() == threads)
    assert not setup.devices.retire(ONE)
    setup.devices.ended(ONE)


def test_one_that_dies_is_started_again_and_the_other_notices_nothing(setup: Setup) -> None:
    first, other = setup.up(ONE), setup.up(TWO, settings.uuid_of(1))
    os.kill(first.pid, signal.SIGKILL)
    assert setup.reports.wait_for(CopierLost).copier == ONE
    setup.links[ONE].detach()
    assert setup.devices.figures()[f"copier_pid_{device_name(UUID)}"] == 0
    again = setup.reports.wait_for(CopierReady)
    assert again.copier == ONE
    setup.links[ONE].attach(again.channel, again.pid, 0)
    assert is_alive(other.pid)


def test_a_device_that_is_not_there_is_refused_in_one_line_and_tried_again(setup: Setup) -> None:
    absent = settings.uuid_of(9)
    setup.devices.start(ONE, absent)
    for _ in range(2):
        refused = setup.reports.wait_for(CopierRefused)
        assert refused.copier == ONE
        assert refused.reason.startswith(f"{device_name(absent)} has no copier: ")
        assert "\n" not in refused.reason
    assert setup.devices.retire(ONE)
    setup.ended(ONE)


def test_a_copier_that_cannot_even_begin_is_refused(reports: Reports) -> None:
    links: dict[CopierId, CopierLink] = {}
    devices = DeviceCopiers(links, reports.one_more, None, module="server.copier.absent")
    devices.start(ONE, UUID)
    assert "ended before it was ready" in reports.wait_for(CopierRefused).reason
    assert devices.close(10)
    devices.close_reporters()


def test_one_that_is_retired_and_does_not_die_is_waited_for_by_its_own_thread(
    reports: Reports, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (short_dir / parties.FOLDER).mkdir()
    kept = Parties(str(short_dir), Epoch(b"e" * 16), Surroundings.here())

    def written() -> list[int]:
        found = parties.read(str(short_dir)).values()
        return [one.pid for one in found if isinstance(one, Party)]

    setup = Setup(reports, kept)
    ready = setup.up(ONE)
    assert written() == [ready.pid]
    monkeypatch.setattr(keeper, "STUCK_WORD_S", 1.0)
    with Undying(ready.pid) as undying:
        assert setup.devices.retire(ONE)
        stuck = reports.wait_for(CopierStuck)
        assert stuck.pid == ready.pid
        assert written() == [ready.pid]  # the next server must know that it may still write
        assert not wait_until(lambda: len(reports.queue) > 0, 0.5)
        # Whoever comes meanwhile would wait in vain for the next one.
        assert f"do not end (pid {ready.pid})" in reports.wait_for(CopierRefused).reason
        undying.let_go()
        assert reports.wait_for(CopierGone).life == stuck.life
    setup.ended(ONE)
    assert written() == []
    setup.close()


def test_the_end_of_the_server_does_not_wait_for_one_that_does_not_die(reports: Reports) -> None:
    setup = Setup(reports)
    ready = setup.up(ONE)
    with Undying(ready.pid) as undying:
        assert setup.devices.retire(ONE)
        reports.wait_for(CopierStuck)
        assert not setup.devices.close(10)  # something is left that may still touch memory
        undying.let_go()
        assert wait_until(lambda: not is_alive(ready.pid))
    for left in setup.devices._devices[ONE].supervisor._stuck:
        left.child.wait(10)
        os.close(left.pidfd)
    setup.links[ONE].detach()
    setup.devices.close_reporters()
    assert not reports.queue


def test_a_channel_that_ends_is_an_end_of_the_copier(setup: Setup) -> None:
    ready = setup.up(ONE)
    ready.channel.shutdown(socket.SHUT_RDWR)  # as the loop does with one that is wedged
    assert setup.reports.wait_for(CopierLost).copier == ONE
    setup.links[ONE].detach()
    assert wait_until(lambda: not is_alive(ready.pid))
    again = setup.reports.wait_for(CopierReady)
    setup.links[ONE].attach(again.channel, again.pid, 0)
