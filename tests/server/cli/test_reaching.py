"""What commands that ask a server share: where it is, and how they end without one."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from protocol.messages import Inspect
from server.asking import Asker
from server.cli import reaching
from server.sizes import invalid
from tests.wire.process import ServerProcess


def ended(capsys: pytest.CaptureFixture[str], caught: pytest.ExceptionInfo[SystemExit]) -> str:
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return f"{caught.value.code} {said.err}"


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert reaching.place("ipc:///a/b") == reaching.Place("ipc:///a/b", "/a/b.side")
    monkeypatch.setenv("KVKEEP_ENDPOINT", "ipc:///c/d")
    assert reaching.place(None).url == "ipc:///c/d"
    with pytest.raises(SystemExit) as caught:
        reaching.place("somewhere")
    assert ended(capsys, caught).startswith("2 kvkeep: INVALID_URL: endpoint: server URL")
    # What else is wrong is for launch to say, and a file is read only where it may be needed.
    monkeypatch.setenv("KVKEEP_L1_SIZE", "wrong")
    assert reaching.place(None).url == "ipc:///c/d"
    monkeypatch.setenv("LMCACHE_CONFIG_FILE", "/nowhere")
    assert reaching.place("ipc:///a/b").url == "ipc:///a/b"
    with pytest.raises(SystemExit) as caught:
        reaching.place(None)
    assert ended(capsys, caught).startswith("2 kvkeep: INVALID_CONFIG: LMCACHE_CONFIG_FILE=")


def test_nobody_and_a_refusal_are_told_apart(
    short_dir: Path, shm_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"ipc://{short_dir}/none"
    with pytest.raises(SystemExit) as caught, reaching.connected(reaching.place(url), "test"):
        pass
    assert f"1 kvkeep: no answer from {url}: no server listens" in ended(capsys, caught)
    with ServerProcess(short_dir, shm_dir / "a") as server:
        at = reaching.place(server.url)
        with pytest.raises(SystemExit) as caught, reaching.connected(at, "test") as asker:
            asker.ask(Inspect(fingerprint=bytes(16), keys=bytes(16)), 5.0)
        said = ended(capsys, caught)
        assert said.startswith(f"1 kvkeep: refused by {server.url}: UNKNOWN_NAMESPACE")
        # What is wrong with an option is no fault of the server's.
        with pytest.raises(ConfigError), reaching.connected(at, "test"):
            raise invalid("x", "y", "z")
        begun_s = time.monotonic()
        with pytest.raises(SystemExit) as caught, reaching.connected(at, "test") as asker:
            lose(server, asker)
        assert time.monotonic() - begun_s < 5
        assert f"no answer from {server.url}: the server ended" in ended(capsys, caught)


def test_a_server_that_is_stopped_leads_to_doctor(
    short_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = reaching.Place("ipc:///x", str(short_dir / "x.side"))
    with pytest.raises(SystemExit) as caught, reaching.connected(at, "test"):
        raise AssertionError("nobody listens")
    assert "doctor" not in ended(capsys, caught)
    kind = socket.SOCK_SEQPACKET
    with socket.socket(socket.AF_UNIX, kind) as silent, pytest.MonkeyPatch.context() as patch:
        silent.bind(at.side_path)
        silent.listen()
        patch.setattr(reaching, "LIMIT_S", 0.1)
        with pytest.raises(SystemExit) as caught, reaching.connected(at, "test"):
            raise AssertionError("nobody answers")
    said = ended(capsys, caught)
    assert said.strip() == "1 kvkeep: no answer from ipc:///x: timed out; kvkeep doctor says more"


def lose(server: ServerProcess, asker: Asker) -> None:
    """Asks a server that is gone."""
    server.kill()
    asker.status(10.0)


def test_one_object_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    reaching.show({"a": 1})
    assert json.loads(capsys.readouterr().out) == {"a": 1}
