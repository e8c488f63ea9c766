"""Who gets in, and what they can do with what they get: modes, groups, descriptors, tcp."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protocol import side
from protocol.errors import ErrorCode, KvkeepError, ReplyError
from protocol.extents import unpack_header
from protocol.messages import Done, Ping, Stats, StatsReply
from tests.wire.asuser import needs_root, run_as
from tests.wire.client import Engine, SideClient, WireClient, make_keys, make_namespace
from tests.wire.ports import free_port
from tests.wire.process import ROOT, ServerProcess, wait_until

UID, MEMBER, OUTSIDER = 60_001, 42_042, 42_043


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refusal(attempt: Callable[[], Any]) -> str:
    """What an attempt is answered with: the error's name, or "done"."""
    try:
        attempt()
    except OSError as error:
        return type(error).__name__
    return "done"


def test_by_default_sockets_are_0600_in_a_folder_of_0700(short_dir: Path, shm_dir: Path) -> None:
    url = f"ipc://{short_dir}/made/s"
    with ServerProcess(short_dir, shm_dir / "a", url=url) as server:
        made = short_dir / "made"
        assert mode(made) == 0o700
        for name in ("s", "s.side", "s.lock"):
            assert mode(made / name) == 0o600, name
        assert mode(shm_dir / "a") == 0o700
        with Engine(server.url, server.side_path) as engine:
            engine.register()
            for path in (shm_dir / "a").rglob("*"):
                assert not mode(path) & 0o077, path
            for extent in (shm_dir / "a").glob("*.extent"):
                assert mode(extent) == 0o400, extent


def test_the_runtime_folder_is_made_the_same_way(short_dir: Path, shm_dir: Path) -> None:
    short_dir.chmod(0o755)
    url = f"tcp://127.0.0.1:{free_port()}"
    environ = {"XDG_RUNTIME_DIR": str(short_dir)}
    with ServerProcess(short_dir, shm_dir / "a", url=url, environ=environ) as server:
        assert Path(server.side_path).parent == short_dir / "kvkeep"
        assert mode(short_dir / "kvkeep") == 0o700
        assert mode(Path(server.side_path)) == 0o600


