"""B36: server and engine that do not see the same files, processes or devices.

What is passed as a descriptor works across mount and pid namespaces; what cannot work is refused
with its reason, or looks like an absent server, and the engine goes on uncached.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from protocol import side
from protocol.errors import ErrorCode, ReplyError
from protocol.layout import CudaIpcMemory, Region, ShardPool
from protocol.messages import Done, Ping, RegisterKvCache, RegisterKvCacheReply
from server.shell import credentials, door, guard
from tests.adapter.enginerig import EngineRig, write_model
from tests.adapter.hostlike import tokens
from tests.faults.bystander import Bystander, engaged, stats
from tests.faults.childengine import NUM_CHUNKS, ChildEngine, expected_pages
from tests.wire.asuser import AsUser, needs_root
from tests.wire.client import Engine, SideClient, make_keys, make_namespace
from tests.wire.process import ROOT, ServerProcess, wait_until

MODEL = "b36/model"
PROMPT = tokens(22, seed=36)
FULL = 20
SIZE = ("--l1-size", "64M", "--extent-size", "1M")


def shell(script: str, *unshare: str) -> tuple[str, ...]:
    """A command that becomes another one in namespaces of its own, after a script."""
    return ("unshare", *unshare, "/bin/sh", "-c", f'{script} exec "$@"', "sh")


OWN_SHM = shell("mount -t tmpfs -o size=256M own /dev/shm &&", "--mount")
OWN_PIDS = ("unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")


def can_unshare() -> bool:
    done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=False)
    return done.returncode == 0


needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or not can_unshare(), reason="namespaces need root here"
)


def save_expected(engine: Engine) -> None:
    """Saves what ``ChildEngine`` expects to read."""
    engine.pages[:] = expected_pages(engine)
    assert engine.save(make_keys(1, NUM_CHUNKS), list(range(NUM_CHUNKS))) == NUM_CHUNKS


@needs_namespaces
def test_an_engine_with_another_dev_shm_loads_what_others_saved(own_server: ServerProcess) -> None:
    with engaged(own_server, make_namespace(model=MODEL)) as engine:
        save_expected(engine)
        with ChildEngine(own_server, MODEL, "retrieve", prefix=OWN_SHM) as child:
            child.tell()
            child.expect("right")
    bystander = Bystander(own_server)
    bystander.check()
    bystander.close()


@needs_namespaces
def test_an_engine_with_another_dev_shm_saves_for_others(own_server: ServerProcess) -> None:
    with (
        ChildEngine(own_server, MODEL, "save", prefix=OWN_SHM),
        engaged(own_server, make_namespace(model=MODEL)) as engine,
    ):
        assert engine.lookup(make_keys(1, NUM_CHUNKS)).ready == NUM_CHUNKS


@needs_namespaces
def test_a_server_with_another_dev_shm_serves_a_whole_engine(
    short_dir: Path, tmp_path: Path
) -> None:
    arena = Path(f"/dev/shm/kvk-b36-{os.getpid()}")
    with ServerProcess(short_dir, arena, *SIZE, prefix=OWN_SHM) as server:
        assert not arena.exists()  # it lies in the server's own
        rigs = [EngineRig(server.url, write_model(tmp_path / "m")).register() for _ in range(2)]
        try:
            assert rigs[0].run_saved(PROMPT).offered == 0
            assert rigs[1].run(PROMPT).offered == FULL  # and the rig checks every byte
        finally:
            for rig in rigs:
                rig.close()


@needs_namespaces
@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
def test_an_engine_that_cannot_see_the_socket_goes_on_uncached(
    short_dir: Path, tmp_path: Path, shm_dir: Path, scheme: str
) -> None:
    """The server's folder is in its own /tmp (as with systemd's PrivateTmp), or its own network."""
    hidden = short_dir / "hidden"
    hidden.mkdir()
    script = f"mount -t tmpfs own {hidden} &&"
    flags, url = ("--mount",), f"ipc://{hidden}/s"
    if scheme == "tcp":
        script, flags, url = "ip link set lo up;", ("--net",), "tcp://127.0.0.1:45555"
    environ = {"XDG_RUNTIME_DIR": str(hidden)}
    prefix = shell(script, *flags)
    arguments = (*SIZE, "--log-level", "INFO")
    with ServerProcess(
        short_dir, shm_dir / "a", *arguments, url=url, environ=environ, prefix=prefix
    ) as server:
        assert not (hidden / "s.side").exists() or scheme == "tcp"
        begun_s = time.monotonic()
        rig = EngineRig(url, write_model(tmp_path / "m")).register()
        try:
            assert time.monotonic() - begun_s < 10
            for _ in range(2):
                assert rig.run(PROMPT).offered == 0
            assert max(rig.hook_s.values()) < 2
        finally:
            rig.close()
        assert server.process.poll() is None


@needs_namespaces
@pytest.mark.parametrize("apart", ["engine", "server", "both"])
def test_exits_are_seen_across_pid_namespaces(short_dir: Path, shm_dir: Path, apart: str) -> None:
    """A server in a namespace of its own cannot even name the engine's process."""
    prefix: Sequence[str] = OWN_PIDS if apart != "engine" else ()
    with ServerProcess(short_dir, shm_dir / "a", *SIZE, prefix=prefix) as server:
        with engaged(server, make_namespace(model=MODEL)) as engine:
            save_expected(engine)
            before = stats(engine)
            child_prefix = OWN_PIDS if apart != "server" else ()
            with ChildEngine(server, MODEL, "retrieve", prefix=child_prefix) as child:
                assert stats(engine)["processes"] == before["processes"] + 1
                assert stats(engine)["leases"] == before["leases"] + 1
                assert stats(engine)["pinned_slots"] > 0
                child.kill()
                begun_s = time.monotonic()
                assert wait_until(lambda: stats(engine)["processes"] == before["processes"], 10)
                assert wait_until(lambda: stats(engine)["leases"] == before["leases"], 10)
                assert time.monotonic() - begun_s < 4
            assert stats(engine)["pinned_slots"] == 0
            with ChildEngine(server, MODEL, "retrieve", prefix=child_prefix) as child:
                child.tell()
                child.expect("right")  # what was stored stays
        if apart != "engine":
            # ``unshare`` does not pass SIGTERM on; its end is the server's.
            os.kill(server.children()[0], signal.SIGTERM)


