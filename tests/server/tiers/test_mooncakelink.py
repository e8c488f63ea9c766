"""The client's settings, addresses and memory; connections are tested with the tier."""

import importlib
import os
import sys
import threading

import pytest

from server.tiers import mooncakelink
from server.tiers.interface import TierError
from server.tiers.mooncakelink import (
    BLOCK_BYTES,
    SETTINGS,
    UNSAFE,
    Headers,
    connect,
    host_port,
    is_loopback,
    library,
    own_address,
)
from server.tierspec import parse
from tests.stores.valkey import required
from tests.wire.ports import free_port


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SETTINGS, UNSAFE, "MC_TCP_BIND_ADDRESS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_settings_are_made_where_the_operator_made_none(monkeypatch: pytest.MonkeyPatch) -> None:
    required("mooncake")
    monkeypatch.setenv("MC_RPC_TIMEOUT_MS", "700")
    library("10.0.0.1")
    assert os.environ["MC_RPC_TIMEOUT_MS"] == "700"
    assert os.environ["MC_TCP_PROGRESS_TIMEOUT_SEC"] == "2"
    assert "MC_TCP_BIND_ADDRESS" not in os.environ
    library("127.0.0.1")
    assert os.environ["MC_TCP_BIND_ADDRESS"] == "127.0.0.1"


def test_a_limit_that_would_leave_transfers_behind_is_not_honoured(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    required("mooncake")
    monkeypatch.setenv(UNSAFE, "1")
    library("127.0.0.1")
    assert UNSAFE not in os.environ
    assert UNSAFE in caplog.text


def test_a_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mooncake.store", None)
    with pytest.raises(TierError, match="pip install 'mooncake-transfer-engine-non-cuda>="):
        library("127.0.0.1")


def test_what_a_library_needs_of_the_system_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ImportError("libibverbs.so.1: cannot open shared object file", name=name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(TierError, match=r"cannot open shared .*apt-get install libibverbs1"):
        library("127.0.0.1")


@pytest.mark.parametrize(
    ("location", "host", "port"),
    [("master:50051", "master", 50051), ("[::1]:7", "::1", 7), ("10.0.0.1:80", "10.0.0.1", 80)],
)
def test_host_and_port(location: str, host: str, port: int) -> None:
    assert host_port(location) == (host, port)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost", True), ("127.0.0.9", True), ("::1", True), ("10.1.1.1", False), ("m", False)],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) == expected


def test_the_own_address_is_that_of_the_way_to_the_master() -> None:
    assert own_address("127.0.0.1", 50051) == "127.0.0.1"
    with pytest.raises(TierError, match=r"nowhere\.invalid:50051 cannot be reached"):
        own_address("nowhere.invalid", 50051)


def test_a_master_that_is_not_there_is_told_soon() -> None:
    required("mooncake")
    spec = parse(f"mooncake://127.0.0.1:{free_port()}")
    with pytest.raises(TierError, match=r"no connection over tcp .* \(code -"):
        connect(library("127.0.0.1"), spec)


class Registry:
    """What the library is told of memory."""

    def __init__(self, code: int = 0) -> None:
        self.told: list[tuple[int, int]] = []
        self._code = code

    def register_buffer(self, address: int, size_bytes: int) -> int:
        self.told.append((address, size_bytes))
        return self._code


def test_blocks_are_registered_memory_of_one_call_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mooncakelink, "_BLOCK_WAIT_S", 0.01)
    registry = Registry()
    headers = Headers(registry, 2)
    ((base, size),) = registry.told
    assert (base % 4096, size) == (0, 2 * BLOCK_BYTES)
    with headers.lent() as one, headers.lent() as other:
        assert {one.address, other.address} == {base, base + BLOCK_BYTES}
        one.data[:] = b"1" * BLOCK_BYTES
        other.data[:] = b"2" * BLOCK_BYTES
        assert bytes(one.data) == b"1" * BLOCK_BYTES
        with pytest.raises(TierError, match="more calls at once"), headers.lent():
            pass
    with headers.lent() as again:
        assert again.address in (one.address, other.address)


def test_a_block_is_waited_for() -> None:
    headers = Headers(Registry(), 1)
    with headers.lent():
        thread = threading.Thread(target=lambda: [headers.lent().__enter__()])
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
    thread.join(5)
    assert not thread.is_alive()


def test_memory_that_cannot_be_registered_is_an_error() -> None:
    with pytest.raises(TierError, match=r"4096 bytes cannot be registered \(code -600\)"):
        Headers(Registry(-600), 1)
