"""The side socket and parties: who is given extents is written down first, who is gone is told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from protocol import side
from protocol.errors import ErrorCode
from protocol.ids import ArenaId, Epoch, Fingerprint
from server.core.adoption import PartyId
from server.core.effects import ProcessId
from server.shell import parties
from server.shell.awaited import Awaited, AwaitedParty
from server.shell.descriptors import Descriptor
from server.shell.parties import Parties, Party, Surroundings
from server.shell.peers import Forget, SideSocket, Tell
from server.shell.reports import PartyGone, ProcessExited, ProcessJoined, ProcessQuiet
from tests.server.shell.reporting import Reports
from tests.wire.client import SideClient
from tests.wire.process import ROOT, wait_until

NEW, OLD, ARENA = Epoch(b"n" * 16), Epoch(b"o" * 16), ArenaId(b"a" * 16)
ONE, TWO = Fingerprint(b"1" * 16), Fingerprint(b"2" * 16)
GIVEN = side.pack(side.ExtentTaken(session=1, extent=1))  # any packet will do
HERE = Surroundings.here()
CHILD = (
    "import sys\n"
    "from tests.wire.client import SideClient\n"
    "client = SideClient(sys.argv[1])\n"
    "client.hello(b'i' * 16)\n"
    "print('joined', flush=True)\n"
    "sys.stdin.read()\n"
)


class Stage:
    """A side socket over an arena folder, with processes of a former server awaited."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / parties.FOLDER
        self.folder.mkdir()
        self.path = str(folder / "s")
        self.reports = Reports()
        self.thread: SideSocket | None = None
        self._directory = str(folder)

    def former(self, number: int, pid: int, token: bytes = b"", watched: bool = True) -> Path:
        """Writes the file of an engine of the former server."""
        party = Party(
            role="engine",
            pid=pid if watched else 0,
            start_ticks=parties.start_ticks(pid) if watched else 0,
            boot=HERE.boot,
            space=HERE.space,
            epoch=OLD.hex(),
            token=parties.digest(token) if token else "",  # type: ignore[arg-type]
            namespaces=(ONE.hex(),),
        )
        path = self.folder / f"{number:032x}"
        path.write_bytes(msgspec.json.encode(party))
        return path

    def start(self) -> SideSocket:
        entries = []
        for number, (path, party) in enumerate(parties.read(self._directory).items(), start=1):
            assert isinstance(party, Party)
            pidfd = parties.watch(party, HERE)
            entries.append(AwaitedParty(PartyId(number), path, party, pidfd))
        self.thread = SideSocket(
            self.path,
            "ipc:///e",
            NEW,
            ARENA,
            self.reports.reporter,
            parties=Parties(self._directory, NEW, HERE),
            awaited=Awaited(entries),
        )
        self.thread.start()
        return self.thread

    def written(self) -> list[Party]:
        found = parties.read(self._directory).values()
        return [one for one in found if isinstance(one, Party) and one.epoch == NEW.hex()]

    def join(self) -> tuple[SideClient, ProcessId]:
        client = SideClient(self.path)
        assert isinstance(client.hello(b"i" * 16), side.Welcome)
        return client, self.reports.wait_for(ProcessJoined).process


@pytest.fixture
def stage(shm_dir: Path) -> Iterator[Stage]:
    made = Stage(shm_dir)
    with made.reports:
        yield made
        if made.thread is not None:
            assert made.thread.stop(5)


def test_a_process_is_written_down_before_it_is_given_an_extent(stage: Stage) -> None:
    thread = stage.start()
    client, process = stage.join()
    assert stage.written() == []
    thread.tell(Tell(process, GIVEN))
    client.receive()
    assert stage.written() == []  # nothing of the arena went with it
    for name, known in ((ONE, {ONE}), (ONE, {ONE}), (TWO, {ONE, TWO})):
        descriptor = Descriptor(os.memfd_create("extent"))
        thread.tell(Tell(process, GIVEN, descriptor, name))
        _, [fd] = client.receive()
        os.close(fd)
        assert [party.fingerprints for party in stage.written()] == [frozenset(known)]
        assert wait_until(lambda one=descriptor: not one.is_open())
    [party] = stage.written()
    assert (party.role, party.pid) == ("engine", os.getpid())
    assert party.instance == (b"i" * 16).hex()
    assert client.welcome is not None
    assert party.token == parties.digest(client.welcome.token)  # type: ignore[arg-type]
    client.close()
    stage.reports.wait_for(ProcessQuiet)
    assert len(stage.written()) == 1  # it may still read
    thread.tell(Forget(process))
    assert wait_until(lambda: stage.written() == [])


