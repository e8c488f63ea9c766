"""``kvkeep events``: what is held, what comes and goes, and a server that goes."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner

from protocol.errors import ErrorCode, KvkeepError, ReplyError, RequestError
from protocol.events import KvEvent
from protocol.messages import Clear, ForgottenReply
from server import asking
from server.cli import cli, events, reaching
from server.eventstream import Begun, Current, Page
from tests.server.cli.cached import FIRST, SECOND, Cached, keys_of
from tests.wire.process import ROOT, ServerProcess

SPACE, KEYS = b"n" * 16, [bytes([number]) * 16 for number in (1, 2)]


def test_each_thing_for_programs_and_for_people() -> None:
    rows = [
        events.row(one)
        for one in (
            Begun(7),
            Page(SPACE, ((KEYS[0], b""), (KEYS[1], KEYS[0]))),
            Current(),
            KvEvent(kind="stored", fingerprint=SPACE, keys=b"".join(KEYS), parent=b"p" * 16),
            KvEvent(kind="removed", fingerprint=SPACE, keys=KEYS[0]),
            KvEvent(kind="cleared", fingerprint=SPACE),
        )
    ]
    first, second, name = KEYS[0].hex(), KEYS[1].hex(), SPACE.hex()
    assert rows == [
        {"event": "begin", "cursor": 7},
        {
            "event": "held",
            "fingerprint": name,
            "chunks": [{"key": first, "parent": ""}, {"key": second, "parent": first}],
        },
        {"event": "current"},
        {
            "event": "stored",
            "fingerprint": name,
            "keys": [first, second],
            "parent": (b"p" * 16).hex(),
        },
        {"event": "removed", "fingerprint": name, "keys": [first]},
        {"event": "cleared", "fingerprint": name},
    ]
    assert [events.text(row) for row in rows] == [
        "begin    at event 7",
        "held     6e6e6e6e  2 chunks",
        "current  that was all; what follows happens now",
        "stored   6e6e6e6e  2 chunks after 70707070: 01010101 ...",
        "removed  6e6e6e6e  1 chunk: 01010101",
        "cleared  6e6e6e6e",
    ]
    assert events.text({"event": "away", "reason": "why"}) == "why"


def test_once_tells_what_is_held_and_ends(holding: Cached) -> None:
    url = holding.server.url
    result = CliRunner().invoke(cli, ["events", "--once", "--json", "--endpoint", url])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.output.splitlines()]
    assert [row["event"] for row in rows] == ["begin", "held", "current"]
    held = {chunk["key"]: chunk["parent"] for chunk in rows[1]["chunks"]}
    keys = [key.hex() for key in keys_of(FIRST)]
    assert held.keys() >= set(keys)
    assert [held[key] for key in keys] == ["", *keys[:-1]]
    plain = CliRunner().invoke(cli, ["events", "--once", "--new", "--endpoint", url])
    assert plain.output.startswith("begin ")
    assert len(plain.output.splitlines()) == 1


def test_nobody_there_is_one_line(short_dir: Path) -> None:
    result = CliRunner().invoke(cli, ["events", "--endpoint", f"ipc://{short_dir}/none"])
    assert result.exit_code == 1
    assert result.output.startswith("kvkeep: no answer from ")


def line(running: subprocess.Popen[bytes], limit_s: float = 20.0) -> dict[str, Any]:
    assert running.stdout is not None
    assert select.select([running.stdout], [], [], limit_s)[0]
    found: dict[str, Any] = json.loads(running.stdout.readline())
    return found


def test_it_follows_and_waits_for_a_server_that_went(
    holding: Cached, short_dir: Path, shm_dir: Path
) -> None:
    server, engine = holding.server, holding.engine
    running = subprocess.Popen(
        [sys.executable, "-m", "server", "events", "--json", "--endpoint", server.url],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    try:
        while line(running)["event"] != "current":
            pass
        assert engine.wire.call(Clear(), ForgottenReply).chunks
        assert line(running)["event"] == "cleared"
        keys = keys_of(SECOND)
        engine.save(keys, list(range(len(keys))))
        stored = line(running)
        assert (stored["event"], stored["parent"]) == ("stored", "")
        assert stored["keys"] == [key.hex() for key in keys]
        server.terminate()
        away = line(running)
        assert away["event"] == "away"
        with ServerProcess(short_dir, shm_dir / "b"):
            while (found := line(running))["event"] == "away":
                pass
            assert found["event"] == "begin"
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=20)
            assert (running.returncode, said) == (0, b"")
    finally:
        running.kill()
        running.communicate()


def test_nobody_reads_any_more(holding: Cached) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "server", "events", "--endpoint", holding.server.url]
    try:
        done = subprocess.run(
            command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, timeout=30, check=False
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_reader_that_goes_is_noticed_without_another_event(holding: Cached) -> None:
    code = (
        "import sys\n"
        "from server.cli import cli, events\n"
        "events.WAIT_MS = 200\n"
        "cli(['events', '--new', '--json', '--endpoint', sys.argv[1]])\n"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", code, holding.server.url],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    try:
        assert line(running)["event"] == "begin"
        assert running.stdout is not None
        running.stdout.close()
        assert running.wait(20) == 0
        assert running.stderr is not None
        with running.stderr as said:
            assert said.read() == b""
    finally:
        running.kill()
        running.wait()


class AwayError(Exception):
    """It was shown as away."""


@pytest.mark.parametrize(
    ("error", "is_final"),
    [
        (ReplyError(ErrorCode.UNKNOWN_OPERATION, "no operation 41"), True),
        (RequestError(ErrorCode.NOT_PERMITTED, "not you"), True),
        (ReplyError(ErrorCode.STALE_EPOCH, "another server"), False),
        (ReplyError(ErrorCode.UNAUTHENTICATED, "say HELLO"), False),
        (ReplyError(ErrorCode.DRAINING, "about to end"), False),
        (RequestError(ErrorCode.LIMIT_EXCEEDED, "too many processes"), False),
        (ReplyError(ErrorCode.INTERNAL, "a code of a newer server"), False),
    ],
)
def test_a_refusal_ends_it_and_what_may_change_does_not(
    error: KvkeepError,
    is_final: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refusing(side_path: str, limit_s: float, command: str) -> NoReturn:
        raise error

    def show(found: dict[str, Any]) -> None:
        raise AwayError(found["event"])

    monkeypatch.setattr(asking, "connected", refusing)
    with pytest.raises(SystemExit if is_final else AwayError) as caught:
        events._go_on(reaching.Place("ipc:///x", "/x.side"), True, show)
    said = capsys.readouterr().err
    if is_final:
        assert isinstance(caught.value, SystemExit)
        assert (caught.value.code, said) == (1, f"kvkeep: refused by ipc:///x: {error}\n")
