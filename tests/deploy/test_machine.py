"""The service under a real systemd, on a machine in namespaces; and that machine itself.

Every test leaves the service running as it found it. What cannot be tried here: GPUs, and limits
above what this machine admits.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.deploy import machine as machines
from tests.deploy.machine import ARENA, ENGINE, SERVICE, Machine
from tests.deploy.probe import FOREIGN
from tests.repository import tree

SOCKET = "/run/kvkeep/kvkeep.sock"
PYTHON = "/opt/kvkeep/bin/python"
COUNT = 8
SETTINGS = """
KVKEEP_L1_SIZE=64M
KVKEEP_L2=disk:/var/lib/kvkeep/tier?size=64M
KVKEEP_HTTP=127.0.0.1:9464
"""
slow = pytest.mark.slow
pytestmark = pytest.mark.timeout(1100)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """kvkeep, built from a copy, since that writes beside its sources."""
    if why_not := machines.lacks():
        pytest.skip(f"no systemd can be started here: {why_not}")
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(tree.ROOT / name, source)
    for name in ("adapter", "protocol", "server"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(tree.ROOT / name, source / name, ignore=ignore)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(source)], check=True, timeout=120)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def machine(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with kvkeep installed, configured and started as the document says."""
    with Machine(tmp_path_factory.mktemp("machine"), wheel) as booted:
        booted.boot()
        booted.good("sh", "-c", f"cat >>/etc/kvkeep/kvkeep.env <<'.'{SETTINGS}.")
        booted.good("sh", "-c", "systemctl daemon-reload && systemctl enable --now kvkeep")
        yield booted


def visit(machine: Machine, what: str, seed: str, user: str = ENGINE) -> str:
    """An engine of another user: what it printed, or the last line of what it complained of."""
    inside = f"cd /repository && exec {PYTHON} -m tests.deploy.visit {what} {SOCKET} {seed} {COUNT}"
    ids = (f"--reuid={user}", f"--regid={user}", "--init-groups", "--no-new-privs")
    done = machine.run("setpriv", *ids, "sh", "-c", inside)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def restarts(machine: Machine) -> int:
    return int(machine.show("NRestarts"))


def wait_for_restart(machine: Machine, before: int) -> None:
    machine.wait_for("NRestarts", str(before + 1))
    machine.wait_for("ActiveState", "active")
    assert "adopted" in machine.show("StatusText")


@contextmanager
def drop_in(machine: Machine, *lines: str) -> Iterator[None]:
    """Changes the service until the end; the service is restarted then."""
    folder = f"/run/systemd/system/{SERVICE}.d"
    text = "\n".join(("[Service]", *lines, ""))
    machine.good("sh", "-c", f"mkdir -p {folder} && cat >{folder}/test.conf <<'.'\n{text}.")
    machine.good("systemctl", "daemon-reload")
    try:
        yield
    finally:
        machine.good("sh", "-c", f"rm -r {folder} && systemctl daemon-reload")
        machine.good("systemctl", "restart", SERVICE)


@slow
def test_it_starts_as_the_document_says(machine: Machine) -> None:
    assert machine.show("ActiveState") == "active"
    assert machine.show("StatusText").startswith(f"serving 64 MiB at ipc://{SOCKET}")
    assert f"kvkeep ready: endpoint ipc://{SOCKET}" in machine.journal()
    assert machine.show("ActiveState", ARENA) == "active"
    page = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9464/readyz').status)"
    end_s = time.monotonic() + 60
    while "200" not in (done := machine.run(PYTHON, "-c", page)).stdout:
        assert time.monotonic() < end_s, done.stderr
        time.sleep(0.3)
    security = machine.good("systemd-analyze", "security", "--no-pager", SERVICE)
    exposure = re.search(r"exposure level for kvkeep\.service: ([0-9.]+)", security)
    assert exposure is not None
    assert float(exposure[1]) <= 2.0


