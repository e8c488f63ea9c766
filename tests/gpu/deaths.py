"""Step ``deaths``: ``kill -9`` of an engine and of a copier in the middle of copies.

What must be true then: the next engine hits what was committed, byte for byte; saves go on with the
next copier; and the device's memory is back to what it was.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from server.asking import stats
from tests.adapter.enginerig import SIZE, launched
from tests.gpu.ground import Ground
from tests.gpu.rig import HANDLE, DeviceRig
from tests.gpu.victim import KIND, NUM_PAGES, PROMPT_TOKENS, prompt
from tests.slow.figure import Figure
from tests.wire.process import ROOT, ServerProcess

LIMIT_S = 40.0
SLACK_BYTES = 32 << 20
"""What the driver may keep for itself of a process that used the device and is gone."""


def until(what: str, condition: Callable[[], bool], limit_s: float = LIMIT_S) -> float:
    """Waits for a condition.

    Returns:
        Seconds.

    Raises:
        AssertionError: it did not come true in time.
    """
    begun_s = time.monotonic()
    while not condition():
        assert time.monotonic() - begun_s < limit_s, f"{what}: not within {limit_s:.0f} s"
        time.sleep(0.002)  # a pace, not a wait: the loop ends by its condition
    return time.monotonic() - begun_s


def now(server: ServerProcess) -> dict[str, int]:
    """The server's counters."""
    return stats(server.side_path, 10.0)


def copier_pid(server: ServerProcess) -> int:
    """Process id of the device's copier, or 0."""
    pids = [value for name, value in now(server).items() if name.startswith("copier_pid_GPU-")]
    return pids[0] if pids else 0


def copier_bytes(server: ServerProcess) -> int:
    """Device memory that the copier says it took."""
    found = now(server).items()
    return sum(value for name, value in found if name.startswith("copier_device_bytes_"))


def calm(ground: Ground, server: ServerProcess, folder: Path) -> None:
    """One engine that ends well: the device's copier is up then, and has nothing open."""
    rig = DeviceRig(server.url, folder, ground, KIND, num_pages=NUM_PAGES).register()
    try:
        rig.run_saved(prompt(90))
    finally:
        rig.close()
    until("the engine is gone", lambda: now(server)["instances"] == 0)


def start_victim(ground: Ground, server: ServerProcess, folder: Path) -> subprocess.Popen[bytes]:
    """An engine in a process of its own, once it saves."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.gpu.victim", ground.name, server.url, str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    poller = select.poll()
    poller.register(child.stdout, select.POLLIN)
    begun = poller.poll(LIMIT_S * 1000) and child.stdout.readline()
    if begun != b"saving\n":
        child.kill()
        child.wait()
        raise AssertionError("the engine that is to be killed did not begin to save")
    return child


def kill_engine(ground: Ground, server: ServerProcess, folder: Path) -> bool:
    """Kills an engine while copies of its pages are under way.

    Returns:
        Whether some were, as the server says a moment before.
    """
    child = start_victim(ground, server, folder)
    try:
        end_s = time.monotonic() + 5.0
        in_flight = False
        while not in_flight and time.monotonic() < end_s:
            in_flight = now(server)["copies_in_flight"] > 0
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    until("the server notices the engine's end", lambda: now(server)["instances"] == 0)
    until("its copies end", lambda: now(server)["copies_in_flight"] == 0)
    return in_flight


def survivor(ground: Ground, server: ServerProcess, folder: Path) -> int:
    """Another engine asks for what the killed ones computed.

    Returns:
        Pages that it loaded and compared.
    """
    num_loaded = 0
    rig = DeviceRig(server.url, folder, ground, KIND, num_pages=NUM_PAGES).register()
    try:
        for number in range(8):
            num_loaded += rig.run(prompt(number)).offered // SIZE
    finally:
        rig.close()
    return num_loaded


def kill_copier(ground: Ground, server: ServerProcess, folder: Path) -> tuple[bool, float]:
    """Kills the device's copier while it copies.

    Returns:
        Whether copies were under way, and seconds until the next copier had saved a prompt.
    """
    rig = DeviceRig(server.url, folder, ground, KIND, num_pages=NUM_PAGES).register()
    try:
        rig.run_saved(prompt(100))
        old, in_flight, number = copier_pid(server), False, 101
        assert old > 0
        while not in_flight and number < 140:
            rig.run(prompt(number))
            number += 1
            in_flight = now(server)["copies_in_flight"] > 0
        os.kill(old, signal.SIGKILL)
        begun_s = time.monotonic()
        until("another copier", lambda: copier_pid(server) not in (0, old))
        saved = 200

        def next_is_saved() -> bool:
            nonlocal saved
            saved += 1
            rig.run_saved(prompt(saved))
            return rig.run(prompt(saved)).offered == PROMPT_TOKENS - 1

        until("a prompt is saved by it", next_is_saved)
        rig.check_way()
        took_s = time.monotonic() - begun_s
    finally:
        rig.close()
    return in_flight, took_s


def measure(ground: Ground, is_quick: bool) -> dict[str, Figure]:
    """Kills engines and a copier, and looks at the device's memory.

    Raises:
        AssertionError: memory stayed taken, nothing was hit, or somebody did not go on.
    """
    device = ground.device
    with TemporaryDirectory(prefix="kvk-") as place, launched("--l1-size", "256M") as server:
        calm(ground, server, Path(place) / "m")  # what the driver makes when first used stays
    free_bytes = device.memory().free_bytes
    num_kills = 1 if is_quick else 3
    with TemporaryDirectory(prefix="kvk-") as place, launched("--l1-size", "256M") as server:
        folder = Path(place) / "m"
        calm(ground, server, folder)
        beside_copier = device.memory().free_bytes
        in_flight = sum(kill_engine(ground, server, folder) for _ in range(num_kills))
        after_engine_s = until(
            "the killed engines' memory is free",
            lambda: device.memory().free_bytes >= beside_copier - SLACK_BYTES,
        )
        behind_engines = beside_copier - device.memory().free_bytes
        loaded = survivor(ground, server, folder)
        assert loaded, "nothing that a killed engine saved was hit"
        copier_in_flight, next_s = kill_copier(ground, server, folder)
    after_server_s = until(
        "all memory is free", lambda: device.memory().free_bytes >= free_bytes - SLACK_BYTES
    )
    behind_all, mib = free_bytes - device.memory().free_bytes, 1 << 20
    return {
        "memory that stayed taken behind killed engines, MiB": Figure(round(behind_engines / mib)),
        "memory that stayed taken behind all, MiB": Figure(round(behind_all / mib)),
        "pools shared by": Figure(HANDLE),
        "engines killed": Figure(num_kills),
        "of these with copies under way": Figure(in_flight),
        "pages of killed engines loaded and compared": Figure(loaded),
        "seconds until a killed engine's memory was free": Figure(round(after_engine_s, 2)),
        "copier killed with copies under way": Figure(copier_in_flight),
        "seconds until the next copier had saved a prompt": Figure(round(next_s, 2)),
        "seconds until all memory was free after the end": Figure(round(after_server_s, 2)),
    }
