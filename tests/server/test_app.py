"""The whole server as a process: start, hello, end, kill -9, a second one, garbage at the door."""

from __future__ import annotations

import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import zmq

from protocol.errors import ErrorCode, ReplyError
from protocol.messages import Done, Ping, Stats, StatsReply
from tests.wire.client import Engine, WireClient
from tests.wire.ports import free_port
from tests.wire.process import (
    ROOT,
    ServerProcess,
    cpu_s,
    is_alive,
    rss_bytes,
    wait_until,
)


def launch(*arguments: str, environ: dict[str, str] | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "server", "launch", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, **(environ or {})},
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_one_line_says_where_it_is_and_what_it_has(server: ServerProcess) -> None:
    assert server.line.count("\n") == 1
    assert server.url in server.line
    assert "64 MiB" in server.line
    assert "tiers L1" in server.line
    assert f"pid {server.pid}" in server.line
    assert server.log() == ""


def test_it_starts_quickly_idles_small_and_still(server: ServerProcess) -> None:
    assert server.started_s < 10  # about 0.35 s on a quiet machine; the benchmark measures it
    assert wait_until(lambda: len(server.children()) == 1)
    [copier] = server.children()
    assert wait_until(lambda: rss_bytes(copier) > 15 << 20, 30)
    assert rss_bytes(server.pid) <= 80 << 20
    assert rss_bytes(copier) <= 40 << 20

    def is_still() -> bool:
        before_s = cpu_s(server.pid) + cpu_s(copier)
        time.sleep(1.0)  # the measured stretch, not a wait for something
        return cpu_s(server.pid) + cpu_s(copier) - before_s <= 0.01

    assert wait_until(is_still, 30)  # once the copier has started too


def test_hello_and_ping_over_ipc(server: ServerProcess) -> None:
    with Engine(server.url, server.side_path) as engine:
        assert engine.hello.epoch == engine.welcome.epoch
        assert engine.welcome.endpoint == server.url
        times_ms = []
        for _ in range(200):
            begun = time.perf_counter()
            engine.wire.call(Ping(), Done)
            times_ms.append((time.perf_counter() - begun) * 1e3)
        assert statistics.median(times_ms) < 20
        stats = engine.wire.call(Stats(), StatsReply).values
        assert stats["processes"] == 1


def test_tcp_without_a_token_names_the_side_socket(short_dir: Path, shm_dir: Path) -> None:
    url = f"tcp://127.0.0.1:{free_port()}"
    environ = {"XDG_RUNTIME_DIR": str(short_dir)}
    with ServerProcess(short_dir, shm_dir / "a", url=url, environ=environ) as server:
        instance = os.urandom(16)
        stranger = WireClient(url, instance)
        with pytest.raises(ReplyError) as caught:
            stranger.hello(b"")
        stranger.close()
        assert caught.value.code == ErrorCode.UNAUTHENTICATED
        assert caught.value.detail["side"] == server.side_path
        with Engine(url, str(caught.value.detail["side"]), instance=instance) as engine:
            engine.wire.call(Ping(), Done)
    assert list((short_dir / "kvkeep").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_leaves_nothing(
    short_dir: Path, shm_dir: Path, number: signal.Signals
) -> None:
    with ServerProcess(short_dir, shm_dir / "a") as server:
        assert wait_until(lambda: len(server.children()) == 1)
        [copier] = server.children()
        begun = time.monotonic()
        server.process.send_signal(number)
        assert server.process.wait(10) == 0
        assert time.monotonic() - begun < 5
        assert server.log() == ""
        assert not is_alive(copier)
    assert [path.name for path in short_dir.iterdir()] == ["server.log"]
    assert list(shm_dir.iterdir()) == []


def test_a_stopped_copier_does_not_hold_up_the_end(short_dir: Path, shm_dir: Path) -> None:
    with ServerProcess(short_dir, shm_dir / "a") as server:
        assert wait_until(lambda: len(server.children()) == 1)
        [copier] = server.children()
        assert wait_until(lambda: rss_bytes(copier) > 20 << 20)
        os.kill(copier, signal.SIGSTOP)
        begun = time.monotonic()
        assert server.terminate() == 0
        assert time.monotonic() - begun < 8
        assert not is_alive(copier)
        assert server.log() == ""
    assert list(shm_dir.iterdir()) == []


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGHUP])
def test_further_signals_do_not_disturb_its_end(
    short_dir: Path, shm_dir: Path, first: signal.Signals
) -> None:
    with ServerProcess(short_dir, shm_dir / "a") as server:
        assert wait_until(lambda: len(server.children()) == 1)
        [copier] = server.children()
        assert wait_until(lambda: rss_bytes(copier) > 20 << 20)
        os.kill(copier, signal.SIGSTOP)  # so that its end takes some seconds
        server.process.send_signal(first)
        while server.process.poll() is None:
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.02)
        assert server.process.returncode == 0
        assert server.log() == ""
    assert [path.name for path in short_dir.iterdir()] == ["server.log"]
    assert list(shm_dir.iterdir()) == []


