"""What doctor says of settings, of the server, of its room and of what systemd removes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from protocol import __version__
from server import config
from server.cli import setupcheck
from server.cli.findings import Finding, Level
from tests.repository import tree
from tests.wire.process import ServerProcess


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


def test_room_is_told_where_no_server_has_it(short_dir: Path, shm_dir: Path) -> None:
    environ = {"KVKEEP_ENDPOINT": f"ipc://{short_dir}/s"}
    told = found(environ)
    assert (told["server"].advice, "memory" in told) == ("kvkeep launch", True)
    with ServerProcess(short_dir, shm_dir / "a"):
        assert "memory" not in found(environ)  # it has what it needs


def test_where_engines_are_led_is_among_the_findings(short_dir: Path) -> None:
    environ = {"KVKEEP_ENDPOINT": f"ipc://{short_dir}/s", "LMCACHE_SERVER_URL": "tcp://far:1"}
    assert found(environ)["engines"].level is Level.ERROR


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
