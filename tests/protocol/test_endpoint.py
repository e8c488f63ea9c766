"""Endpoint URLs: what is read, what is refused and with which words (B46)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import endpoint
from protocol.errors import ConfigError, ErrorCode


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("ipc:///run/kvkeep/kvkeep.sock", "ipc:///run/kvkeep/kvkeep.sock"),
        (" ipc:///a ", "ipc:///a"),
        ("tcp://localhost:5555", "tcp://127.0.0.1:5555"),
        ("tcp://127.0.0.1:1", "tcp://127.0.0.1:1"),
        ("tcp://[::1]:65535", "tcp://[::1]:65535"),
    ],
)
def test_valid_urls_have_one_normal_form(url: str, normal: str) -> None:
    parsed = endpoint.parse(url)
    assert parsed.url == normal
    assert endpoint.parse(parsed.url) == parsed
    assert parsed.is_tcp == normal.startswith("tcp")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("localhost:5555", "no scheme"),
        ("/run/kvkeep.sock", "no scheme"),
        ("http://localhost:5555", "scheme 'http'"),
        ("inproc://x", "embedded mode"),
        ("inproc://", "for engines only"),
        ("ipc://relative/path", "absolute"),
        ("ipc://", "absolute"),
        ("ipc:///folder/", "no file"),
        ("ipc:///a\0b", "no file"),
        ("ipc:///" + "x" * 200, "at most 102 fit"),
        ("ipc:///\ud800", "not valid text"),
        ("tcp://::1:5555", "brackets"),
        ("tcp://[::1:5555", "host and a port"),
        ("tcp://localhost", "host and a port"),
        ("tcp://localhost:", "port ''"),
        ("tcp://localhost:0", "port '0'"),
        ("tcp://localhost:65536", "port '65536'"),
        ("tcp://localhost:-1", "port '-1'"),
        ("tcp://localhost:٥", "port '٥'"),
        ("tcp://0.0.0.0:5555", "loopback"),
        ("tcp://10.0.0.1:5555", "loopback"),
        ("tcp://*:5555", "loopback"),
    ],
)
def test_b46_a_wrong_url_is_refused_and_the_valid_forms_are_named(url: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        endpoint.parse(url)
    assert caught.value.code == ErrorCode.INVALID_URL
    assert why in caught.value.message
    assert "tcp://127.0.0.1:PORT" in caught.value.message


@given(st.text(max_size=300))
def test_any_text_is_an_endpoint_or_a_config_error(text: str) -> None:
    for url in (text, "ipc://" + text, "tcp://" + text, "tcp://localhost:" + text):
        try:
            parsed = endpoint.parse(url)
        except ConfigError as caught:
            error = caught
        else:
            assert endpoint.parse(parsed.url) == parsed
            continue
        assert error.code == ErrorCode.INVALID_URL


@pytest.mark.parametrize(
    ("environ", "folders", "expected"),
    [
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, {"/run/user/7"}, "/run/user/7/kvkeep"),
        ({"XDG_RUNTIME_DIR": "/run/user/7/"}, {"/run/user/7", "/run/kvkeep"}, "/run/user/7/kvkeep"),
        ({"XDG_RUNTIME_DIR": "/gone"}, {"/run/kvkeep"}, "/run/kvkeep"),
        ({"XDG_RUNTIME_DIR": "relative"}, {"relative"}, "/tmp/kvkeep-7"),
        ({"XDG_RUNTIME_DIR": ""}, set(), "/tmp/kvkeep-7"),
        ({}, {"/run/kvkeep"}, "/run/kvkeep"),
        ({}, set(), "/tmp/kvkeep-7"),
    ],
)
def test_the_default_follows_the_surroundings(
    environ: dict[str, str], folders: set[str], expected: str
) -> None:
    assert endpoint.runtime_dir(environ, 7, folders.__contains__) == expected
    url = endpoint.default_url(environ, 7, folders.__contains__)
    assert url == f"ipc://{expected}/kvkeep.sock"
    assert endpoint.parse(url).path == f"{expected}/kvkeep.sock"


def test_side_socket_and_lock_lie_beside_the_ipc_socket() -> None:
    parsed = endpoint.parse("ipc:///a/b.sock")
    assert parsed.side_path("/run/x") == "/a/b.sock.side"
    assert parsed.lock_path("/run/x") == "/a/b.sock.lock"


def test_a_tcp_endpoint_has_them_in_the_runtime_folder() -> None:
    parsed = endpoint.parse("tcp://localhost:5555")
    assert parsed.side_path("/run/x") == "/run/x/tcp-5555.side"
    assert parsed.lock_path("/run/x") == "/run/x/tcp-5555.lock"
