"""A machine for tests: a real systemd as process 1, in namespaces of this one.

Its root is this machine's with a tmpfs over it, its devices are six, its network is a loopback of
its own, and its control groups are a subtree that is removed with it. kvkeep is installed there by
the lines of ``docs/deployment.md``. ``machine.sh`` makes it; this starts that, runs commands
inside, and ends it. Knows nothing of the server but its unit's name. Runs in the pytest process, as
root.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType

from tests.repository import tree

SYSTEMD = Path("/lib/systemd/systemd")
PYTHON = Path("/usr/bin/python3")
SERVICE = "kvkeep.service"
ARENA = "run-kvkeep_arena.mount"
ENGINE = "engine"
"""A user there who may use the server."""
_DOCUMENT = tree.ROOT / "docs/deployment.md"
_CAP_SYS_RESOURCE = 24
_BOOT_S = 60.0
_INSTALL_S = 900.0
_COMMAND_S = 120.0


def lacks() -> str:
    """What this machine cannot give; empty where a systemd can run."""
    if os.geteuid() != 0:
        return "needs root"
    tools = [name for name in ("unshare", "nsenter", "setpriv") if shutil.which(name) is None]
    tools += [str(path) for path in (SYSTEMD, PYTHON) if not path.exists()]
    if tools:
        return f"needs {', '.join(tools)}"
    if "overlay" not in Path("/proc/filesystems").read_text(encoding="utf-8"):
        return "needs overlayfs"
    group = _own_group()
    if group is None:
        return "needs cgroup2"
    if not os.access(group, os.W_OK):
        return f"may not make control groups in {group}"
    command = ("unshare", "--mount", "--pid", "--fork", "--cgroup", "--uts", "--ipc", "--net")
    done = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"needs namespaces: {done.stderr.strip()}"


def _own_group() -> Path | None:
    """The folder of this process's control group of version 2."""
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    found = re.search(r"^\S+ \S+ \S+ \S+ (\S+) .* - cgroup2 ", mounts, re.M)
    own = re.search(r"^0::/(.*)$", Path("/proc/self/cgroup").read_text(encoding="utf-8"), re.M)
    return Path(found[1]) / own[1] if found and own else None


def documented() -> list[str]:
    """The commands by which docs/deployment.md installs the service."""
    text = _DOCUMENT.read_text(encoding="utf-8")
    block = re.search(r"1\. Install, from .*?```\n(.*?)```", text, re.S)
    assert block is not None, "docs/deployment.md installs nothing"
    return [line.strip() for line in block[1].splitlines() if line.strip()]


class Machine:
    """One machine, from ``boot`` to ``close``.

    Attributes:
        pid: its process 1, as this machine counts.
    """

    def __init__(self, folder: Path, wheel: Path, *prepare: str) -> None:
        """Prepares; nothing is started yet.

        Args:
            folder: for its root and its log; empty.
            wheel: kvkeep.
            prepare: more lines for a shell in its root, run before it has processes and while it
                has this machine's network.
        """
        group = _own_group()
        assert group is not None
        self._group = group / f"kvkeep-machine-{os.getpid()}"
        self._root, self._log = folder / "root", folder / "log"
        self._wheel, self._prepare = wheel, prepare
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = 0

    def boot(self) -> None:
        """Installs kvkeep and waits until systemd has started what it starts.

        Raises:
            AssertionError: it did not come up, with what it said.
        """
        self._root.mkdir()
        self._group.mkdir()
        lines = documented()
        online = [line for line in lines if "venv" in line or " pip " in line]
        script = Path(__file__).with_name("machine.sh")
        stages = ("unshare", "--mount", "sh", str(script), "root", str(self._root))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", *stages),
                    *(str(tree.ROOT), str(self._group), str(self._wheel)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={
                    **{key: value for key, value in os.environ.items() if "PYTHON" not in key},
                    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                    "INSTALL": "\n".join([*online, *self._prepare]),
                },
            )
        self._wait_for_init(self._process)
        end_s = time.monotonic() + _BOOT_S
        while self.run("systemctl", "is-system-running").stdout.strip() != "running":
            assert time.monotonic() < end_s, self.run("systemctl", "--failed").stdout
            time.sleep(0.2)
        offline = [line for line in lines if line not in online]
        self.good("sh", "-euxc", "\n".join(["cd /install", *offline]))
        self.good("useradd", "--no-create-home", "--groups", "kvkeep", ENGINE)

    def _wait_for_init(self, process: subprocess.Popen[bytes]) -> None:
        end_s = time.monotonic() + _INSTALL_S
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while time.monotonic() < end_s and process.poll() is None:
            with contextlib.suppress(OSError):  # one that ended meanwhile
                for child in children.read_text(encoding="ascii").split():
                    if Path(f"/proc/{child}/comm").read_text(encoding="utf-8") == "systemd\n":
                        self.pid = int(child)
                        return
            time.sleep(0.1)
        raise AssertionError(self._log.read_text(encoding="utf-8", errors="replace")[-4000:])

    def run(self, *command: str, limit_s: float = _COMMAND_S) -> subprocess.CompletedProcess[str]:
        """Runs a command inside, as root.

        Args:
            command: program and arguments.
            limit_s: longest time.
        """
        return subprocess.run(
            ["nsenter", f"--target={self.pid}", "--all", "--", *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            env={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "LC_ALL": "C.UTF-8",
                "SYSTEMD_PAGER": "",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        )

    def good(self, *command: str, limit_s: float = _COMMAND_S) -> str:
        """What a command printed that has to succeed.

        Raises:
            AssertionError: it failed; with what it and the service said.
        """
        done = self.run(*command, limit_s=limit_s)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{self.journal()}"
        return done.stdout

    def show(self, name: str, unit: str = SERVICE) -> str:
        """A property of a unit, as ``systemctl show`` has it."""
        return self.good("systemctl", "show", "--property", name, "--value", unit).strip()

    def wait_for(self, name: str, value: str, limit_s: float = 90.0) -> None:
        """Waits until a property of the service has a value.

        Raises:
            AssertionError: it never had.
        """
        end_s = time.monotonic() + limit_s
        while (found := self.show(name)) != value:
            assert time.monotonic() < end_s, f"{name} is {found}\n{self.journal()}"
            time.sleep(0.2)

    def journal(self, unit: str = SERVICE) -> str:
        """The last lines that the journal has of a unit."""
        return self.run("journalctl", "--no-pager", "-n", "80", "-o", "cat", "-u", unit).stdout

    def may_raise_limits(self) -> bool:
        """Whether its root has CAP_SYS_RESOURCE; in some sandboxes nobody has."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        found = re.search(r"^CapEff:\t(\w+)$", status, re.M)
        return found is not None and bool(int(found[1], 16) >> _CAP_SYS_RESOURCE & 1)

    def close(self) -> None:
        """Kills process 1, and with it all of the machine; its mounts go with the namespace."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        end_s = time.monotonic() + 10
        while self._group.exists() and time.monotonic() < end_s:
            for folder, _, _ in os.walk(self._group, topdown=False):
                try:
                    os.rmdir(folder)
                except OSError:
                    time.sleep(0.05)

    def __enter__(self) -> Machine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