def full_pipe() -> tuple[int, int]:
    read, write = os.pipe()
    os.set_blocking(write, False)
    for size in (1 << 16, 1):
        try:
            while True:
                os.write(write, b"x" * size)
        except BlockingIOError:
            pass
    os.set_blocking(write, True)
    return read, write


def check_it_serves(url: str, side_path: str) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(url)
        dealer.send_multipart([b"", b"garbage"])  # noted in the log
        assert dealer.poll(20_000)  # its side socket listens before it answers
    with Engine(url, side_path) as engine:
        engine.wire.call(Ping(), Done)


@pytest.mark.parametrize("closed", [False, True])
def test_it_serves_and_ends_whoever_reads_its_output(
    short_dir: Path, shm_dir: Path, closed: bool
) -> None:
    read, write = full_pipe()
    command = [sys.executable, "-m", "server", "launch", "--endpoint", f"ipc://{short_dir}/s"]
    command += ["--arena-dir", str(shm_dir / "a"), "--l1-size", "64M", "--log-level", "DEBUG"]
    if closed:
        command = ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]
    process = subprocess.Popen(command, cwd=ROOT, stdout=write, stderr=write)
    try:
        check_it_serves(f"ipc://{short_dir}/s", f"{short_dir}/s.side")
        if closed:
            links = [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in range(3)]
            assert links == [os.devnull] * 3
        process.terminate()
        assert process.wait(15) == 0
    finally:
        process.kill()
        process.wait()
        os.close(read)
        os.close(write)
    assert list(short_dir.iterdir()) == []
    assert list(shm_dir.iterdir()) == []


def test_a_file_at_the_endpoint_is_left_alone(short_dir: Path, shm_dir: Path) -> None:
    (short_dir / "s").write_text("precious")
    arguments = ("--arena-dir", str(shm_dir / "a"), "--l1-size", "64M")
    code, out, err = launch("--endpoint", f"ipc://{short_dir}/s", *arguments)
    assert (code, out) == (2, "")
    assert "no socket" in err
    assert err.count("\n") == 1
    assert (short_dir / "s").read_text() == "precious"
    assert [path.name for path in short_dir.iterdir()] == ["s"]
    assert list(shm_dir.iterdir()) == []


def test_b38_a_second_server_is_refused_and_the_first_unaffected(server: ServerProcess) -> None:
    with Engine(server.url, server.side_path) as engine:
        code, out, err = launch("--endpoint", server.url, "--l1-size", "64M")
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert "ENDPOINT_IN_USE" in err
        assert f"pid {server.pid}" in err
        engine.wire.call(Ping(), Done)
        assert Path(server.side_path).exists()
        other = f"ipc://{Path(server.side_path).parent}/other"
        code, out, err = launch("--endpoint", other, "--arena-dir", str(server.arena_dir))
        assert (code, out) == (2, "")
        assert "ENDPOINT_IN_USE" in err
        assert str(server.arena_dir) in err
        engine.wire.call(Ping(), Done)
        with Engine(server.url, server.side_path) as second:
            second.wire.call(Ping(), Done)


