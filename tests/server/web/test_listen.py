"""Addresses as operators write them, and which Host headers a page on loopback answers."""

from __future__ import annotations

import pytest

from server.web.listen import Listen, parse


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("9177", "127.0.0.1", 9177),
        ("0", "127.0.0.1", 0),
        (" 0.0.0.0:80 ", "0.0.0.0", 80),
        ("[::1]:9177", "::1", 9177),
        ("[::]:9177", "::", 9177),
        ("node-7.cluster:65535", "node-7.cluster", 65535),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    assert parse(text) == Listen(host, port)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "a port is a number"),
        ("localhost", "a port is a number"),
        ("127.0.0.1:", "a port is a number"),
        ("127.0.0.1:70000", "a port is a number"),
        ("127.0.0.1:-1", "a port is a number"),
        ("١٢:٣", "a port is a number"),
        ("::1:9177", "in brackets"),
        ("[127.0.0.1]:1", "no IPv6 address"),
        ("a b:1", "neither an address nor a name"),
        (":80", "neither an address nor a name"),
        ("node..cluster:80", "neither an address nor a name"),  # no resolver is asked for these
        ("node-.cluster:80", "neither an address nor a name"),
        (f"{'n' * 64}.cluster:80", "neither an address nor a name"),
        (f"{'n.' * 127}n:80", "neither an address nor a name"),
        ("http://x:80", "in brackets"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(text: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        parse(text)


def test_a_url_has_brackets_round_ipv6_and_the_port_that_was_chosen() -> None:
    assert Listen("::1", 0).netloc(4321) == "[::1]:4321"
    assert Listen("127.0.0.1", 9177).netloc() == "127.0.0.1:9177"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_on_loopback_only_names_of_loopback_are_answered(host: str) -> None:
    here = Listen(host, 9177)
    for good in (
        "localhost",
        "localhost:1",
        "LOCALHOST.:9",
        "127.0.0.1:9177",
        "[::1]:9177",
        "[::1]",
    ):
        assert here.admits(good), good
    for bad in ("", "evil.example:9177", "127.0.0.1.evil.example", "192.168.1.2", "[::2]:1", "::1"):
        assert not here.admits(bad), bad


def test_beyond_loopback_every_name_is_answered() -> None:
    assert Listen("0.0.0.0", 9177).admits("node-7:9177")
    assert Listen("node-7", 9177).admits("")
