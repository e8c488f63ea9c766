"""This process as the kernel has it: its age, its descriptors, its collector.

Must not know: what the process does. Runs in: the main thread, at start.
"""

from __future__ import annotations

import gc
import os
import resource
import time

from protocol.errors import ConfigError, ErrorCode

MIN_OPEN_FILES = 4096


def process_age_s() -> float:
    """Seconds since this process was started, exec and imports included.

    Returns:
        Whole hundredths; the kernel counts starts in clock ticks.
    """
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    start_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - start_s)


def calm_collector() -> None:
    """Leaves what was loaded so far out of collections, and makes those rarer.

    A full collection of a large heap stops the loop for more than 100 ms, one of 50,000 young
    objects for 37. Hardly anything is left to collect, and the loop does that when it is idle.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


def raise_descriptor_limit() -> None:
    """Lifts the soft limit of open files to the hard one: every peer and extent takes two.

    Raises:
        ConfigError: INVALID_CONFIG when even that leaves too few to keep a rush of peers out.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < MIN_OPEN_FILES:
        raise ConfigError(
            ErrorCode.INVALID_CONFIG,
            f"open files: the hard limit of {hard} is too low, at least {MIN_OPEN_FILES} are "
            "needed (ulimit -Hn, LimitNOFILE=)",
        )
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def occupy_standard_descriptors() -> None:
    """Opens /dev/null in place of stdin, stdout or stderr that were closed by whoever started this.

    Otherwise the next files opened here would get their numbers, and log lines would go into them.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != fd:
                os.dup2(opened, fd)
                os.close(opened)
            os.set_inheritable(fd, True)
