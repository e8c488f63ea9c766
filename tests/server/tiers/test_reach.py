"""Why nobody answers: each fault against a socket that has it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from server.tiers import reach
from server.tiers.reach import why_not
from tests.stores import tlsproxy

HOST = "127.0.0.1"


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port where one connection after another is answered."""
    with socket.create_server((HOST, 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(5)
                    answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    assert not thread.is_alive()


def pong(connection: socket.socket) -> None:
    connection.recv(64)
    connection.sendall(b"+PONG\r\n")


def alert(connection: socket.socket) -> None:
    connection.recv(64)
    connection.sendall(bytes([0x15, 3, 1, 0, 2, 2, 70]))


def hang_up(connection: socket.socket) -> None:
    connection.recv(64)


def test_one_that_answers_is_well() -> None:
    with answering(pong) as port:
        assert why_not(HOST, port, has_tls=False) == ""


@pytest.mark.parametrize("answer", [alert, hang_up])
def test_one_that_wants_tls(answer: Callable[[socket.socket], None]) -> None:
    with answering(answer) as port:
        assert "is TLS expected" in why_not(HOST, port, has_tls=False)


@pytest.mark.parametrize("answer", [pong, hang_up])
def test_one_that_has_no_tls(answer: Callable[[socket.socket], None]) -> None:
    with answering(answer) as port:
        assert "does not speak TLS" in why_not(HOST, port, has_tls=True)


def test_nobody_there_no_such_name_and_one_that_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reach, "STEP_S", 0.2)
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        assert why_not(HOST, port, has_tls=False) == "it takes connections and says nothing"
        assert "does not speak TLS" in why_not(HOST, port, has_tls=True)
    assert why_not(HOST, port, has_tls=False) == "connections are refused: nothing listens there"
    assert "name no.such" in why_not("no.such..name", 1, has_tls=False)


@tlsproxy.needs_openssl
def test_a_certificate_that_nobody_we_know_signed(tmp_path: Path) -> None:
    authority = tlsproxy.certified(tmp_path)
    with answering(pong) as behind, tlsproxy.before(behind, tmp_path) as port:
        assert why_not("localhost", port, has_tls=True, authority=str(authority)) == ""
        assert "not accepted: " in why_not("localhost", port, has_tls=True)
        (tmp_path / "empty").write_text("")
        found = why_not("localhost", port, has_tls=True, authority=f"{tmp_path}/empty")
        assert found == f"{tmp_path}/empty holds no certificate"