def test_an_exit_removes_the_file_and_the_end_of_the_server_does_not(stage: Stage) -> None:
    thread = stage.start()
    command = [sys.executable, "-c", CHILD, stage.path]
    children = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    processes = []
    try:
        for _ in children:
            joined = stage.reports.wait_for(ProcessJoined)
            processes.append(joined.process)
            thread.tell(Tell(joined.process, GIVEN, fingerprint=ONE))
        assert wait_until(lambda: len(stage.written()) == 2)
        children[0].kill()
        stage.reports.wait_for(ProcessQuiet)
        assert stage.reports.wait_for(ProcessExited).process in processes
        assert [party.pid for party in stage.written()] == [children[1].pid]
        assert thread.stop(5)
        assert [party.pid for party in stage.written()] == [children[1].pid]
    finally:
        for child in children:
            child.kill()
            child.communicate()


def test_who_cannot_be_written_down_is_given_nothing(stage: Stage) -> None:
    thread = stage.start()
    client, process = stage.join()
    shutil.rmtree(stage.folder)
    descriptor = Descriptor(os.memfd_create("extent"))
    thread.tell(Tell(process, GIVEN, descriptor, ONE))
    answer, fds = client.receive()
    assert fds == []
    assert isinstance(answer, side.SideError)
    assert answer.code == ErrorCode.NO_ROOM
    assert wait_until(lambda: not descriptor.is_open())
    assert stage.reports.wait_for(ProcessQuiet).process == process
    client.close()


def test_the_exit_of_a_former_party_is_told_within_two_seconds(stage: Stage) -> None:
    children = [
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"]) for _ in range(2)
    ]
    try:
        paths = [stage.former(n, child.pid) for n, child in enumerate(children, start=1)]
        stage.start()
        children[1].kill()
        report = stage.reports.wait_for(PartyGone, 2.0)
        assert report.party == 2
        assert [path.exists() for path in paths] == [True, False]
        assert stage.thread is not None
        assert stage.thread.stop(5)
        assert paths[0].exists()  # for the next server
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_drained_is_for_the_own_process_and_incarnation(stage: Stage) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    try:
        mine, others = stage.former(1, os.getpid()), stage.former(2, child.pid)
        unseen = stage.former(3, 0, b"t" * 16, watched=False)
        thread = stage.start()
        client, process = stage.join()
        client.send(side.pack(side.Drained(epoch=NEW)))
        client.send(side.pack(side.Drained(epoch=OLD, token=b"x" * 16)))
        assert stage.reports.wait_for(PartyGone).party == 1
        client.send(side.pack(side.Drained(epoch=OLD)))  # once more is nothing
        client.send(side.pack(side.Drained(epoch=OLD, token=b"t" * 16)))
        assert stage.reports.wait_for(PartyGone).party == 3
        assert [path.exists() for path in (mine, others, unseen)] == [False, True, False]
        thread.tell(Tell(process, GIVEN))
        assert client.receive()[0] == side.ExtentTaken(session=1, extent=1)  # still connected
        assert thread._complaints.counts() == {}
        client.close()
    finally:
        child.kill()
        child.wait()


def test_drained_is_refused_to_strangers_and_with_descriptors(stage: Stage) -> None:
    thread = stage.start()
    for hello, fds, code in (
        (False, 0, ErrorCode.UNAUTHENTICATED),
        (True, 1, ErrorCode.NO_DESCRIPTORS),
    ):
        client = SideClient(stage.path)
        if hello:
            client.hello(b"i" * 16)
        fd = os.memfd_create("x")
        client.send(side.pack(side.Drained(epoch=OLD)), [fd] * fds)
        os.close(fd)
        answer, _ = client.receive()
        assert isinstance(answer, side.SideError)
        assert answer.code == code
        client.close()
    assert thread.is_alive()
