"""What a process finds itself confined to: run in place of the server, by its unit.

``python -m tests.deploy.probe`` prints one JSON object: names of what was tried, and ``refused``
with the error's name, ``allowed``, or a value. What it tries changes nothing but itself and its
``/tmp``, even where all of it is allowed.
Knows Linux, and nothing of kvkeep. Runs as process of a systemd unit.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import resource
import socket
import stat
from collections.abc import Callable
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWUSER = 0x10000000
_PERSONALITY_OTHER = 0x0008
_PLACES = (
    *("/", "/usr", "/etc", "/var", "/opt", "/run", "/sys", "/sys/fs/cgroup", "/proc/sys"),
    *("/home", "/root", "/proc/kmsg", "/run/kvkeep", "/run/kvkeep_arena", "/var/lib/kvkeep"),
    *("/tmp", "/tmp/marker", "/dev/shm", "/dev/null", "/dev/marker", "/dev/kmsg"),
)
FOREIGN = "192.0.2.1"
"""An address that is not loopback's; the machine gives it to its own loopback."""


def tried(call: Callable[[], object]) -> str:
    """``allowed``, or ``refused`` and why."""
    try:
        call()
    except OSError as error:
        return f"refused {errno.errorcode.get(error.errno or 0, '?')}"
    return "allowed"


def _libc(name: str, *arguments: int) -> None:
    if getattr(_LIBC, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


def _datagram(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", (address, 9))


def _setuid_file() -> None:
    path = Path("/tmp/probe")
    path.touch()
    path.chmod(0o4700)


def calls() -> dict[str, str]:
    """What the process may do."""
    return {
        "write and execute": tried(lambda: mmap.mmap(-1, 4096, prot=7).close()),
        "personality": tried(lambda: _libc("personality", _PERSONALITY_OTHER)),
        "chroot": tried(lambda: os.chroot("/")),
        "setuid file": tried(_setuid_file),
        "realtime": tried(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))),
        "netlink": tried(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()),
        "packet": tried(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()),
        "unix": tried(lambda: socket.socket(socket.AF_UNIX).close()),
        "loopback": tried(lambda: _datagram("127.0.0.1")),
        "loopback 6": tried(lambda: _datagram("::1")),
        "foreign address": tried(lambda: _datagram(FOREIGN)),
        "chown": tried(lambda: os.chown("/run/kvkeep", -1, os.getgid())),
        "process 1": tried(lambda: Path("/proc/1/stat").read_text(encoding="utf-8")),
        # The last: whoever may do this is root in there.
        "user namespace": tried(lambda: _libc("unshare", _CLONE_NEWUSER)),
    }


def places() -> dict[str, str]:
    """How folders are seen: read-only, writable, out of reach or missing."""

    def seen(name: str) -> str:
        try:
            mode = stat.S_IMODE(os.stat(name).st_mode)
        except FileNotFoundError:
            return "missing"
        if mode == 0:
            return "out of reach"
        is_fixed = os.statvfs(name).f_flag & os.ST_RDONLY
        return "read-only" if is_fixed else "writable"

    return {name: seen(name) for name in _PLACES}


def standing() -> dict[str, str]:
    """Who the process is, and its limits."""
    status = dict(
        line.split(":\t", 1)
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        if ":\t" in line
    )
    wanted = ("Umask", "NoNewPrivs", "Seccomp", "CapEff", "CapBnd", "CapAmb", "CapInh")
    limits = {
        name: str(resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0])
        for name in ("NOFILE", "MEMLOCK", "CORE")
    }
    spaces = {
        space: os.readlink(f"/proc/self/ns/{space}") for space in ("mnt", "ipc", "uts", "net")
    }
    return {
        **{name: status[name].strip() for name in wanted},
        **limits,
        **spaces,
        "users": " ".join(Path("/proc/self/uid_map").read_text(encoding="ascii").split()),
        "oom": Path("/proc/self/oom_score_adj").read_text(encoding="ascii").strip(),
        "group": Path("/proc/self/cgroup").read_text(encoding="utf-8").strip().rpartition(":")[2],
    }


if __name__ == "__main__":
    print(json.dumps({"calls": calls(), "places": places(), "standing": standing()}))