@slow
def test_a_restart_keeps_the_cache_and_the_folder(machine: Machine) -> None:
    """The folder is the same one: containers have it mounted."""
    assert visit(machine, "save", "restart") == str(COUNT)
    folder = machine.good("stat", "--format=%i %U %a", "/run/kvkeep")
    machine.good("systemctl", "restart", SERVICE)
    assert f"adopted {COUNT} chunks" in machine.show("StatusText")
    assert visit(machine, "look", "restart") == str(COUNT)
    machine.good("systemctl", "stop", SERVICE)
    assert machine.show("Result") == "success"
    assert machine.good("ls", "-A", "/run/kvkeep").split() == []
    assert machine.show("ActiveState", ARENA) == "active"
    machine.good("systemctl", "start", SERVICE)
    assert visit(machine, "look", "restart") == str(COUNT)
    assert machine.good("stat", "--format=%i %U %a", "/run/kvkeep") == folder


@slow
def test_to_stop_the_mount_empties_the_cache(machine: Machine) -> None:
    assert int(visit(machine, "save", "gone")) == COUNT
    machine.good("systemctl", "stop", SERVICE, ARENA)
    assert machine.run("mountpoint", "/run/kvkeep_arena").returncode != 0
    machine.good("systemctl", "start", SERVICE)
    assert machine.good("mountpoint", "/run/kvkeep_arena")
    assert "adopted" not in machine.show("StatusText")


@slow
def test_who_is_not_of_the_group_is_refused(machine: Machine) -> None:
    machine.good("useradd", "--no-create-home", "stranger")
    assert visit(machine, "look", "stranger", user="stranger").startswith("PermissionError")
    assert visit(machine, "look", "stranger") == "0"


@slow
def test_a_killed_server_is_started_again_with_its_cache(machine: Machine) -> None:
    assert visit(machine, "save", "killed") == str(COUNT)
    before = restarts(machine)
    machine.good("systemctl", "kill", "--kill-whom=main", "--signal=KILL", SERVICE)
    wait_for_restart(machine, before)
    assert visit(machine, "look", "killed") == str(COUNT)


@slow
def test_a_frozen_server_is_started_again_with_its_cache(machine: Machine) -> None:
    """The unit's own 30 s."""
    assert visit(machine, "save", "frozen") == str(COUNT)
    before = restarts(machine)
    machine.good("systemctl", "kill", "--kill-whom=main", "--signal=STOP", SERVICE)
    wait_for_restart(machine, before)
    assert "Watchdog timeout (limit 30s)!" in machine.journal()
    assert visit(machine, "look", "frozen") == str(COUNT)


@slow
@pytest.mark.parametrize("child", ["server.copier.host", "server.porter.main", "server.web"])
def test_a_child_that_dies_is_replaced_and_nothing_else(machine: Machine, child: str) -> None:
    before, main = restarts(machine), machine.show("MainPID")

    def pid() -> str:
        return machine.run("pgrep", "--parent", main, "--full", child).stdout.strip()

    end_s = time.monotonic() + 60
    while not (old := pid()):
        assert time.monotonic() < end_s, machine.journal()
        time.sleep(0.2)
    machine.good("kill", "-KILL", old)
    while pid() in ("", old):
        assert time.monotonic() < end_s, machine.journal()
        time.sleep(0.2)
    assert (restarts(machine), machine.show("MainPID")) == (before, main)
    assert visit(machine, "save", child) == str(COUNT)


@slow
def test_a_start_may_take_longer_than_the_unit_gives_it(machine: Machine) -> None:
    """Six stages of 4 s with 15 s for a start, which the server extends."""
    with drop_in(machine, "TimeoutStartSec=15", *slow_start("steps 6 4 60")):
        begun_s = time.monotonic()
        machine.good("systemctl", "restart", "--no-block", SERVICE)
        machine.wait_for("StatusText", "pinning 2 of 6")
        assert machine.show("ActiveState") == "activating"
        machine.wait_for("ActiveState", "active")
        assert time.monotonic() - begun_s > 20
        assert restarts(machine) == 0


