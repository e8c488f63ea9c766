"""What doctor says of the server: there, not there, elsewhere, frozen, in part; of its ports."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from protocol import __version__
from protocol.quotas import QuotaChange, TenantKind
from server import config
from server.cli import servercheck
from server.cli.findings import Finding, Level
from server.config import ServerConfig
from server.remarks import REMOVED
from tests.server.cli.told import COPIER, SERVER, STATS, TIER, reply
from tests.server.heirs import CHUNKS, connect
from tests.server.test_app_quotas import SALT, rows, save_as
from tests.wire.client import Engine
from tests.wire.ports import held_port
from tests.wire.process import ServerProcess, wait_until


def at(url: str, **values: str) -> ServerConfig:
    return config.read({"endpoint": url, **values}, {})


def look(settings: ServerConfig, source: str = "") -> list[Finding]:
    return servercheck.findings(settings, source, {})


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def ended(child: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        child.kill()


def test_a_server_is_found_or_not(short_dir: Path, shm_dir: Path) -> None:
    settings = at(f"ipc://{short_dir}/s")
    [told] = look(settings)
    assert (told.level, told.text) == (Level.NOTE, f"none at {settings.endpoint.url}")
    assert told.advice == "kvkeep launch"
    with ServerProcess(short_dir, shm_dir / "a") as server:
        # It is ready before its copier is; until then doctor says so.
        assert wait_until(lambda: look(settings)[0].level is Level.OK, 20.0, 0.1)
        [told] = look(settings)
        assert told.text == f"{__version__} at {server.url}, pid {server.pid}"
        [copier] = server.children()
        with frozen(copier):
            assert wait_until(lambda: look(settings)[0].level is Level.WARNING, 5.0, 0.05)
            [told] = look(settings)
        assert told.text == f"the copier of host memory (pid {copier}) is stopped"
        assert told.advice.startswith(f"kill -CONT {copier}; ")
        server.kill()
        [told] = look(settings)
        assert (told.level, "did not end by itself" in told.text) == (Level.NOTE, True)


def test_what_is_worth_knowing_of_one_that_is_well_is_a_note(
    short_dir: Path, shm_dir: Path
) -> None:
    settings = at(f"ipc://{short_dir}/s")
    with ServerProcess(short_dir, shm_dir / "a", "--l1-size", "8M") as server:
        shutil.rmtree(shm_dir / "a")
        with Engine(server.url, server.side_path) as engine:
            engine.register()
            assert wait_until(lambda: look(settings)[0].level is Level.OK, 20.0, 0.1)
            well, note = look(settings)
        assert (well.level, note.level) == (Level.OK, Level.NOTE)
        assert note.text == REMOVED


def test_a_tenant_at_its_limit_is_a_note(short_dir: Path, shm_dir: Path) -> None:
    with ServerProcess(short_dir, shm_dir / "a", "--l1-size", "8M") as server, connect(server) as e:
        num_bytes = CHUNKS * e.page_bytes
        limit = QuotaChange(kind=TenantKind.SALT, tenant=SALT, floor_bytes=0, limit_bytes=num_bytes)
        rows(e, limit)
        assert save_as(e, SALT, 1) == CHUNKS
        (note,) = [one for one in look(at(server.url)) if one.level is Level.NOTE]
        assert note.text.startswith(f"salt/{SALT.hex()[:12]} is at its limit of ")


def test_one_that_is_stopped_is_named_with_what_has_it_go_on(
    short_dir: Path, shm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servercheck, "ASK_LIMIT_S", 0.3)
    with ServerProcess(short_dir, shm_dir / "a") as server, frozen(server.pid):
        [told] = look(at(server.url))
        assert told.level is Level.ERROR
        assert told.text == f"{server.url}: pid {server.pid} is stopped"
        assert told.advice == f"kill -CONT {server.pid}"


def test_one_that_nobody_new_can_come_to_is_an_error(short_dir: Path, shm_dir: Path) -> None:
    with ServerProcess(short_dir, shm_dir / "a") as server:
        for path in (server.url.removeprefix("ipc://"), server.side_path):
            os.rename(path, f"{path}.aside")
            [told] = look(at(server.url))
            os.rename(f"{path}.aside", path)
            assert told.level is Level.ERROR
            assert f"somebody removed its socket {path}: " in told.text
            assert "Restart the server: what is cached stays" in told.text


@pytest.mark.parametrize(
    ("module", "follows"),
    [("server.copier.host", "it is replaced"), ("server.web", "no page is answered")],
)
def test_what_follows_where_a_child_is_stopped(module: str, follows: str) -> None:
    # What serves pages has no work that anybody waits for: it is not replaced.
    command = [sys.executable, "-c", "import time; time.sleep(60)", "-m", module]
    with subprocess.Popen(command) as child, ended(child):
        os.kill(child.pid, signal.SIGSTOP)
        assert wait_until(lambda: len(servercheck.stopped(os.getpid())) == 1)
        [told] = servercheck.stopped(os.getpid())
    assert told.advice.startswith(f"kill -CONT {child.pid}; {follows}")


def test_what_listens_and_does_not_answer_is_an_error(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servercheck, "ASK_LIMIT_S", 0.2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{short_dir}/s.side")
        listener.listen(2)
        [told] = look(at(f"ipc://{short_dir}/s"))
    assert told.level is Level.ERROR
    assert f"pid {os.getpid()}: " in told.text
    assert "it hangs, is stopped" in told.advice


def test_a_folder_of_sockets_that_is_not_here_is_said(short_dir: Path) -> None:
    [told] = look(at(f"ipc://{short_dir}/gone/s"))
    assert told.text.endswith(f": there is no folder {short_dir}/gone")
    assert "in a container, mount the folder" in told.advice


def test_a_server_elsewhere_than_the_setting_says_is_named(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"XDG_RUNTIME_DIR": str(short_dir)}
    (short_dir / "kvkeep").mkdir()
    default = config.read({}, environ)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(default.endpoint.side_path(default.runtime_dir))
        listener.listen(2)
        wrong = config.read({"endpoint": f"ipc://{short_dir}/other"}, environ)
        none, told = servercheck.findings(wrong, "KVKEEP_ENDPOINT", environ)
        assert len(servercheck.findings(wrong, "", environ)) == 1, "nobody named it"
    assert none.level is Level.NOTE
    assert told.text == (
        f"one is at {default.endpoint.url}, but KVKEEP_ENDPOINT names {wrong.endpoint.url}"
    )
    assert told.advice.startswith("unset KVKEEP_ENDPOINT, ")
    assert len(servercheck.findings(wrong, "KVKEEP_ENDPOINT", environ)) == 1, "it is gone"


def test_ports_that_somebody_else_has_are_named(short_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, held_port() as free:
        port = other.getsockname()[1]
        settings = at(f"tcp://127.0.0.1:{port}", http=str(port))
        endpoint, pages = servercheck.ports(settings)
        assert (endpoint.level, pages.level) == (Level.ERROR, Level.WARNING)
        assert endpoint.text == f"tcp://127.0.0.1:{port} cannot be had: Address already in use"
        assert pages.text == (
            f"no pages could be served at 127.0.0.1:{port}: Address already in use"
        )
        assert f"'sport = :{port}'" in endpoint.advice
        assert servercheck.ports(at(f"ipc://{short_dir}/s", http=str(free))) == []


def test_pages_that_were_asked_for_and_are_not_there() -> None:
    asked = {**STATS, "web_pid": 0}
    assert servercheck.pages(reply(), STATS) == []
    served = msgspec.structs.replace(SERVER, http="http://127.0.0.1:9177/")
    assert servercheck.pages(reply(server=served), asked) == []
    [told] = servercheck.pages(reply(), asked)
    assert told.level is Level.NOTE
    [told] = servercheck.pages(reply(), {**asked, "complaint_web_refused": 1})
    assert (told.level, "port is taken" in told.text) == (Level.WARNING, True)
    [told] = servercheck.pages(reply(), {**asked, "complaint_web_refused": 1}, "9177")
    assert told.text.startswith("no pages are served at 9177: their port is taken")


@pytest.mark.parametrize("typed", [["--http", "127.0.0.1:9177"], ["--http=127.0.0.1:9177"], []])
def test_where_pages_were_asked_for_is_read_off_the_servers_command_line(typed: list[str]) -> None:
    command = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()", *typed]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        # The kernel shows the command line a moment after Popen returns.
        assert wait_until(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes() != b"")
        found = servercheck._typed_http(process.pid)
        process.communicate()
    assert found == ("127.0.0.1:9177" if typed else "")


@pytest.mark.parametrize(
    ("changes", "text", "advice"),
    [
        (
            {"tiers": (msgspec.structs.replace(TIER, state="down", why="no folder /x"),)},
            "tier disk is down: no folder /x",
            "mend what it names",
        ),
        (
            {"copiers": (msgspec.structs.replace(COPIER, silent_s=3.0),)},
            "the copier of host has not answered for 3 s",
            "Nothing is saved",
        ),
        (
            {"server": msgspec.structs.replace(SERVER, version=__version__, draining=True)},
            "the server is ending",
            "kvkeep launch",
        ),
        ({"copiers": (msgspec.structs.replace(COPIER, stuck=1),)}, "1 copiers of host", "runbook"),
    ],
)
def test_what_it_says_of_itself_comes_with_what_to_do(
    changes: dict[str, object], text: str, advice: str
) -> None:
    server = msgspec.structs.replace(SERVER, version=__version__)
    [told] = servercheck.told(at("ipc:///x/s"), reply(**{"server": server, **changes}), STATS)
    assert told.level is Level.WARNING
    assert told.text.startswith(text)
    assert advice in told.advice


def test_another_version_is_told() -> None:
    [told] = servercheck.told(at("ipc:///x/s"), reply(), STATS)
    assert told.text == f"0.1 at ipc:///x/s, pid 7; this is {__version__}"


def test_where_engines_are_led_is_told_when_nobody_is_there(short_dir: Path) -> None:
    settings = at(f"ipc://{short_dir}/s")
    assert servercheck.engines(settings, {}) == []

    def told(**environ: str) -> Finding:
        [found] = servercheck.engines(settings, environ)
        return found

    here, none = settings.endpoint.url, f"ipc://{short_dir}/none"
    assert told(LMCACHE_SERVER_URL=here).level is Level.OK
    assert told(LMCACHE_SERVER_URL="inproc://").level is Level.NOTE
    wrong = told(LMCACHE_SERVER_URL="http://cache.example:65432")
    assert (wrong.level, "valid are" in wrong.text) == (Level.ERROR, True)
    assert wrong.advice.startswith(f"LMCACHE_SERVER_URL={here}: ")
    lost = told(LMCACHE_SERVER_URL=none)
    assert lost.level is Level.ERROR
    assert lost.text == f"LMCACHE_SERVER_URL leads them to {none}, where nobody listens"
    assert told(TRTLLM_KVKEEP_SERVER_URL=here, LMCACHE_SERVER_URL=none).level is Level.OK
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{short_dir}/none.side")
        listener.listen(2)
        assert told(LMCACHE_SERVER_URL=none).level is Level.OK
