"""TLS before a server that has none: what comes in over TLS goes on in the clear, and back.

With an authority and a certificate of its own, made by openssl. Runs in the pytest process, two
threads for each connection; all of them end with the block.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="the command openssl is not installed"
)

# Python 3.13 checks certificates strictly (RFC 5280): an authority without its key usage, or one
# that is not told apart by identifiers, is refused. What openssl adds by itself depends on the
# machine's own settings, so all of it is said here.
_AUTHORITY = """basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
"""
_NAMES = """basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature, keyEncipherment
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = DNS:localhost, IP:127.0.0.1
"""


def certified(folder: Path) -> Path:
    """Makes an authority, and a certificate for localhost in its name.

    Returns:
        The authority's certificate, PEM; beside it ``server.crt`` and ``server.key``.
    """
    new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes"]
    sign = ["openssl", "x509", "-req", "-days", "2"]
    by_authority = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"]
    (folder / "authority").write_text(_AUTHORITY)
    (folder / "names").write_text(_NAMES)
    for command in (
        [*new, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.csr"],
        [*new, "-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.csr"],
        [*sign, "-in", "ca.csr", "-signkey", "ca.key", "-extfile", "authority", "-out", "ca.crt"],
        [*sign, "-in", "server.csr", *by_authority, "-extfile", "names", "-out", "server.crt"],
    ):
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
    return folder / "ca.crt"


@contextmanager
def before(port: int, folder: Path) -> Iterator[int]:
    """A port that speaks TLS for the server at another.

    Args:
        port: of the server, on loopback.
        folder: where ``certified`` put the certificate.

    Yields:
        The port.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    links: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def serve() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            try:
                far = context.wrap_socket(plain, server_side=True)
            except OSError:  # a client that does not like our certificate
                plain.close()
                continue
            near = socket.create_connection(("127.0.0.1", port))
            links.extend((far, near))
            for pair in ((far, near), (near, far)):
                threads.append(threading.Thread(target=_pump, args=pair))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=serve)
        accepting.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(10)
            for link in links:
                with suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(10)
            for link in links:
                link.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
