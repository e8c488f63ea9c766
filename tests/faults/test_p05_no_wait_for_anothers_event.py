"""P05: nothing that one process does waits for an event of another: it asks, or it looks.

On host memory that shows as: a load ends although the server, its copier and every other engine
stand still; a save of one engine ends although another, which has one under way, stands still.

On a device, the copier asks events of its own, and answers when they are done. Copiers that answer
earlier, or use a bay of their buffer earlier again, were planted: each makes wrong bytes here.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from protocol.device.simulated import driver, settings
from tests.faults.bystander import engaged, fill, read_all, read_slots, retrieve
from tests.faults.inflight import NUM_CHUNKS, InFlight, content
from tests.server.copier.gpuchild import (
    FILL,
    FIRST_BYTE,
    GpuChild,
    Pool,
    delays,
    exporter,
    pages,
)
from tests.wire.client import make_keys, make_namespace
from tests.wire.process import ROOT, ServerProcess

SECOND_S = 1.0


def test_a_load_ends_while_everyone_else_stands_still(own_server: ServerProcess) -> None:
    with engaged(own_server, make_namespace(model="p05/load")) as engine:
        fill(engine, 1)
        keys = make_keys(1, 64)
        assert engine.save(keys, list(range(64))) == 64
        with InFlight(own_server, "p05/load", "load_nothing", 1) as other:
            found = engine.lookup(keys)
            slots = retrieve(engine, found.lease, 64)
            stopped = [own_server.pid, *own_server.children(), other.pid]
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            try:
                begun_s = time.monotonic()
                assert np.array_equal(read_slots(engine, slots), engine.pages)
                assert time.monotonic() - begun_s < SECOND_S
            finally:
                for pid in stopped:
                    os.kill(pid, signal.SIGCONT)
        assert engine.release(found.lease) == 64


@pytest.mark.parametrize("direction", ["save", "load_nothing"])
def test_others_go_on_beside_an_engine_that_stands_still(
    own_server: ServerProcess, direction: str
) -> None:
    model = f"p05/{direction}"
    with engaged(own_server, make_namespace(model=model)) as engine:
        fill(engine, 2)
        with InFlight(own_server, model, direction, 1) as other:
            other.signal(signal.SIGSTOP)
            begun_s = time.monotonic()
            keys = make_keys(2, 64)
            assert engine.save(keys, list(range(64))) == 64
            assert np.array_equal(read_all(engine, keys), engine.pages)
            assert time.monotonic() - begun_s < 5 * SECOND_S
            other.signal(signal.SIGCONT)
            if direction == "save":  # its own copy was made meanwhile, too
                assert other.tell("settle") == f"copied {NUM_CHUNKS}"
                assert other.tell("commit") == str(NUM_CHUNKS)
                data = read_all(engine, make_keys(1, NUM_CHUNKS))
                assert np.array_equal(data, content(1, engine.page_bytes))


def test_no_source_names_an_event_of_another_process() -> None:
    """CUDA's events between processes would bring all of P05 back."""
    banned = re.compile(
        r"(?i)ipc(Get|Open)EventHandle|from_ipc_handle|interprocess=True|EventInterprocess"
    )
    sources = [
        path for name in ("server", "protocol", "adapter") for path in (ROOT / name).rglob("*.py")
    ]
    assert len(sources) > 100
    found = [str(path) for path in sources if banned.search(path.read_text(encoding="utf-8"))]
    assert found == []
    for line in (
        "torch.cuda.Event.from_ipc_handle(device, handle)",
        "runtime.ipcGetEventHandle(e)",
    ):
        assert banned.search(line)


def test_no_source_hands_python_to_the_device_to_call() -> None:
    """A callback of the driver's would take the GIL on the driver's own thread."""
    banned = re.compile(r"(?i)(cudaLaunchHostFunc|launchHostFunc|StreamAddCallback|add_callback)\(")
    for name in ("server", "protocol", "adapter"):
        for path in (ROOT / name).rglob("*.py"):
            assert not banned.search(path.read_text(encoding="utf-8")), path
    assert banned.search("stream.launchHostFunc(work)")


# --- the copier of a device ------------------------------------------------------------------

PAGE = 256 * 1024
#: The copier as it is, with pieces of two pages and writers that take their time.
WHOLE = """
import sys, time
from server.copier import bounce, gpu, pipeline, writers
bounce.Bounce.__init__.__defaults__ = (4 << 19, 1 << 19)
def slowly(run):
    def submit(self, token, source, target, runs):
        def pause():
            time.sleep(PAUSE_S)
            yield from runs
        return run(self, token, source, target, pause())
    return submit
writers.Writers.submit = slowly(writers.Writers.submit)
"""
SLOW_DEVICE, SLOW_WRITERS = (0.0, 30_000), (0.05, 1000)
"""Seconds that a writer takes, microseconds that the device takes at most."""

