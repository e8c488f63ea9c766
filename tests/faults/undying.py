"""A process that SIGKILL does not end: someone traces it and holds it at its exit.

What a device or a dead network mount does to a process (it hangs in the kernel and cannot die) is
played with ptrace: the tracer asks for a stop at the exit, so that a killed process stays, all its
memory with it, until the tracer lets go. Runs in a child of the pytest process; Linux only.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

from tests.wire.process import ROOT

_PTRACE_SEIZE = 0x4206
_PTRACE_DETACH = 17
_PTRACE_O_TRACEEXIT = 0x40


def trace(pid: int) -> None:
    """Holds a process at its exit until a line comes on the standard input."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    if libc.ptrace(_PTRACE_SEIZE, pid, None, _PTRACE_O_TRACEEXIT) != 0:
        raise SystemExit(os.strerror(ctypes.get_errno()))
    print("traced", flush=True)
    sys.stdin.readline()
    try:
        os.waitpid(pid, 0)  # it stands at its exit if it was killed
    except ChildProcessError:
        return
    libc.ptrace(_PTRACE_DETACH, pid, None, None)


class Undying:
    """Holds one process; it may die once this is closed."""

    def __init__(self, pid: int) -> None:
        self._tracer = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.undying", str(pid)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._tracer.stdout is not None
        assert self._tracer.stdout.readline() == "traced\n", "this machine does not allow ptrace"

    def let_go(self) -> None:
        """Lets the killed process end; the process must have been killed before. Idempotent."""
        if self._tracer.poll() is None:
            self._tracer.communicate("\n", 15)

    def __enter__(self) -> Undying:
        return self

    def __exit__(self, *exc_info: object) -> None:
        # A tracer that ends lets go of what it traced, whatever state that is in.
        self._tracer.kill()
        self._tracer.wait(15)
        for pipe in (self._tracer.stdin, self._tracer.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()


if __name__ == "__main__":
    trace(int(sys.argv[1]))
