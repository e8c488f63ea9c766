"""Which setting names the server, and that each odd one is refused by its name (B46)."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from adapter.serverurl import (
    ENV_LMCACHE_FILE,
    ENV_LMCACHE_URL,
    ENV_SERVER_URL,
    STORES,
    check_url,
    read_file,
    read_flat_yaml,
    resolve_server_url,
)
from protocol.errors import ConfigError, ErrorCode
from tests.adapter.hostlike import Args, ConnectorSettings


def url_args(url: str | None) -> Args:
    return Args(kv_connector_config=ConnectorSettings(url))


def test_precedence(tmp_path: Path) -> None:
    file = tmp_path / "lmcache.yaml"
    file.write_text("chunk_size: 256\nremote_url: 'tcp://localhost:4'\n")
    environ = {ENV_LMCACHE_FILE: str(file)}
    args = url_args(None)
    found = resolve_server_url(args, environ)
    assert found.url == "tcp://127.0.0.1:4"
    assert "remote_url" in found.source
    assert str(file) in found.source
    environ[ENV_LMCACHE_URL] = "tcp://localhost:3"
    assert resolve_server_url(args, environ).url == "tcp://127.0.0.1:3"
    environ[ENV_SERVER_URL] = "tcp://localhost:2"
    assert resolve_server_url(args, environ).source == ENV_SERVER_URL
    found = resolve_server_url(url_args("tcp://localhost:1"), environ)
    assert found.url == "tcp://127.0.0.1:1"
    assert found.source == "kv_connector_config.server_url"


def test_a_connector_class_may_have_a_default_of_its_own() -> None:
    """It stands before LMCache's settings, and behind those that name a server of kvkeep's."""
    environ = {ENV_LMCACHE_URL: "tcp://localhost:3", ENV_LMCACHE_FILE: "/nowhere"}
    found = resolve_server_url(url_args(None), environ, "inproc://")
    assert (found.is_embedded, found.source) == (True, "the connector class")
    environ[ENV_SERVER_URL] = "tcp://localhost:2"
    assert resolve_server_url(url_args(None), environ, "inproc://").source == ENV_SERVER_URL
    found = resolve_server_url(url_args("tcp://localhost:1"), environ, "inproc://")
    assert found.url == "tcp://127.0.0.1:1"


def test_default_without_any_setting(tmp_path: Path) -> None:
    found = resolve_server_url(object(), {"XDG_RUNTIME_DIR": str(tmp_path)})
    assert found.source == "default"
    assert found.url == f"ipc://{tmp_path}/kvkeep/kvkeep.sock"


def test_embedded_mode_has_one_spelling() -> None:
    found = resolve_server_url(url_args(" inproc:// "), {})
    assert (found.url, found.is_embedded) == ("inproc://", True)
    assert resolve_server_url(object(), {ENV_SERVER_URL: "inproc://"}).is_embedded
    assert not check_url("tcp://localhost:1", "test").is_embedded
    for wrong in ("inproc://x", "inproc:", "INPROC://"):
        with pytest.raises(ConfigError, match="or inproc:// for"):
            check_url(wrong, "test")


@pytest.mark.parametrize(
    "url", ["", "  ", "localhost:5555", "tcp://::1:5555", "lm://localhost:1", "ipc://relative"]
)
@pytest.mark.parametrize("name", [ENV_SERVER_URL, ENV_LMCACHE_URL])
def test_odd_url_in_the_environment(url: str, name: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        resolve_server_url(object(), {name: url})
    assert caught.value.code == ErrorCode.INVALID_URL
    assert "tcp://127.0.0.1:PORT" in caught.value.message


def test_odd_url_in_the_connector_config() -> None:
    with pytest.raises(ConfigError, match=r"kv_connector_config\.server_url"):
        resolve_server_url(url_args(""), {ENV_SERVER_URL: "tcp://localhost:2"})


def test_odd_url_in_the_file_names_file_and_key(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("server_url: lm://host:1\n")
    with pytest.raises(ConfigError, match=r"key server_url of .*c\.yaml"):
        resolve_server_url(object(), {ENV_LMCACHE_FILE: str(file)})


def test_a_store_in_the_file_is_the_servers_and_no_servers_url(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    environ = {ENV_LMCACHE_FILE: str(file), "XDG_RUNTIME_DIR": str(tmp_path)}
    for kind in STORES:
        file.write_text(f"remote_url: {kind}://host:1\n")
        assert resolve_server_url(object(), environ).source == "default"
    for text in ("remote_url: lm://host:1\n", "remote_url: host:1\n", "server_url: redis://h:1\n"):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"_url of .*c\.yaml"):
            resolve_server_url(object(), environ)


def test_missing_or_oversized_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=ENV_LMCACHE_FILE):
        resolve_server_url(object(), {ENV_LMCACHE_FILE: str(tmp_path / "none.yaml")})
    large = tmp_path / "large"
    large.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(ConfigError, match="SETTING"):
        read_file(str(large), "SETTING")


def no_yaml(name: str) -> object:
    raise ImportError(name)


def test_flat_yaml_without_a_library() -> None:
    text = (
        "# comment: x\nserver_url: ipc:///a#b  # trailing\nquoted: 'a # b'\nnone: ~\nempty:\n"
        '  nested: 1\nno colon\nurl:notakey\n"\n'
    )
    assert read_flat_yaml(text, no_yaml) == {
        "server_url": "ipc:///a#b",
        "quoted": "a # b",
        "none": None,
        "empty": None,
    }


def test_flat_yaml_with_whatever_is_installed() -> None:
    assert read_flat_yaml("server_url: tcp://localhost:1\n")["server_url"] == "tcp://localhost:1"


@pytest.mark.parametrize("error", [ValueError("month must be in 1..12"), RecursionError()])
def test_a_file_that_a_library_chokes_on_is_read_by_lines(error: Exception) -> None:
    def fail(text: str) -> object:
        raise error

    library = SimpleNamespace(safe_load=fail)
    text = "day: 2024-99-99\nserver_url: tcp://localhost:1\n"
    assert read_flat_yaml(text, lambda name: library)["server_url"] == "tcp://localhost:1"


def test_a_pipe_does_not_keep_the_engine_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="no regular file"):
        read_file(str(tmp_path / "pipe"), "SETTING")


@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_name_of_a_file_is_none(value: str, tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    default = resolve_server_url(object(), environ)
    assert resolve_server_url(object(), {**environ, ENV_LMCACHE_FILE: value}) == default
