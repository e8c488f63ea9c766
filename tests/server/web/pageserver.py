"""A real ``python -m server.web`` process for tests, and a browser's part of HTTP."""

from __future__ import annotations

import http.client
import json
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from tests.wire.process import ROOT

START_LIMIT_S = 20.0
WAIT_S = 10.0


class Pages:
    """What is served at an address.

    Args:
        url: as the process says it.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.port = urlsplit(url).port or 0

    def get(
        self, path: str, headers: dict[str, str] | None = None, method: str = "GET"
    ) -> tuple[int, bytes]:
        """Status and content."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request(method, path, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def json(self, path: str) -> Any:
        """Content, parsed, whatever the status."""
        return json.loads(self.get(path)[1])

    def metrics(self) -> dict[str, float]:
        """Samples of /metrics by name and labels, as they stand there."""
        code, content = self.get("/metrics")
        assert code == 200
        lines = [line for line in content.decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@contextmanager
def serving(side_path: str, *arguments: str) -> Iterator[tuple[Pages, subprocess.Popen[bytes]]]:
    """The process, on a port that the kernel chooses, ended when the block is left."""
    command = [sys.executable, "-m", "server.web", "--side", side_path]
    command += ["--listen", "127.0.0.1:0", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            poller = select.poll()
            poller.register(process.stdout, select.POLLIN)
            assert poller.poll(START_LIMIT_S * 1000), "it says nothing"
            line = process.stdout.readline().decode()
            assert line.startswith("kvkeep pages: http://127.0.0.1:"), line
            yield Pages(line.removeprefix("kvkeep pages: ").strip()), process
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