@slow
def test_a_start_that_hangs_is_ended(machine: Machine) -> None:
    with drop_in(machine, "TimeoutStartSec=10", *slow_start("hang 1 0 5")):
        machine.good("systemctl", "stop", SERVICE)
        machine.good("systemctl", "start", "--no-block", SERVICE)
        machine.wait_for("StatusText", "pinning 1 of 1")
        machine.wait_for("NRestarts", "1")
        assert "start operation timed out. Terminating." in machine.journal()
    assert machine.show("ActiveState") == "active"


@slow
def test_a_start_can_be_called_off_and_the_cache_stays(machine: Machine) -> None:
    assert visit(machine, "save", "called-off") == str(COUNT)
    with drop_in(machine, *slow_start("steps 6 4 60")):
        machine.good("systemctl", "restart", "--no-block", SERVICE)
        machine.wait_for("StatusText", "pinning 1 of 6")
        machine.good("systemctl", "stop", SERVICE)
        assert (machine.show("ActiveState"), machine.show("Result")) == ("inactive", "success")
    assert visit(machine, "look", "called-off") == str(COUNT)


@slow
def test_a_wrong_setting_is_named_in_the_journal(machine: Machine) -> None:
    """It is tried again until somebody puts it right, and serves then."""
    with drop_in(machine, "Environment=KVKEEP_LOG_LEVEL=LOUD"):
        assert machine.run("systemctl", "restart", SERVICE).returncode != 0
        end_s = time.monotonic() + 30
        while "KVKEEP_LOG_LEVEL" not in (said := machine.journal()):
            assert time.monotonic() < end_s, said
            time.sleep(0.3)
        assert machine.show("ExecMainStatus") == "2"
        machine.good("sed", "-i", "s/LOUD/INFO/", f"/run/systemd/system/{SERVICE}.d/test.conf")
        machine.good("systemctl", "daemon-reload")
        machine.wait_for("ActiveState", "active")


@slow
def test_an_upgrade_of_systemd_leaves_it_alone(machine: Machine) -> None:
    """Its signs of life are taken by the next systemd, too."""
    assert visit(machine, "save", "reexec") == str(COUNT)
    before = (machine.show("MainPID"), machine.show("NRestarts"))
    machine.good("systemctl", "daemon-reexec")
    seen, end_s = machine.show("WatchdogTimestampMonotonic"), time.monotonic() + 60
    while machine.show("WatchdogTimestampMonotonic") == seen:
        assert time.monotonic() < end_s
        time.sleep(0.5)
    assert (machine.show("MainPID"), machine.show("NRestarts")) == before
    assert visit(machine, "look", "reexec") == str(COUNT)


@slow
def test_it_is_started_with_the_machine(machine: Machine) -> None:
    """By the target that a machine boots into; the mount comes with it."""
    machine.good("systemctl", "stop", SERVICE, ARENA)
    machine.good("systemctl", "start", "multi-user.target")
    assert machine.show("ActiveState", ARENA) == "active"
    assert machine.show("ActiveState") == "active"


@slow
def test_it_works_with_the_drop_ins(machine: Machine) -> None:
    """What they are for is not here: no GPU, no store."""
    lines = [
        line
        for name in ("gpu.conf", "stores.conf")
        for line in (tree.ROOT / "deploy/systemd/drop-ins" / name).read_text().splitlines()
    ]
    with drop_in(machine, *lines):
        machine.good("systemctl", "restart", SERVICE)
        assert machine.show("MemoryDenyWriteExecute") == "no"
        assert "10.0.0.0/8" in machine.show("IPAddressAllow")
        assert visit(machine, "save", "drop-ins") == str(COUNT)


def slow_start(how: str) -> tuple[str, ...]:
    """Lines of a unit whose server pretends to page-lock memory."""
    command = f"{PYTHON} -m tests.deploy.slowstart {how}"
    return ("ExecStart=", f"ExecStart={command}", "WorkingDirectory=/repository")


