"""Who may still touch what a predecessor left: the kernel says it, and the files of parties."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from protocol.extents import ExtentGeometry
from protocol.ids import Epoch, ExtentId, InstanceId, Token
from server.core.adoption import Adoption
from server.shell import adoption, extents, namespacefiles, parties
from server.shell.adoption import Use
from server.shell.parties import Parties, Party, Surroundings
from tests.server.shell.geometry import make_geometry
from tests.server.shell.test_adoption import ARENA, HERE, look, make


@pytest.fixture
def directory(shm_dir: Path) -> Path:
    for name in (namespacefiles.FOLDER, parties.FOLDER):
        (shm_dir / name).mkdir()
    return shm_dir


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    made = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    yield made
    made.kill()
    made.wait()


def hold(directory: Path, extent: int, flags: int) -> subprocess.Popen[bytes]:
    """A process that has an extent mapped and its descriptor closed, as engines and copiers do."""
    writable = flags == os.O_RDWR
    script = (
        "import ctypes, os, sys, time\n"
        f"fd = os.open({extents.extent_path(str(directory), extent)!r}, {flags})\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.mmap.restype = ctypes.c_void_p\n"
        f"libc.mmap(None, ctypes.c_size_t(4096), {3 if writable else 1}, 1, fd, ctypes.c_long(0))\n"
        "os.close(fd)\n"
        "print('mapped', flush=True)\n"
        "time.sleep(120)\n"
    )
    made = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert made.stdout is not None
    assert made.stdout.readline() == b"mapped\n"
    return made


@pytest.mark.parametrize(("flags", "use"), [(os.O_RDONLY, Use.READ), (os.O_RDWR, Use.WRITTEN)])
def test_the_kernel_says_what_others_have_an_extent_for(
    directory: Path, flags: int, use: Use
) -> None:
    make(directory, 1)
    holder = hold(directory, 1, flags)
    try:
        file, found = adoption.reopen(str(directory), ExtentId(1), ARENA)
        file.close()
        assert found is use
    finally:
        holder.kill()
        holder.communicate()
    file, found = adoption.reopen(str(directory), ExtentId(1), ARENA)
    assert found is Use.NONE
    file.close()
    os.chmod(file.path, 0o600)  # as a kill in the middle of it would leave the file
    adoption.reopen(str(directory), ExtentId(1), ARENA)[0].close()


def engine_party(directory: Path, pid: int, geometry: ExtentGeometry, here: Surroundings) -> None:
    kept = Parties(str(directory), Epoch(b"o" * 16), here)
    pidfd = os.pidfd_open(pid)
    engine = kept.engine(pid, pidfd, InstanceId(b"i" * 16), Token(b"t" * 16))
    os.close(pidfd)
    engine.give(geometry.fingerprint)


@pytest.mark.parametrize("here", [HERE, Surroundings(HERE.boot, "another container")])
def test_a_living_party_is_awaited_only_for_what_somebody_has_open(
    directory: Path, here: Surroundings
) -> None:
    make(directory, 1)
    holder = hold(directory, 1, os.O_RDONLY)
    engine_party(directory, holder.pid, make_geometry(1), here)
    found = look(directory)
    [one] = found.heritage().parties
    assert one.fingerprints == frozenset({make_geometry(1).fingerprint})
    assert len(list((directory / "parties").iterdir())) == 1
    assert (found.awaited[0].pidfd is None) == (here is not HERE)
    text = adoption.summary(found, Adoption(kept=[ExtentId(1)], num_sealed=1))
    assert "1 extents are not written to until former processes are gone: engine 1" in text
    found.close()
    holder.kill()
    holder.communicate()
    found = look(directory)  # by then nobody has it, whoever that was and wherever
    assert found.heritage().parties == []
    assert list((directory / "parties").iterdir()) == []
    found.close()


def test_parties_of_nothing_that_is_open_do_not_count(
    directory: Path, child: subprocess.Popen[bytes]
) -> None:
    """They live, and yet nothing here can be theirs: they unmapped it, or it is gone."""
    make(directory, 1)
    engine_party(directory, child.pid, make_geometry(1), HERE)
    Parties(str(directory), Epoch(b"o" * 16), HERE).own("copier", child.pid)
    found = look(directory)
    assert found.heritage().parties == []
    assert list((directory / "parties").iterdir()) == []
    found.close()


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR])
def test_a_copier_of_another_container_counts_while_somebody_may_write(
    directory: Path, flags: int
) -> None:
    """It cannot be seen from here; but a copier has its files open for writing, and engines not."""
    make(directory, 1)
    holder = hold(directory, 1, flags)
    try:
        elsewhere = Surroundings(HERE.boot, "another container")
        Parties(str(directory), Epoch(b"o" * 16), elsewhere).own("copier", holder.pid)
        found = look(directory)
        assert len(found.heritage().parties) == (1 if flags == os.O_RDWR else 0)
        found.close()
    finally:
        holder.kill()
        holder.communicate()


def test_who_opens_a_file_at_that_moment_does_no_harm(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells the holder of a lease by a signal that would end it."""
    path, real = make(directory, 1), fcntl.fcntl
    broken: list[int] = []

    def lease_and_open(fd: int, command: int, argument: int) -> int:
        result = real(fd, command, argument)
        if argument == fcntl.F_WRLCK:
            with pytest.raises(BlockingIOError):  # breaks the lease, and does not wait for it
                os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            broken.append(fd)
        return int(result)

    signals: list[int] = []
    old = signal.signal(signal.SIGIO, lambda number, frame: signals.append(number))
    monkeypatch.setattr(fcntl, "fcntl", lease_and_open)
    try:
        found = look(directory)
        assert list(found.files) == [1]
        found.close()
        assert len(broken) == 1
        assert signals == []
    finally:
        signal.signal(signal.SIGIO, old)


def test_dead_parties_go_and_what_cannot_be_read_is_awaited(directory: Path) -> None:
    make(directory, 1)
    holder = hold(directory, 1, os.O_RDONLY)  # somebody has it, so it matters who
    try:
        party = Party(
            role="engine",
            pid=holder.pid,
            start_ticks=parties.start_ticks(holder.pid) - 1,  # somebody else's number now
            boot=HERE.boot,
            space=HERE.space,
            epoch="0" * 32,
            namespaces=(make_geometry(1).fingerprint.hex(),),
        )
        replace = msgspec.structs.replace
        written = {
            "1": party,
            "2": replace(party, boot="another"),
            "3": replace(party, role="server", pid=0, namespaces=None),  # its lock was free
            "4": replace(party, namespaces=("9" * 32,), start_ticks=party.start_ticks + 1),
        }
        for name, one in written.items():
            (directory / "parties" / (name * 32)).write_bytes(msgspec.json.encode(one))
        (directory / "parties" / ("5" * 32)).write_bytes(b"{ torn")
        found = look(directory)
        [(_, names)] = found.touched.items()
        assert names == {make_geometry(1).fingerprint}
        assert [path.name for path in (directory / "parties").iterdir()] == ["5" * 32]
        assert "no party" in next(iter(found.dropped))
        found.close()
    finally:
        holder.kill()
        holder.communicate()
