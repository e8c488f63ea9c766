"""An engine whose pool is on a device: what is registered, and that no device error reaches it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from adapter.config import ENV_STAGING, read_settings
from adapter.engine import Engine
from adapter.pagememory import PageMemory
from adapter.poolshape import CacheShape, read_tensor
from adapter.refusals import UncachedError
from adapter.serverurl import ENV_SERVER_URL
from protocol.device.interface import MemoryKind
from protocol.device.simulated.faults import Fault
from protocol.errors import ErrorCode, RequestError
from protocol.layout import CudaIpcMemory, RingMemory
from protocol.messages import Body, Op, RegisterKvCache, RegisterKvCacheReply, Request
from protocol.namespace import fingerprint
from tests.adapter.gpu import Gpu, simulated
from tests.adapter.hostlike import Args
from tests.adapter.responder import Handler, Responder, until
from tests.adapter.test_engine import asked
from tests.adapter.test_identity import CONFIG, FakeTensor

NUM_PAGES = 16


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gpu]:
    with simulated(monkeypatch, tmp_path / "gpu") as gpu:
        yield gpu


@pytest.fixture
def server(short_dir: Path) -> Iterator[Responder]:
    with Responder(short_dir) as server:
        yield server


@pytest.fixture
def engine(
    server: Responder, gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Engine]:
    """Settings are read when it is made, the device is asked when it registers."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(b"w" * 1000)
    monkeypatch.setenv(ENV_SERVER_URL, server.url)
    engine = make(tmp_path)
    yield engine
    engine.close()


def make(model: Path) -> Engine:
    args = Args(model=str(model))
    return Engine(args, read_settings(args, os.environ))


def cache(gpu: Gpu, kind: MemoryKind = MemoryKind.DEVICE) -> tuple[CacheShape, PageMemory]:
    """Blocks of four tokens on the device, behind 256 bytes of something else."""
    shape = (NUM_PAGES, 2, 2, 64)
    num_bytes = int(np.prod(shape)) * 4
    address = gpu.malloc(num_bytes + 256, kind)
    return read_tensor(
        FakeTensor(gpu.content(address + 256, num_bytes).view(np.float32).reshape(shape))
    )


def said(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [line.getMessage() for line in caplog.records if text in line.getMessage()]


def no_handles(code: ErrorCode, **detail: str) -> Handler:
    """What a server does that cannot open handles."""

    def answer(body: Request) -> Body | None:
        assert isinstance(body, RegisterKvCache)
        if isinstance(body.memory, CudaIpcMemory):
            raise RequestError(code, "this copier sees no such device", **detail)
        return accept(body)

    return answer


def accept(body: RegisterKvCache) -> Body:
    """As a server that has everything."""
    return RegisterKvCacheReply(session=7, fingerprint=fingerprint(body.namespace), extents=0)


def test_one_allocation_is_registered_by_its_handle(
    engine: Engine, server: Responder, gpu: Gpu, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvkeep")
    engine.register(*cache(gpu))
    assert engine.running is not None
    assert engine.running.link.wait_joined(10) is not None
    memory = asked(server).memory
    assert isinstance(memory, CudaIpcMemory)
    assert (memory.base_offset_bytes, memory.device_uuid) == (256, gpu.device.uuid)
    assert server.pools == []  # no descriptor came
    assert len(said(caplog, "reads the pool itself")) == 1
    assert engine.close()
    assert server.bodies(Op.UNREGISTER)


@pytest.mark.parametrize(
    "refusal",
    [
        no_handles(ErrorCode.POOL_INVALID),
        no_handles(ErrorCode.UNSUPPORTED),
        no_handles(ErrorCode.LIMIT_EXCEEDED, device="00" * 16),  # of devices served at once
    ],
)
def test_a_server_that_cannot_open_the_handle_gets_a_ring(
    engine: Engine,
    server: Responder,
    gpu: Gpu,
    caplog: pytest.LogCaptureFixture,
    refusal: Handler,
) -> None:
    caplog.set_level(logging.INFO, "kvkeep")
    server.handlers[Op.REGISTER_KV_CACHE] = refusal
    engine.register(*cache(gpu))
    running = engine.running
    assert running is not None
    assert running.link.wait_joined(10) is not None, running.link.refusal
    kinds = [type(body.memory) for body in server.bodies(Op.REGISTER_KV_CACHE)]
    assert kinds == [CudaIpcMemory, RingMemory]
    assert running.link.refusal is None
    assert "ring_lots_lent" in running.saver.counters()
    (line,) = said(caplog, "staging ring")
    assert "this copier sees no such device" in line
    assert engine.close()


@pytest.mark.parametrize("code", [ErrorCode.PAGE_SIZE_MISMATCH, ErrorCode.LIMIT_EXCEEDED])
def test_other_refusals_of_a_handle_are_refusals(
    engine: Engine, server: Responder, gpu: Gpu, code: ErrorCode
) -> None:
    server.handlers[Op.REGISTER_KV_CACHE] = no_handles(code)
    engine.register(*cache(gpu))
    running = engine.running
    assert running is not None
    until(lambda: running.link.refusal)
    assert len(server.bodies(Op.REGISTER_KV_CACHE)) == 1
    assert "ring_lots_lent" not in running.saver.counters()


def test_without_a_ring_to_be_had_the_refusal_stands(
    engine: Engine, server: Responder, gpu: Gpu, caplog: pytest.LogCaptureFixture
) -> None:
    server.handlers[Op.REGISTER_KV_CACHE] = no_handles(ErrorCode.POOL_INVALID)
    gpu.faulty(Fault("pin", "cudaErrorMemoryAllocation"))
    engine.register(*cache(gpu))
    running = engine.running
    assert running is not None
    until(lambda: running.link.refusal)
    assert len(said(caplog, "no staging ring could be made")) == 1
    assert engine.close()


@pytest.mark.parametrize("kind", [MemoryKind.VIRTUAL, MemoryKind.MANAGED])
def test_memory_without_a_handle_is_registered_as_a_ring(
    engine: Engine, server: Responder, gpu: Gpu, kind: MemoryKind
) -> None:
    engine.register(*cache(gpu, kind))
    assert engine.running is not None
    assert engine.running.link.wait_joined(10) is not None
    assert isinstance(asked(server).memory, RingMemory)
    assert engine.close()


def test_a_device_that_fails_is_a_reason_to_run_uncached(engine: Engine, gpu: Gpu) -> None:
    shape, memory = cache(gpu)
    gpu.faulty(Fault("*", "cudaErrorIllegalAddress", is_sticky=True))
    with pytest.raises(UncachedError, match="cudaErrorIllegalAddress"):
        engine.register(shape, memory)
    assert engine.running is None


def test_no_ring_may_be_wanted(
    server: Responder, gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(b"w" * 1000)
    monkeypatch.setenv(ENV_SERVER_URL, server.url)
    monkeypatch.setenv(ENV_STAGING, "ipc")
    server.handlers[Op.REGISTER_KV_CACHE] = no_handles(ErrorCode.POOL_INVALID)
    engine = make(tmp_path)
    engine.register(*cache(gpu))
    running = engine.running
    assert running is not None
    until(lambda: running.link.refusal)
    assert len(server.bodies(Op.REGISTER_KV_CACHE)) == 1
    assert engine.close()