PLANTED = {
    "an answer before the event is done": (
        SLOW_DEVICE,
        """
class Hasty:
    def __init__(self, event): pass
    def query(self): return True
fly = pipeline.Passage.__init__
def hastily(self, job, bay, piece, event, since_s):
    fly(self, job, bay, piece, Hasty(event), since_s)
pipeline.Passage.__init__ = hastily
""",
    ),
    "an answer before the page is written": (
        SLOW_WRITERS,
        """
def forget(self, passage):
    write(self, passage)
    passage.job.num_flying -= 1
def collected(self):
    for written in self._writers.collect():
        self._bounce.give_back(written.token.bay)
write = pipeline.Pipeline._write
pipeline.Pipeline._write = forget
pipeline.Pipeline._take_written = collected
""",
    ),
    "a bay used again before it is written": (
        SLOW_WRITERS,
        """
write = pipeline.Pipeline._write
def early(self, passage):
    write(self, passage)
    self._bounce.give_back(passage.bay)
def collected(self):
    for written in self._writers.collect():
        written.token.job.num_flying -= 1
pipeline.Pipeline._write = early
pipeline.Pipeline._take_written = collected
""",
    ),
}


@pytest.fixture
def gpu_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(settings.FOLDER, str(tmp_path / "gpus"))
    with driver.ending(tmp_path / "gpus"):
        yield tmp_path / "gpus"


def wrong_pages(pace: tuple[float, int], planted: str = "") -> int:
    """Copies 64 pages to an extent; as each job is answered, its source changes, as the host may.

    Args:
        pace: how slow what is.
        planted: what is changed in the copier.

    Returns:
        Pages that do not hold what they should, looked at when they were answered.
    """
    pause_s, delay_us = pace
    script = f"{WHOLE}\nPAUSE_S = {pause_s}\n{planted}\ngpu.main(sys.argv[1:])"
    pool = Pool(64 * PAGE)
    with GpuChild(68 * PAGE, ("-c", script), delays(delay_us)) as child:
        assert child.open(pool.opening(1)) is None
        should = pool.array.copy().reshape(64, PAGE)
        for job in range(16):
            child.copy(job, 1, pages(PAGE, range(4 * job, 4 * job + 4)))
        num_wrong = 0
        for _ in range(16):
            answer = child.answer()
            assert answer.error is None
            chosen = slice(4 * answer.number, 4 * answer.number + 4)
            found = child.extent[FIRST_BYTE:][: 64 * PAGE].reshape(64, PAGE)[chosen]
            num_wrong += int((found != should[chosen]).any(axis=1).sum())
            pool.array.reshape(64, PAGE)[chosen] = 0xAB
    return num_wrong


@pytest.mark.parametrize("pace", [SLOW_DEVICE, SLOW_WRITERS], ids=["device", "writers"])
def test_what_a_devices_copier_answers_is_there(gpu_folder: Path, pace: tuple[float, int]) -> None:
    assert wrong_pages(pace) == 0


@pytest.mark.parametrize("planted", PLANTED)
def test_a_devices_copier_that_does_not_await_its_event_is_caught(
    gpu_folder: Path, planted: str
) -> None:
    assert wrong_pages(*PLANTED[planted]) > 0


@pytest.mark.parametrize("signalled", [signal.SIGSTOP, signal.SIGKILL])
def test_a_devices_copier_goes_on_beside_an_engine_that_stands_still(
    gpu_folder: Path, signalled: signal.Signals
) -> None:
    """It needs nothing of the engine but its memory, which stays as long as it is open."""
    mine = Pool(16 * PAGE)
    with (
        exporter(16 * PAGE) as (engine, opening),
        GpuChild(34 * PAGE, environ=delays(2000)) as child,
    ):
        assert child.open(opening) is None
        assert child.open(mine.opening(2)) is None
        engine.send_signal(signalled)
        begun_s = time.monotonic()
        child.copy(1, opening.number, pages(PAGE, range(16)))
        child.copy(2, 2, pages(PAGE, range(16), range(16, 32)))
        assert set(child.answers(2).values()) == {None}
        assert time.monotonic() - begun_s < 5 * SECOND_S
        assert (child.extent[FIRST_BYTE:][: 16 * PAGE] == FILL).all()
        assert np.array_equal(child.extent[FIRST_BYTE + 16 * PAGE :][: 16 * PAGE], mine.array)
