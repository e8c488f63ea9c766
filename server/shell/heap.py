"""How much memory of its own this process has, and giving back what it does not use.

Purpose: figures from the kernel and the C library, cheap enough to ask ten times a second. Must not
know: who uses the memory. Runs in: any thread.
"""

from __future__ import annotations

import ctypes
import importlib
import os

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM = "/proc/self/statm"


class _Mallinfo2(ctypes.Structure):
    """What glibc tells of its heaps, all in ``size_t``."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


class Heap:
    """This process's private memory."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        # glibc from 2.33 on; other libraries have neither.
        self._mallinfo = getattr(library, "mallinfo2", None)
        if self._mallinfo is not None:
            self._mallinfo.restype = _Mallinfo2
        self._trim = getattr(library, "malloc_trim", None)
        if self._trim is not None:
            self._trim.argtypes = (ctypes.c_size_t,)

    def resident_bytes(self) -> int:
        """Private memory that is resident: without files, the arena included."""
        with open(_STATM, "rb", buffering=0) as file:
            fields = file.read(128).split()
        return (int(fields[1]) - int(fields[2])) * _PAGE_BYTES

    def in_use_bytes(self) -> int:
        """Memory that was asked for and not given back; falls at once when something is freed.

        Where the C library does not say, what is resident after ``trim``.
        """
        if self._mallinfo is None:
            self.trim()
            return self.resident_bytes()
        found = self._mallinfo()
        return int(found.uordblks) + int(found.hblkhd)

    def trim(self) -> None:
        """Gives the kernel back what was freed; takes some milliseconds per GiB."""
        if self._trim is not None:
            self._trim(0)


def use_small_pages() -> None:
    """Has numpy not ask for huge pages for the index's arrays.

    They are made for all that may come, and filled from the front. A huge page is cleared whole
    when it is first touched, which would hold the loop for 100 µs, a dozen times over.
    """
    for name in ("numpy._core.multiarray", "numpy.core.multiarray"):  # 2.x, 1.x
        try:
            importlib.import_module(name)._set_madvise_hugepage(False)
        except (ImportError, AttributeError):
            continue
        return