def test_b38_after_kill_9_the_same_endpoint_serves_again(short_dir: Path, shm_dir: Path) -> None:
    with ServerProcess(short_dir, shm_dir / "a") as first:
        assert wait_until(lambda: len(first.children()) == 1)
        [copier] = first.children()
        with Engine(first.url, first.side_path) as engine:
            old = engine.hello
            first.kill()
            assert wait_until(lambda: not is_alive(copier))
            assert Path(first.side_path).exists()  # stale, and reclaimed below
            with ServerProcess(short_dir, shm_dir / "a") as second:
                assert second.url == first.url
                with Engine(second.url, second.side_path) as again:
                    assert again.hello.epoch != old.epoch
                    assert again.hello.arena == old.arena
                    again.wire.call(Ping(), Done)


def test_a_tcp_port_of_somebody_else_is_refused(short_dir: Path, shm_dir: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        url = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        code, out, err = launch(
            *("--endpoint", url, "--arena-dir", str(shm_dir / "a"), "--l1-size", "64M"),
            environ={"XDG_RUNTIME_DIR": str(short_dir)},
        )
    assert (code, out) == (2, "")
    assert "ENDPOINT_IN_USE" in err
    assert err.count("\n") == 1
    assert list(shm_dir.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--endpoint", ""), "INVALID_URL"),
        (("--l1-size", "12T"), "leaves"),
        (("--l1-size", "1K"), "1 MiB to 16 TiB"),
        (("--l1-size", "64M", "--extent-size", "128M"), "extent-size"),
    ],
)
def test_b37_b46_a_wrong_setting_is_one_clear_line(
    short_dir: Path, arguments: tuple[str, ...], words: str
) -> None:
    endpoint = () if "--endpoint" in arguments else ("--endpoint", f"ipc://{short_dir}/s")
    code, out, err = launch(*endpoint, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert list(short_dir.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "arena", "words"),
    [
        (
            "plain/s",
            "a",
            "the folder {0}/plain cannot be made: {0}/plain is there and is no folder",
        ),
        ("x/y/s", "a", "the folder {0}/x, in which it would lie, is missing"),
        ("link/s", "a", "endpoint ipc://{0}/link/s"),
        ("s", "x/y", "arena-dir: {0}/x/y cannot be used: the folder {0}/x, in which it would lie"),
        ("s", "link", "arena-dir: {0}/link is a symbolic link"),
        ("s", "plain", "arena-dir: {0}/plain is no folder"),
    ],
)
def test_what_is_in_the_way_of_a_folder_is_named(
    short_dir: Path, url: str, arena: str, words: str
) -> None:
    (short_dir / "plain").write_text("")
    (short_dir / "link").symlink_to(short_dir / "nowhere")
    code, out, err = launch(
        *("--endpoint", f"ipc://{short_dir}/{url}", "--arena-dir", f"{short_dir}/{arena}"),
        *("--l1-size", "64M"),
    )
    assert (code, out) == (2, "")
    assert words.format(short_dir) in err
    assert err.count("\n") == 1
    assert {path.name for path in short_dir.iterdir()} == {"plain", "link"}


def test_b37_the_control_groups_limit_counts(short_dir: Path, shm_dir: Path) -> None:
    group = short_dir / "group"
    group.mkdir()
    (group / "memory.max").write_text(f"{1 << 30}\n")
    (group / "memory.current").write_text("0\n")
    arguments = ("--endpoint", f"ipc://{short_dir}/s", "--cgroup-root", str(group))
    code, out, err = launch(*arguments, "--l1-size", "8G", "--arena-dir", str(shm_dir / "a"))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "control group" in err
    assert "1 GiB" in err


def test_b37_a_group_without_any_room_is_one_clear_line(short_dir: Path, shm_dir: Path) -> None:
    (short_dir / "memory.max").write_text(f"{1 << 20}\n")
    (short_dir / "memory.current").write_text(f"{1 << 20}\n")
    code, out, err = launch(
        *("--endpoint", f"ipc://{short_dir}/s", "--arena-dir", str(shm_dir / "a")),
        *("--cgroup-root", str(short_dir)),
    )
    assert (code, out) == (2, "")
    assert "leaves 0 bytes" in err
    assert err.count("\n") == 1
    assert list(shm_dir.iterdir()) == []