@slow
def test_every_directive_holds(machine: Machine) -> None:
    """The unit with another program in it, which tries what it must not do."""
    unit = (tree.ROOT / "deploy/systemd" / SERVICE).read_text()
    for old, new in (
        (
            r"^ExecStart=.*",
            f"ExecStart={PYTHON} -m tests.deploy.probe\nWorkingDirectory=/repository",
        ),
        (r"^Type=.*", "Type=oneshot"),
        (r"^Restart=.*", "Restart=no"),
        (r"^(WatchdogSec|NotifyAccess)=.*", ""),
    ):
        unit, count = re.subn(old, new, unit, flags=re.M)
        assert count
    machine.good("sh", "-c", f"cat >/run/systemd/system/probe.service <<'.'\n{unit}\n.")
    machine.good("sh", "-c", f"ip address add {FOREIGN}/32 dev lo; touch /tmp/marker /dev/marker")
    machine.good("systemctl", "daemon-reload")
    machine.good("systemctl", "start", "probe.service")
    said = machine.journal("probe.service")
    [line] = [one for one in said.splitlines() if one.startswith("{")]
    found = json.loads(line)
    assert found["calls"] == CALLS
    assert found["places"] == PLACES
    judge(found["standing"], machine)
    # It was the unit that did it: the same program without it.
    free = json.loads(machine.good("sh", "-c", f"cd /repository && {PYTHON} -m tests.deploy.probe"))
    same = {name for name, told in CALLS.items() if free["calls"][name] == told}
    assert same <= {"unix", "loopback", "loopback 6", "chown", "process 1", "realtime"}


CALLS = {
    **dict.fromkeys(("write and execute", "personality", "user namespace"), "refused EPERM"),
    **dict.fromkeys(("chroot", "setuid file", "realtime"), "refused EPERM"),
    **dict.fromkeys(("netlink", "packet"), "refused EAFNOSUPPORT"),
    **dict.fromkeys(("unix", "loopback", "loopback 6", "chown", "process 1"), "allowed"),
    "foreign address": "refused EPERM",
}
PLACES = {
    **dict.fromkeys(("/", "/usr", "/etc", "/var", "/opt", "/run", "/sys"), "read-only"),
    **dict.fromkeys(("/sys/fs/cgroup", "/proc/sys", "/dev/null"), "read-only"),
    **dict.fromkeys(("/home", "/root", "/proc/kmsg"), "out of reach"),
    **dict.fromkeys(("/run/kvkeep", "/run/kvkeep_arena", "/var/lib/kvkeep"), "writable"),
    **dict.fromkeys(("/tmp", "/dev/shm"), "writable"),
    **dict.fromkeys(("/dev/marker", "/tmp/marker", "/dev/kmsg"), "missing"),
}


def judge(standing: dict[str, Any], machine: Machine) -> None:
    """Who the service is, its limits and its namespaces."""
    for name in ("CapEff", "CapBnd", "CapAmb", "CapInh"):
        assert int(standing[name], 16) == 0
    assert (standing["Umask"], standing["NoNewPrivs"]) == ("0077", "1")
    assert (standing["Seccomp"], standing["CORE"]) == ("2", "0")
    assert standing["users"] == "0 0 4294967295"
    assert standing["group"] == "/kvkeep.slice/probe.service"
    own = {space: os.readlink(f"/proc/{machine.pid}/ns/{space}") for space in ("mnt", "ipc", "uts")}
    assert all(standing[space] != link for space, link in own.items())
    if machine.may_raise_limits():
        assert (standing["NOFILE"], standing["MEMLOCK"]) == ("65536", "-1")
        assert standing["oom"] == "-800"


def test_the_document_is_read() -> None:
    lines = machines.documented()
    assert lines[0] == "python3 -m venv /opt/kvkeep"
    assert any("systemd-sysusers" in line for line in lines)
    assert all(lines)


def test_where_no_systemd_can_run_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert machines.lacks() == "needs root"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    assert "unshare" in machines.lacks()
