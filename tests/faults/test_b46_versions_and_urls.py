"""B46: other versions, operations, fields and URLs are refused by name; nobody else notices."""

from __future__ import annotations

import os
from pathlib import Path

import msgpack
import msgspec
import pytest

from adapter.config import make_kv_connector_config
from adapter.scheduler import KvkeepConnectorScheduler
from adapter.worker import KvkeepConnectorWorker
from protocol import side
from protocol.errors import ConfigError, ErrorCode
from protocol.messages import (
    REQUEST_TYPES,
    VERSION_MAJOR,
    VERSION_MINOR,
    Hello,
    HelloReply,
    Op,
    Request,
)
from tests.adapter.hostlike import Args, ConnectorSettings
from tests.faults.bystander import Bystander, RawPeer, ask_plain, error_of
from tests.protocol.strategies import valid_plain
from tests.wire.client import Engine, SideClient
from tests.wire.process import ServerProcess


@pytest.mark.parametrize("major", [VERSION_MAJOR - 1, VERSION_MAJOR + 1, 65_535])
def test_another_major_is_refused_on_both_sockets(
    server: ServerProcess, bystander: Bystander, major: int
) -> None:
    stranger = SideClient(server.side_path)
    answer = stranger.hello(os.urandom(16), major)
    assert isinstance(answer, side.SideError)
    assert answer.code == ErrorCode.VERSION_MISMATCH
    assert f"{VERSION_MAJOR}.0" in answer.message
    stranger.close()
    with Engine(server.url, server.side_path) as engine:
        hello = Hello(token=engine.welcome.token, instance=engine.instance, major=major, minor=0)
        body = msgspec.to_builtins(hello, builtin_types=(bytes,))
        error = error_of(engine.wire, Op.HELLO, body)
        assert error.code == ErrorCode.VERSION_MISMATCH
        assert error.detail == {"major": VERSION_MAJOR, "minor": VERSION_MINOR}
        assert not error.retryable
    bystander.check()


def test_a_newer_minor_is_spoken_to_in_ours(server: ServerProcess) -> None:
    with Engine(server.url, server.side_path) as engine:
        hello = Hello(token=engine.welcome.token, instance=engine.instance, major=1, minor=999)
        body = msgspec.to_builtins(hello, builtin_types=(bytes,))
        reply = ask_plain(engine.wire, Op.HELLO, body)
        assert isinstance(reply.body, HelloReply)
        assert (reply.body.major, reply.body.minor) == (VERSION_MAJOR, VERSION_MINOR)


@pytest.mark.parametrize("op", [0, 7, 99, 2**32 - 1])
def test_an_unknown_operation_is_named_with_the_known_ones(
    server: ServerProcess, bystander: Bystander, op: int
) -> None:
    with Engine(server.url, server.side_path) as engine:
        error = error_of(engine.wire, op, {})
        assert error.code == ErrorCode.UNKNOWN_OPERATION
        assert str(op) in error.message
        assert all(str(known) in error.message for known in REQUEST_TYPES)
    bystander.check()


@pytest.mark.parametrize("kind", list(REQUEST_TYPES.values()), ids=lambda kind: kind.__name__)
def test_one_field_more_or_less_is_malformed_and_has_no_effect(
    server: ServerProcess, bystander: Bystander, kind: type[Request]
) -> None:
    fields = msgspec.structs.fields(kind)
    whole = valid_plain(kind)
    required = [field.encode_name for field in fields if field.required]
    with Engine(server.url, server.side_path) as engine:
        for changed, word in [
            ({**whole, "newer_field": 1}, "newer_field"),
            *(({k: v for k, v in whole.items() if k != name}, name) for name in required),
            *(({**whole, name: [b"?"]}, name) for name in required),
        ]:
            error = error_of(engine.wire, int(kind.op), changed)
            assert error.code == ErrorCode.MALFORMED, changed
            assert word in error.message
    bystander.check()


def test_the_samples_themselves_decode(server: ServerProcess) -> None:
    """Else the test above would see its errors for another reason."""
    with Engine(server.url, server.side_path) as engine:
        for kind in REQUEST_TYPES.values():
            if kind is Hello:
                continue
            reply = ask_plain(engine.wire, int(kind.op), valid_plain(kind))
            assert reply.error is None or reply.error.code != ErrorCode.MALFORMED, kind


def test_before_hello_there_is_one_answer(server: ServerProcess, bystander: Bystander) -> None:
    peer = RawPeer(server.url)
    for kind in REQUEST_TYPES.values():
        if kind is Hello:
            continue
        frame = msgpack.packb([int(kind.op), 1, b"", b"", 0, valid_plain(kind)])
        error = peer.ask(frame).error
        assert error is not None
        assert error.code == ErrorCode.UNAUTHENTICATED, kind
    peer.close()
    bystander.check()


ODD_URLS = [
    "",
    " ",
    "localhost:5555",
    "5555",
    "tcp://",
    "tcp://::1:5555",
    "tcp://localhost",
    "tcp://localhost:0",
    "tcp://localhost:65536",
    "tcp://localhost:http",
    "tcp://10.0.0.1:5555",
    "ipc://relative/path",
    "ipc:///" + "x" * 200,
    "inproc://kvkeep",
    "https://localhost:5555",
]


@pytest.mark.parametrize("url", ODD_URLS)
def test_odd_urls_fail_at_start_and_name_what_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    for name in ("TRTLLM_KVKEEP_SERVER_URL", "LMCACHE_SERVER_URL", "LMCACHE_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    config = tmp_path / "lmcache.yaml"
    config.write_text(f'remote_url: "{url}"\nserver_url: "{url}"\n')

    def refused(settings: ConnectorSettings) -> None:
        for kind in (KvkeepConnectorScheduler, KvkeepConnectorWorker):
            with pytest.raises(ConfigError) as caught:
                kind(Args(kv_connector_config=settings))
            assert caught.value.code == ErrorCode.INVALID_URL
            assert "ipc:///absolute/path" in caught.value.message

    refused(ConnectorSettings(url))
    for name in ("TRTLLM_KVKEEP_SERVER_URL", "LMCACHE_SERVER_URL"):
        monkeypatch.setenv(name, url)
        refused(ConnectorSettings())
        monkeypatch.delenv(name)
    with pytest.raises(ConfigError):
        make_kv_connector_config(url)
