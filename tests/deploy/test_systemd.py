"""The units under systemd's own tools, and against what the server needs.

Nothing is started here: a real systemd does so in ``test_machine``.
"""

from __future__ import annotations

import configparser
import os
import pwd
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from server import app, config
from server.config import KEYS, variable
from server.shell import sdnotify
from tests.repository import tree

UNITS = tree.ROOT / "deploy" / "systemd"
SYSTEM = Path("/usr/lib/systemd/system")
SERVICE = "kvkeep.service"
MOUNT = "run-kvkeep_arena.mount"
EXPOSURE = 2.0


def no_tool(name: str) -> bool:
    """Whether it is missing; in CI it may not be."""
    missing = shutil.which(name) is None
    assert not (missing and os.environ.get("CI") == "true"), f"{name} is missing"
    return missing


needs_systemd = pytest.mark.skipif(no_tool("systemd-analyze"), reason="no systemd-analyze here")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "SYSTEMD_PAGER": "", "LC_ALL": "C"},
    )


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The root of a machine with the units installed as docs/deployment.md says."""
    system = tmp_path / "usr/lib/systemd/system"
    system.mkdir(parents=True)
    for unit in SYSTEM.glob("*.target"):
        shutil.copy(unit, system)
    etc = tmp_path / "etc/systemd/system"
    etc.mkdir(parents=True)
    for name in (SERVICE, MOUNT):
        shutil.copy(UNITS / name, etc)
    program = tmp_path / "opt/kvkeep/bin/kvkeep"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return tmp_path


def with_drop_ins(machine: Path, *names: str) -> Path:
    folder = machine / f"etc/systemd/system/{SERVICE}.d"
    folder.mkdir()
    for name in names:
        shutil.copy(UNITS / "drop-ins" / name, folder)
    return machine


def verify(machine: Path) -> str:
    done = run("systemd-analyze", "verify", "--man=no", f"--root={machine}", SERVICE, MOUNT)
    return f"{done.stdout}{done.stderr}" + (f"exit code {done.returncode}" * bool(done.returncode))


def exposure(machine: Path) -> float:
    done = run("systemd-analyze", "security", "--offline=true", f"--root={machine}", SERVICE)
    found = re.search(r"exposure level for kvkeep\.service: ([0-9.]+)", done.stdout)
    assert found is not None, done.stderr
    return float(found[1])


@needs_systemd
@pytest.mark.parametrize(
    "drop_ins", [(), ("gpu.conf",), ("stores.conf",), ("gpu.conf", "stores.conf")]
)
def test_the_units_are_correct_and_confined(machine: Path, drop_ins: tuple[str, ...]) -> None:
    if drop_ins:
        with_drop_ins(machine, *drop_ins)
    assert verify(machine) == ""
    assert exposure(machine) <= EXPOSURE


@needs_systemd
def test_a_slip_in_a_unit_would_be_seen(machine: Path) -> None:
    unit = machine / "etc/systemd/system" / SERVICE
    unit.write_text(unit.read_text().replace("RestrictRealtime=", "RestrictRealtimes="))
    assert "RestrictRealtimes" in verify(machine)
    unit.write_text("[Service]\nExecStart=/opt/kvkeep/bin/kvkeep launch\n")
    assert exposure(machine) > 9


@needs_systemd
@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user: needs root")
def test_the_user_and_its_folders_are_made(tmp_path: Path) -> None:
    for tool in ("systemd-sysusers", "systemd-tmpfiles"):
        if no_tool(tool):
            pytest.skip(f"no {tool} here")
    (tmp_path / "etc").mkdir()
    done = run("systemd-sysusers", f"--root={tmp_path}", UNITS / "kvkeep.sysusers.conf")
    assert done.returncode == 0, done.stderr
    [line] = [
        one
        for one in (tmp_path / "etc/passwd").read_text().splitlines()
        if one.startswith("kvkeep:")
    ]
    uid = int(line.split(":")[2])
    assert 0 < uid < 1000  # logind removes nothing of such a user (RemoveIPC)
    conf = UNITS / "kvkeep.tmpfiles.conf"
    done = run("systemd-tmpfiles", "--create", f"--root={tmp_path}", conf)
    assert done.returncode == 0, done.stderr
    made = (tmp_path / "run/kvkeep").stat()
    assert (made.st_uid, made.st_mode & 0o7777) == (uid, 0o750)


def read(name: str) -> configparser.RawConfigParser:
    found = configparser.RawConfigParser(strict=False, comment_prefixes=("#",))
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string((UNITS / name).read_text())
    return found


def test_the_mount_is_named_after_its_place() -> None:
    where = read(MOUNT)["Mount"]["Where"]
    assert where.strip("/").replace("/", "-") + ".mount" == MOUNT
    assert read(SERVICE)["Unit"]["RequiresMountsFor"] == where
    assert read(SERVICE)["Service"]["ReadWritePaths"] == where
    options = read(MOUNT)["Mount"]["Options"].split(",")
    assert {"uid=kvkeep", "gid=kvkeep", "mode=0700", "noexec"} <= set(options)
    # Nothing ties the mount's life to the service's: the cache is there after a restart.
    assert {"BindsTo", "PartOf", "StopWhenUnneeded"}.isdisjoint(read(MOUNT)["Unit"])


def test_times_fit_to_what_the_server_does() -> None:
    service = read(SERVICE)["Service"]
    assert int(service["WatchdogSec"]) * 1_000_000 >= sdnotify.MIN_WATCHDOG_US
    assert int(service["TimeoutStartSec"]) >= sdnotify.STAGE_S
    assert int(service["TimeoutStopSec"]) >= sdnotify.END_S
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")


def test_a_stop_while_it_starts_is_no_failure() -> None:
    with pytest.raises(SystemExit) as ended:
        app._stop_early(signal.SIGTERM, None)
    assert read(SERVICE)["Service"]["SuccessExitStatus"] == str(ended.value.code)


@pytest.mark.parametrize("name", [SERVICE, "kvkeep.env"])
def test_settings_named_are_settings(name: str) -> None:
    named = re.findall(r"^#?(?:Environment=)?(KVKEEP_\w+)=", (UNITS / name).read_text(), re.M)
    assert len(named) >= 3
    assert set(named) <= {variable(key) for key in KEYS}


def test_the_settings_are_valid_ones() -> None:
    text = (UNITS / SERVICE).read_text() + (UNITS / "kvkeep.env").read_text()
    found = dict(re.findall(r"^#?(?:Environment=)?(KVKEEP_\w+)=(.*)$", text, re.M))
    settings = config.read({}, found)
    assert settings.endpoint.url == "ipc:///run/kvkeep/kvkeep.sock"
    assert [tier.kind for tier in settings.tiers] == ["disk"]


def test_what_the_server_needs_is_left_open() -> None:
    """It reads /proc of other users' processes and tells users apart, or refuses engines."""
    service = read(SERVICE)["Service"]
    assert (service["ProtectProc"], service["ProcSubset"]) == ("default", "all")
    assert service["PrivateUsers"] == "no"
    assert int(service["LimitNOFILE"]) >= 4096
    assert "AF_UNIX" in service["RestrictAddressFamilies"].split()


def test_the_watcher_of_skips_is_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(AssertionError, match="no-such-tool"):
        no_tool("no-such-tool")
    assert pwd.getpwuid(0).pw_uid == 0
