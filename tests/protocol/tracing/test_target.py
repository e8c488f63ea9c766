"""Addresses of collectors: which are none, and what of them is never told."""

from __future__ import annotations

import errno
import os

import pytest

from protocol.tracing import target

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318"),
        (" https://me:se@cret@collector/otlp/ ", "https://collector/otlp"),
        ("HTTP://h:1/?key=secret@x#secret", "http://h:1"),
        ("http://[::1]:4318/", "http://[::1]:4318"),
        ("http://h/a\x1b[2J", "http://h/a\\x1b[2J"),
    ],
)
def test_an_address_is_told_without_user_password_and_query(url: str, told: str) -> None:
    assert target.address({ENDPOINT: url}) == told


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("localhost:4318", "localhost:4318"),
        ("me:secret@localhost:4318", "localhost:4318"),
        ("grpc://me:secret@h:4317?secret", "grpc://h:4317"),
        ("http://", "http://"),
        ("http://h:x", "http://h:x"),
        ("http://[::1", "http://[::1"),
        ("me:sec?ret@h", "an address that is none"),
        ("h:1/?key=a@secret", "an address that is none"),
    ],
)
def test_what_is_none_is_refused_in_one_line(url: str, shown: str) -> None:
    with pytest.raises(ValueError, match=ENDPOINT) as refused:
        target.address({ENDPOINT: url})
    expected = f"{ENDPOINT} is {shown}: expected http://HOST:PORT or https://…"
    assert str(refused.value) == expected


def test_the_address_of_traces_alone_holds_over_the_common_one() -> None:
    assert target.address({}) == ""
    assert target.address({ENDPOINT: "h", TRACES: "http://b"}) == "http://b"
    with pytest.raises(ValueError, match=f"{TRACES} is h:"):
        target.address({ENDPOINT: "http://b", TRACES: "h"})


def wrapped(inner: Exception) -> Exception:
    """As libraries do it: one inside another's arguments, with a cause of its own."""
    outer = OSError(RuntimeError("Max retries exceeded with url: /secret"))
    outer.args[0].reason = inner
    return outer


def test_the_systems_word_is_found_under_what_libraries_say() -> None:
    refused = ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    assert target.cause(wrapped(refused)) == "connection refused"
    assert target.cause(wrapped(OSError(-2, "Name or service not known"))) == (
        "Name or service not known"
    )
    assert target.cause(wrapped(type("ReadTimeout", (Exception,), {})())) == "timed out"


def test_what_has_no_such_word_is_told_as_it_is_without_passwords() -> None:
    assert target.cause(ValueError("bad\nhttp://me:secret@h")) == "bad http://h"
    assert target.cause(ValueError()) == "ValueError"


def test_errors_that_lead_to_each_other_end() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__context__, second.__context__ = second, first
    assert target.cause(first) == "a"


def test_a_session_that_the_environment_names_is_left_to_it() -> None:
    name = "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER"
    assert target.Watched().session({name: "gcp"}) is None