def refused(short_dir: Path, shm_dir: Path, *arguments: str) -> str:
    """The one line with which a server refuses to start."""
    command = [sys.executable, "-m", "server", "launch", "--arena-dir", str(shm_dir / "a")]
    done = subprocess.run(
        [*command, "--l1-size", "64M", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "XDG_RUNTIME_DIR": str(short_dir)},
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    return done.stderr


@needs_root
def test_another_user_gets_nowhere_by_default(short_dir: Path, shm_dir: Path) -> None:
    short_dir.chmod(0o755)
    with ServerProcess(short_dir, shm_dir / "a") as server:
        (short_dir / "loose").symlink_to(server.side_path)

        def connect(path: str, kind: int) -> str:
            with socket.socket(socket.AF_UNIX, kind) as client:
                return refusal(lambda: client.connect(path))

        for path, kind in (
            (server.url.removeprefix("ipc://"), socket.SOCK_STREAM),
            (server.side_path, socket.SOCK_SEQPACKET),
        ):
            attempt = lambda path=path, kind=kind: connect(path, kind)  # noqa: E731
            assert run_as(attempt, UID, OUTSIDER, [MEMBER]) == "PermissionError"
        # Should an administrator open the socket by hand, the server still looks who it is.
        os.chmod(server.side_path, 0o666)  # noqa: S103

        def hello() -> Any:
            answer, _ = SideClient(server.side_path).receive()  # it is told before it says a word
            assert isinstance(answer, side.SideError)
            return [answer.code, answer.message]

        code, message = run_as(hello, UID, OUTSIDER, [MEMBER])
        assert code == ErrorCode.NOT_PERMITTED
        assert f"user {UID}" in message
        with Engine(server.url, server.side_path) as engine:
            engine.wire.call(Ping(), Done)


@needs_root
def test_with_group_its_members_save_and_load_and_others_are_kept_out(
    short_dir: Path, shm_dir: Path
) -> None:
    short_dir.chmod(0o755)
    arguments = ("--l1-size", "64M", "--group", str(MEMBER))
    url = f"ipc://{short_dir}/made/s"
    with ServerProcess(short_dir, shm_dir / "a", *arguments, url=url) as server:
        made = short_dir / "made"
        assert (mode(made), made.stat().st_gid) == (0o750, MEMBER)
        for name in ("s", "s.side"):
            assert (mode(made / name), (made / name).stat().st_gid) == (0o660, MEMBER), name
        assert mode(made / "s.lock") == 0o600
        assert mode(shm_dir / "a") == 0o700
        keys = make_keys(1, 4)

        def save() -> list[int]:
            with Engine(server.url, server.side_path) as engine:
                engine.register()
                engine.pages[:] = 7
                store, copied = engine.store(keys, [0, 1, 2, 3])
                return [copied.copied, engine.commit(store, copied.copied).published]

        def load() -> list[int]:
            with Engine(server.url, server.side_path) as engine:
                engine.register()
                found = engine.lookup(keys)
                return sorted(set(engine.read(found.lease, found.ready).reshape(-1).tolist()))

        assert run_as(save, UID, OUTSIDER, [MEMBER]) == [4, 4]
        assert run_as(load, UID + 1, MEMBER) == [7]

        def connect(path: str, kind: int) -> str:
            with socket.socket(socket.AF_UNIX, kind) as client:
                return refusal(lambda: client.connect(path))

        for path, kind in (
            (f"{made}/s", socket.SOCK_STREAM),
            (f"{made}/s.side", socket.SOCK_SEQPACKET),
        ):
            attempt = lambda path=path, kind=kind: connect(path, kind)  # noqa: E731
            assert run_as(attempt, UID, OUTSIDER) == "PermissionError"
        assert server.log() == ""


@needs_root
def test_a_members_exit_is_noticed_like_any_other(short_dir: Path, shm_dir: Path) -> None:
    short_dir.chmod(0o755)
    arguments = ("--l1-size", "64M", "--group", str(MEMBER))
    with ServerProcess(short_dir, shm_dir / "a", *arguments) as server:

        def register() -> str:
            engine = Engine(server.url, server.side_path)
            engine.register()
            return "registered"  # and the child ends without a word

        with Engine(server.url, server.side_path) as watcher:
            assert run_as(register, UID, MEMBER) == "registered"
            assert wait_until(lambda: stats(watcher)["processes"] == 1, 10)
            assert wait_until(lambda: stats(watcher)["sessions"] == 0, 10)


@needs_root
def test_a_descriptor_gives_another_user_its_bytes_to_read_and_nothing_else(
    short_dir: Path, shm_dir: Path
) -> None:
    """Mapped writable, made writable, opened again, by the file's name: all refused (P13)."""
    short_dir.chmod(0o755)
    arguments = ("--l1-size", "64M", "--group", str(MEMBER))
    with ServerProcess(short_dir, shm_dir / "a", *arguments) as server:

        def attack() -> dict[str, str]:
            engine = Engine(server.url, server.side_path)
            fd, size_bytes = given_extent(engine)
            before = os.pread(fd, size_bytes, 0)
            with_fd = f"/proc/self/fd/{fd}"
            tried = {
                "mmap": refusal(lambda: mmap.mmap(fd, size_bytes, mmap.MAP_SHARED)),
                "write": refusal(lambda: os.pwrite(fd, b"x", 0)),
                "reopen for writing": refusal(lambda: os.open(with_fd, os.O_RDWR)),
                "reopen for reading": refusal(lambda: os.open(with_fd, os.O_RDONLY)),
                "chmod": refusal(lambda: os.fchmod(fd, 0o666)),
                "truncate": refusal(lambda: os.ftruncate(fd, 0)),
                "by name": refusal(lambda: os.open(os.readlink(with_fd), os.O_RDONLY)),
                "list": refusal(lambda: os.listdir(shm_dir / "a")),
                "unlink": refusal(lambda: os.unlink(os.readlink(with_fd))),
                "mprotect": protect(fd, size_bytes),
                "private copy": private_write(fd, size_bytes),
            }
            assert os.pread(fd, size_bytes, 0) == before
            return tried

        tried = run_as(attack, UID, MEMBER)
        assert tried.pop("private copy") == "done"  # it writes into memory of its own
        assert set(tried.values()) <= {"PermissionError", "OSError"}, tried


def stats(engine: Engine) -> dict[str, int]:
    return engine.wire.call(Stats(), StatsReply).values


def given_extent(engine: Engine) -> tuple[int, int]:
    """Registers and returns the first extent's descriptor and length."""
    taken: list[tuple[int, int]] = []
    receive = engine.side.receive

    def watched() -> Any:
        packet, fds = receive()
        if isinstance(packet, side.ExtentGiven):
            taken.append((os.dup(fds[0]), packet.file_bytes))
        return packet, fds

    engine.side.receive = watched  # type: ignore[method-assign]
    engine.register()
    return taken[0]


def protect(fd: int, size_bytes: int) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    address = libc.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    failed = libc.mprotect(address, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE)
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.munmap(address, size_bytes)
    return "PermissionError" if failed else "done"


def private_write(fd: int, size_bytes: int) -> str:
    with mmap.mmap(fd, size_bytes, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as view:
        view[0] = view[0] ^ 0xFF
    return "done"


def test_the_own_users_mapping_is_read_only_too(server: ServerProcess) -> None:
    engine = Engine(server.url, server.side_path)
    fd, size_bytes = given_extent(engine)
    assert refusal(lambda: mmap.mmap(fd, size_bytes, mmap.MAP_SHARED)) == "PermissionError"
    assert refusal(lambda: os.pwrite(fd, b"x", 0)) == "OSError"
    assert protect(fd, size_bytes) == "PermissionError"
    os.close(fd)
    engine.close()


def test_descriptors_come_for_the_own_namespace_and_shard_only(server: ServerProcess) -> None:
    def given(engine: Engine) -> set[int]:
        reply = engine.register()
        for mapped in engine.extents.values():
            geometry, _ = unpack_header(mapped.view[:4096].tobytes())
            assert geometry.fingerprint == reply.fingerprint
        return set(engine.extents)

    pair = make_namespace(model="test/pair", num_ranks=2)
    with (
        Engine(server.url, server.side_path, make_namespace(model="test/other")) as other,
        Engine(server.url, server.side_path, pair, rank=0) as first,
        Engine(server.url, server.side_path, pair, rank=1, instance=first.instance) as second,
    ):
        sets = [given(engine) for engine in (other, first, second)]
        assert all(sets)
        assert not sets[0] & sets[1]
        assert not sets[0] & sets[2]
        assert not sets[1] & sets[2]
        assert {extent.geometry.shard for extent in first.extents.values()} == {0}
        assert {extent.geometry.shard for extent in second.extents.values()} == {1}


@pytest.mark.parametrize(
    "url",
    [
        "tcp://0.0.0.0:5555",
        "tcp://*:5555",
        "tcp://[::]:5555",
        "tcp://127.0.0.2:5555",
        "tcp://127.1:5555",
        "tcp://2130706433:5555",
        "tcp://0x7f000001:5555",
        "tcp://localhost.example:5555",
        "tcp://LOCALHOST:5555",
        "tcp://lo:5555",
        "tcp://[::ffff:127.0.0.1]:5555",
        "tcp://[::1%lo]:5555",
        "tcp://127.0.0.1:5555;0.0.0.0:5556",
        "tcp://user@127.0.0.1:5555",
        "udp://127.0.0.1:5555",
        "vmci://1:5555",
        "ipc://@abstract",
        "ipc://relative",
    ],
)
def test_no_endpoint_reaches_beyond_this_machine(short_dir: Path, shm_dir: Path, url: str) -> None:
    assert "INVALID_URL" in refused(short_dir, shm_dir, "--endpoint", url)
    assert list(shm_dir.iterdir()) == []


def test_localhost_is_the_loopback_address_whatever_the_resolver_says(
    short_dir: Path, shm_dir: Path
) -> None:
    port = free_port()
    environ = {"XDG_RUNTIME_DIR": str(short_dir)}
    url = f"tcp://localhost:{port}"
    server = ServerProcess(short_dir, shm_dir / "a", url=url, environ=environ)
    with server:
        assert f"endpoint tcp://127.0.0.1:{port}," in server.line
        bound = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
        listening = [line.split()[1] for line in bound.splitlines() if f":{port:04X} " in line]
        assert listening == [f"0100007F:{port:04X}"]


@needs_root
def test_over_tcp_another_user_learns_the_sockets_path_and_no_more(
    short_dir: Path, shm_dir: Path
) -> None:
    short_dir.chmod(0o755)
    url = f"tcp://127.0.0.1:{free_port()}"
    environ = {"XDG_RUNTIME_DIR": str(short_dir)}
    with ServerProcess(short_dir, shm_dir / "a", url=url, environ=environ) as server:

        def probe() -> list[str]:
            said = []
            for token in (b"", os.urandom(16)):
                client = WireClient(url, os.urandom(16))
                try:
                    client.hello(token)
                except ReplyError as error:
                    said.append(f"{error.code.name} {error.detail.get('side')}")
                try:
                    client.call(Stats(), StatsReply)
                except KvkeepError as error:
                    said.append(error.code.name)
                client.close()
            said.append(refusal(lambda: SideClient(server.side_path)))
            return said

        said = run_as(probe, UID, OUTSIDER)
        named = f"UNAUTHENTICATED {server.side_path}"
        assert said == [named, "UNAUTHENTICATED"] * 2 + ["PermissionError"]


@pytest.mark.parametrize(
    ("group", "words"), [("no-such-group", "no group"), ("65534", "cannot name")]
)
def test_a_group_that_cannot_be_served_is_one_clear_line(
    short_dir: Path, shm_dir: Path, group: str, words: str
) -> None:
    arguments = ("--endpoint", f"ipc://{short_dir}/s", "--group", group)
    assert words in refused(short_dir, shm_dir, *arguments)
    assert list(short_dir.iterdir()) == []


def test_a_folder_that_keeps_the_group_out_is_named_at_the_start(
    short_dir: Path, shm_dir: Path
) -> None:
    short_dir.chmod(0o700)
    arguments = ("--endpoint", f"ipc://{short_dir}/s", "--group", str(os.getegid()))
    assert f"cannot pass {short_dir}" in refused(short_dir, shm_dir, *arguments)
    assert list(short_dir.iterdir()) == []
