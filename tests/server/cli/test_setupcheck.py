"""What doctor says of settings, of the server, of its room and of what systemd removes."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from protocol import __version__
from server import config
from server.cli import setupcheck
from server.cli.findings import Finding, Level
from tests.repository import tree
from tests.wire.process import ServerProcess, wait_until


def found(environ: dict[str, str]) -> dict[str, Finding]:
    return {one.about: one for one in setupcheck.findings(environ)}


def test_versions_are_told_and_what_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    told = setupcheck.versions()
    assert told.level is Level.OK
    assert f"kvkeep {__version__}; pyzmq " in told.text
    text = (tree.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    needed = text.partition("\ndependencies = [")[2].partition("\n]")[0]
    assert sorted(re.findall(r'"([a-z-]+)>=', needed)) == sorted(setupcheck.PACKAGES)
    monkeypatch.setattr(setupcheck, "PACKAGES", ("click", "no-such-package"))
    told = setupcheck.versions()
    assert told.level is Level.ERROR
    assert told.text.endswith("; missing: no-such-package")


def test_settings_are_told_with_their_sources_and_a_wrong_one_is_an_error(short_dir: Path) -> None:
    environ = {"KVKEEP_ENDPOINT": f"ipc://{short_dir}/s"}
    told = found(environ)
    assert told["settings"].text == "set: endpoint (from KVKEEP_ENDPOINT)"
    assert told["memory"].level is Level.OK
    assert "launch would take" in told["memory"].text
    for wrong in ({"KVKEEP_L1_SIZE": "x"}, {"KVKEEP_L1SIZE": "1G"}):
        assert found({**environ, **wrong})["settings"].level is Level.ERROR
    told = found({**environ, "KVKEEP_L1_SIZE": "16T"})
    assert told["memory"].level is Level.ERROR
    assert "l1-size=16 TiB does not fit" in told["memory"].text


def test_a_server_is_found_or_not(short_dir: Path, shm_dir: Path) -> None:
    environ = {"KVKEEP_ENDPOINT": f"ipc://{short_dir}/s"}
    told = found(environ)["server"]
    assert (told.level, told.advice) == (Level.NOTE, "kvkeep launch")
    with ServerProcess(short_dir, shm_dir / "a") as server:
        settings = config.read({"endpoint": server.url}, {})
        # It is ready before its copier is; until then doctor says so.
        assert wait_until(lambda: setupcheck.server(settings)[0].level is Level.OK, 20.0, 0.1)
        told = found(environ)["server"]
        assert told.text == f"{__version__} at {server.url}, pid {server.pid}"
        assert "memory" not in found(environ)  # it has what it needs
        server.kill()
        told = found(environ)["server"]
        assert (told.level, "did not end by itself" in told.text) == (Level.NOTE, True)


def test_what_answers_and_is_no_server_is_an_error(short_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{short_dir}/s.side")
        listener.listen(1)
        listener.settimeout(5)
        settings = config.read({"endpoint": f"ipc://{short_dir}/s"}, {})
        setupcheck_limit = setupcheck.ASK_LIMIT_S
        setupcheck.ASK_LIMIT_S = 0.2
        try:
            [told] = setupcheck.server(settings)
        finally:
            setupcheck.ASK_LIMIT_S = setupcheck_limit
    assert told.level is Level.ERROR
    assert "kill -CONT" in told.advice  # as of a server that was stopped


def test_what_systemd_removes_is_told_to_ordinary_users(tmp_path: Path) -> None:
    off, on = tmp_path / "off.conf", tmp_path / "on.conf"
    off.write_text("[Login]\nRemoveIPC=no\n")
    on.write_text("[Login]\nKillUserProcesses=no\nRemoveIPC=yes\n")
    broken = tmp_path / "broken"
    broken.write_text("RemoveIPC=no\n")
    folder = tmp_path / "logind.conf.d"
    folder.mkdir()
    assert setupcheck.remove_ipc([]) is True
    assert setupcheck.remove_ipc([str(off)]) is False
    assert setupcheck.remove_ipc([str(off), str(on)]) is True  # the last word counts
    assert setupcheck.remove_ipc([str(broken), str(folder), "/no/such"]) is True
    (folder / "10-x.conf").write_text(off.read_text())
    assert setupcheck.remove_ipc([str(on), str(folder)]) is False


@pytest.mark.skipif(not Path("/run/systemd/seats").is_dir(), reason="no logind on this machine")
def test_only_an_arena_in_shared_memory_is_removed(tmp_path: Path) -> None:
    own = config.read({"endpoint": "ipc:///a/b"}, {})
    user = setupcheck.removal(own, 1000, [])
    assert user is not None
    assert (user.level, "enable-linger" in user.advice) == (Level.WARNING, True)
    system = setupcheck.removal(own, 999, [])
    assert system is not None
    assert system.level is Level.OK
    elsewhere = config.read({"endpoint": "ipc:///a/b", "arena-dir": "/mnt/x"}, {})
    assert setupcheck.removal(elsewhere, 1000, []) is None