@needs_namespaces
@pytest.mark.parametrize("kind", ["hello", "idle"])
def test_one_process_that_cannot_be_named_keeps_nobody_out(
    short_dir: Path, shm_dir: Path, kind: str
) -> None:
    """As many connections as all may have together, from a container beside the server's."""
    count = door.MAX_PEERS + 64 if kind == "hello" else guard.MAX_CONNECTIONS + 64
    with ServerProcess(short_dir, shm_dir / "a", *SIZE, prefix=OWN_PIDS) as server:
        where = server.side_path if kind == "hello" else server.url
        with engaged(server, make_namespace(model=MODEL)) as engine:
            command = [sys.executable, "-m", "tests.wire.crowd", kind, where, str(count)]
            with subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            ) as crowd:
                assert crowd.stdout is not None
                found = crowd.stdout.readline().split()[1]
                if credentials.stand_in_of_peer(engine.side.socket) == 0:
                    pytest.skip("a kernel before 6.9 tells such processes from none other")
                if kind == "hello":
                    assert int(found) == door.MAX_PER_PROCESS
                with engaged(server, make_namespace(model="late")) as late:
                    save_expected(late)
                save_expected(engine)  # by the connection that it had before
                crowd.communicate()
        os.kill(server.children()[0], signal.SIGTERM)


@needs_namespaces
def test_a_user_that_the_server_cannot_name_is_refused_with_the_reason(
    short_dir: Path, shm_dir: Path
) -> None:
    """An engine whose user has no number in the server's user namespace (rootless containers)."""
    with ServerProcess(short_dir, shm_dir / "a", *SIZE) as server:
        short_dir.chmod(0o755)
        os.chmod(server.side_path, 0o666)  # noqa: S103

        def refusal() -> list[object]:
            client = SideClient(server.side_path)
            answer, _ = client.receive()
            assert isinstance(answer, side.SideError)
            return [answer.code, answer.message]

        code, message = AsUser(refusal, 61_234).result()
        assert code == ErrorCode.NOT_PERMITTED
        assert "61234" in str(message)
        assert wait_until(lambda: "side_refused" in server.log())


@needs_root
def test_a_whole_engine_that_is_not_let_in_goes_on_uncached_and_says_why(
    short_dir: Path, shm_dir: Path, tmp_path: Path
) -> None:
    with ServerProcess(short_dir, shm_dir / "a", *SIZE) as server:
        short_dir.chmod(0o755)
        os.chmod(server.side_path, 0o666)  # noqa: S103
        model = write_model(short_dir / "m")
        # What the other user's process would import is imported here: it may not read the files.
        warm = EngineRig(server.url, model).register()
        assert warm.run_saved(PROMPT).offered == 0
        warm.close()

        def run() -> list[object]:
            rig = EngineRig(server.url, model).register()
            offered = [rig.run(PROMPT).offered for _ in range(2)]
            link = rig.worker.link
            assert link is not None
            assert wait_until(lambda: link.refusal is not None, 10)
            said = str(link.refusal)
            rig.close()
            return [offered, said]

        offered, said = AsUser(run, 61_234).result()
        assert offered == [0, 0]
        assert "NOT_PERMITTED" in str(said)
        assert "user 61234" in str(said)


def test_device_memory_that_the_server_cannot_see_is_a_typed_error(
    server: ServerProcess, bystander: Bystander
) -> None:
    with Engine(server.url, server.side_path) as engine:
        size_bytes = engine.num_pages * engine.page_bytes
        region = Region(
            offset_bytes=0, size_bytes=engine.page_bytes, stride_bytes=engine.page_bytes
        )
        device = os.urandom(16)
        body = RegisterKvCache(
            namespace=engine.namespace,
            rank=0,
            memory=CudaIpcMemory(
                handle=os.urandom(64),
                device_uuid=device,
                base_offset_bytes=0,
                size_bytes=size_bytes,
            ),
            pools=(ShardPool(shard=0, num_pages=engine.num_pages, regions=(region,)),),
        )
        begun_s = time.monotonic()
        with pytest.raises(ReplyError) as caught:
            engine.wire.call(body, RegisterKvCacheReply)
        assert time.monotonic() - begun_s < 5
        assert caught.value.code == ErrorCode.POOL_INVALID
        assert caught.value.detail["device"] == device.hex()
        assert not caught.value.retryable
        engine.register()  # the same process may still bring memory that works
        engine.wire.call(Ping(), Done)
    bystander.check()


def test_pages_of_the_child_are_what_it_expects(own_server: ServerProcess) -> None:
    """Else a child that reads nothing at all would be "right"."""
    with engaged(own_server, make_namespace(model=MODEL)) as engine:
        engine.pages[:] = 1
        assert engine.save(make_keys(1, NUM_CHUNKS), list(range(NUM_CHUNKS))) == NUM_CHUNKS
        assert not np.array_equal(engine.pages, expected_pages(engine))
        with ChildEngine(own_server, MODEL, "retrieve") as child:
            child.tell()
            assert child.process.wait(20) != 0
