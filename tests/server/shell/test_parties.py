"""Files of parties: written before access, telling one process from every other."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from protocol.ids import Epoch, Fingerprint, InstanceId, Token
from server.shell import parties
from server.shell.parties import Parties, Party, Surroundings

EPOCH, INSTANCE, TOKEN = Epoch(b"e" * 16), InstanceId(b"i" * 16), Token(b"t" * 16)
ONE, TWO = Fingerprint(b"1" * 16), Fingerprint(b"2" * 16)
HERE = Surroundings.here()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / parties.FOLDER).mkdir()
    return tmp_path


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    made = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    yield made
    made.kill()
    made.wait()


def read(directory: Path) -> list[Party]:
    found = list(parties.read(str(directory)).values())
    assert all(isinstance(one, Party) for one in found)
    return [one for one in found if isinstance(one, Party)]


def test_an_engine_is_written_down_with_its_first_namespace(
    directory: Path, child: subprocess.Popen[bytes]
) -> None:
    kept = Parties(str(directory), EPOCH, HERE)
    pidfd = os.pidfd_open(child.pid)
    engine = kept.engine(child.pid, pidfd, INSTANCE, TOKEN)
    os.close(pidfd)
    assert read(directory) == []
    engine.give(ONE)
    [party] = read(directory)
    assert (party.role, party.pid) == ("engine", child.pid)
    assert party.start_ticks == parties.start_ticks(child.pid)
    assert (party.epoch, party.instance) == (EPOCH.hex(), INSTANCE.hex())
    assert party.token == parties.digest(TOKEN)
    assert TOKEN.hex() not in json.dumps(msgspec.to_builtins(party))
    assert party.fingerprints == frozenset({ONE})
    engine.give(ONE)
    engine.give(TWO)
    [party] = read(directory)
    assert party.fingerprints == frozenset({ONE, TWO})
    engine.end()
    assert read(directory) == []
    engine.end()
    engine.give(TWO)  # it registered again
    assert [one.fingerprints for one in read(directory)] == [frozenset({TWO})]


def test_without_a_file_there_is_no_access(directory: Path) -> None:
    kept = Parties(str(directory / "missing"), EPOCH, HERE)
    engine = kept.engine(0, os.pidfd_open(os.getpid()), INSTANCE, TOKEN)
    with pytest.raises(OSError, match="No such file"):
        engine.give(ONE)
    with pytest.raises(OSError, match="No such file"):
        kept.own("copier", os.getpid())


def test_the_servers_own_may_touch_everything(directory: Path) -> None:
    path = Parties(str(directory), EPOCH, HERE).own("copier", os.getpid())
    [party] = read(directory)
    assert (party.role, party.pid, party.fingerprints) == ("copier", os.getpid(), None)
    parties.drop(path)
    parties.drop(path)
    assert read(directory) == []


def test_a_living_party_is_watched_and_seen_to_exit(
    directory: Path, child: subprocess.Popen[bytes]
) -> None:
    Parties(str(directory), EPOCH, HERE).own("copier", child.pid)
    [party] = read(directory)
    os.kill(child.pid, signal.SIGSTOP)  # stopped is not gone
    pidfd = parties.watch(party, HERE)
    assert pidfd is not None
    assert pidfd > 0
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    assert not poller.poll(100)
    child.kill()
    assert poller.poll(5000)
    os.close(pidfd)
    assert parties.watch(party, HERE) == -1  # a zombie touches nothing
    child.wait()
    assert parties.watch(party, HERE) == -1


def test_another_process_of_the_same_number_is_another(child: subprocess.Popen[bytes]) -> None:
    ticks = parties.start_ticks(child.pid)
    party = Party(
        role="engine",
        pid=child.pid,
        start_ticks=ticks,
        boot=HERE.boot,
        space=HERE.space,
        epoch=EPOCH.hex(),
    )
    pidfd = parties.watch(party, HERE)
    assert pidfd is not None
    assert pidfd > 0
    os.close(pidfd)
    for other in (ticks - 1, ticks + 1):
        assert parties.watch(msgspec.structs.replace(party, start_ticks=other), HERE) == -1
    assert parties.watch(party, Surroundings("another boot", HERE.space)) == -1
    assert parties.watch(party, Surroundings(HERE.boot, "another container")) is None
    assert parties.watch(msgspec.structs.replace(party, pid=0, start_ticks=0), HERE) is None


def test_a_number_that_passed_on_to_a_thread_is_a_party_that_is_gone() -> None:
    """Threads have numbers of the same kind, and the kernel gives no pidfd of one."""
    is_over, numbers = threading.Event(), []

    def be() -> None:
        numbers.append(threading.get_native_id())
        is_over.wait(30)

    thread = threading.Thread(target=be)
    thread.start()
    try:
        while not numbers:
            time.sleep(0.01)
        party = Party(
            role="engine",
            pid=numbers[0],
            start_ticks=1,
            boot=HERE.boot,
            space=HERE.space,
            epoch=EPOCH.hex(),
        )
        assert parties.watch(party, HERE) == -1
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize(
    ("number", "answer"), [(errno.EINVAL, -1), (errno.ESRCH, -1), (errno.EPERM, None)]
)
def test_whatever_the_kernel_refuses_the_start_goes_on(
    child: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    answer: int | None,
) -> None:
    """Kernels before 6.9 say EINVAL of a thread; where pidfds are forbidden it is EPERM."""
    party = Parties("", EPOCH, HERE).party("engine", child.pid, parties.start_ticks(child.pid))

    def refuse(pid: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert parties.watch(party, HERE) == answer
    number = errno.EMFILE
    with pytest.raises(OSError, match="Too many open files"):
        parties.watch(party, HERE)


def test_a_process_that_ended_before_it_was_written_down_is_not_named(
    directory: Path, child: subprocess.Popen[bytes]
) -> None:
    """Its number could be another's by the time its start is read."""
    pidfd = os.pidfd_open(child.pid)
    child.kill()
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    assert poller.poll(5000)
    engine = Parties(str(directory), EPOCH, HERE).engine(child.pid, pidfd, INSTANCE, TOKEN)
    os.close(pidfd)
    assert (engine.pid, engine.start_ticks) == (0, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b'{"role":"king"}',
        b"x" * (parties.MAX_FILE_BYTES + 1),
        b'{"role":"copier","pid":-1,"start_ticks":0,"boot":"","space":"","epoch":""}',
        b'{"role":"copier","pid":1,"start_ticks":0,"boot":"","space":"","epoch":"","version":2}',
        b'{"role":"engine","pid":1,"start_ticks":0,"boot":"","space":"","epoch":"zz"}',
    ],
)
def test_a_file_that_is_none_is_told_from_no_file(directory: Path, data: bytes) -> None:
    """Somebody may have got access by it, so it must not be passed over."""
    (directory / "parties" / ("a" * 32)).write_bytes(data)
    [(path, found)] = parties.read(str(directory)).items()
    assert path.endswith("a" * 32)
    assert isinstance(found, str)
    assert found.startswith("no party: ")


def test_unfinished_files_go_and_others_are_left_alone(directory: Path) -> None:
    folder = directory / "parties"
    (folder / ("a" * 32 + ".new")).write_text("half")
    (folder / "note").write_text("somebody's")
    (folder / ("b" * 32)).mkdir()
    found = parties.read(str(directory))
    assert [type(one) for one in found.values()] == [str]
    assert sorted(path.name for path in folder.iterdir()) == ["b" * 32, "note"]
