"""Becomes a command under the confinement of a unit, as far as that can be had without systemd.

``python -m tests.deploy.confined UNIT COMMAND …`` installs the unit's system call filter, refuses
memory to write and to execute, and drops what capabilities there are. Not done: what needs mounts
(read-only folders, devices of its own) and address families. Knows no kvkeep. Runs in a process of
its own, which the command takes over.

Sources: systemd.exec(5); seccomp(2); PR_SET_MDWE in prctl(2), Linux 6.3, which forbids more than
systemd's MemoryDenyWriteExecute.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import struct
import subprocess
import sys
from pathlib import Path

HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
"""Of libc6-dev: names and numbers of the system calls."""

_AUDIT_ARCH_X86_64 = 0xC000003E
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
_OFFSET_NUMBER, _OFFSET_ARCH = 0, 4
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_PR_CAPBSET_DROP, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _PR_SET_MDWE = 24, 22, 38, 65
_MODE_FILTER, _REFUSE_EXEC_GAIN = 2, 1
_LAST_CAPABILITY = 63


def can() -> bool:
    """Whether this machine has what it takes."""
    release = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
    return platform.machine() == "x86_64" and HEADER.is_file() and release >= (6, 3)


def allowed(unit: str) -> set[str]:
    """Names of the calls that a unit's SystemCallFilter lines leave, in their order."""
    names: set[str] = set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", unit, re.M):
        found = {name for word in line.lstrip("~").split() for name in _expand(word)}
        names = names - found if line.startswith("~") else names | found
    return names | _expand("@default")  # systemd always admits these


def _expand(word: str) -> set[str]:
    if not word.startswith("@"):
        return {word}
    done = subprocess.run(
        ["systemd-analyze", "--no-pager", "syscall-filter", word],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    inner = {line.strip() for line in done.stdout.splitlines()[1:]} - {""}
    return {name for one in inner if not one.startswith("#") for name in _expand(one)}


def program(names: set[str]) -> bytes:
    """A seccomp filter: these calls, and EPERM for all others."""
    numbers = dict(re.findall(r"#define __NR_(\w+) (\d+)", HEADER.read_text()))
    code = [
        (_LOAD, 0, 0, _OFFSET_ARCH),
        (_EQUAL, 1, 0, _AUDIT_ARCH_X86_64),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _OFFSET_NUMBER),
    ]
    for name in sorted(names & numbers.keys()):
        code += [(_EQUAL, 0, 1, int(numbers[name])), (_RETURN, 0, 0, _ALLOW)]
    code.append((_RETURN, 0, 0, _ERRNO | errno.EPERM))
    return b"".join(struct.pack("HBBI", *one) for one in code)


def confine(unit: str) -> None:
    """Confines this process, and all that it becomes or starts.

    Raises:
        OSError: a part of it was refused.
    """
    filter_bytes = program(allowed(unit))
    libc = ctypes.CDLL(None, use_errno=True)

    def prctl(option: int, *arguments: int | ctypes.Array[ctypes.c_char]) -> None:
        words = [*arguments, 0, 0, 0, 0][:4]
        values = [ctypes.c_ulong(word) if isinstance(word, int) else word for word in words]
        if libc.prctl(option, *values) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"prctl({option}): {os.strerror(number)}")

    if os.geteuid() == 0:
        for capability in range(_LAST_CAPABILITY + 1):
            if libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) != 0:
                break  # beyond the last that this kernel knows
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    prctl(_PR_SET_MDWE, _REFUSE_EXEC_GAIN)
    code = ctypes.create_string_buffer(filter_bytes, len(filter_bytes))
    header = struct.pack("HxxxxxxQ", len(filter_bytes) // 8, ctypes.addressof(code))
    prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.create_string_buffer(header, len(header)))


if __name__ == "__main__":
    confine(Path(sys.argv[1]).read_text())
    os.execvp(sys.argv[2], sys.argv[2:])
