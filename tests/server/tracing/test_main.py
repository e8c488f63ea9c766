"""The traces process: records in, spans out, and why it cannot."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from protocol.extras import install
from protocol.traceparent import SpanRef
from protocol.tracing.export import Span
from server.heartbeat import BEAT
from server.tracing import main
from server.tracing.wire import READY, Record, pack
from tests.wire.process import ROOT, wait_until

RECORD = Record("STORE", 3, 0, str(SpanRef(5, 6)), 10, 20, b"e" * 16, b"", 4, "", {"held": 1}, "")


def test_a_record_becomes_a_child_of_the_span_that_asked() -> None:
    span = main.span_of(RECORD, 77)
    assert span is not None
    assert span.name == "kvkeep.server.store"
    assert (span.ref, span.parent_id) == (SpanRef(5, 77), 6)
    assert (span.begin_ns, span.end_ns, span.kind, span.failed) == (10, 20, "SERVER", "")
    assert span.attributes["kvkeep.request_key"] == 0
    assert span.attributes["kvkeep.held"] == 1
    assert span.attributes["kvkeep.code"] == "OK"
    assert "kvkeep.stop" not in span.attributes


def test_without_a_parent_there_is_none() -> None:
    record = Record("LOOKUP", 3, -1, "nonsense", 10, 20, b"", b"", 0)
    assert main.span_of(record, 77) is None


def test_a_collectors_trouble_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    said = main.Said()
    for _ in range(5):
        said("lost")
    said._next_s = 0.0
    said("lost")
    assert [one.getMessage() for one in caplog.records] == [
        "lost",
        "lost (4 times more since the last such line)",
    ]
    assert caplog.records[0].levelno == logging.WARNING


class Counting:
    """Counts spans; ends the process's loop at the last of them."""

    def __init__(self, last: int) -> None:
        self.num_put, self._last = 0, last

    def put(self, span: Span) -> bool:
        self.num_put += 1
        if self.num_put == self._last:
            raise SystemExit(0)
        time.sleep(0.002)
        return True

    def figures(self) -> dict[str, int]:
        return {"spans_sent": self.num_put}


def test_figures_are_told_while_records_come_without_a_pause(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main, "FIGURES_S", 0.02)
    beats: list[int] = []
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        for _ in range(40):
            ours.send(pack(RECORD))
        begun_s = time.monotonic()
        with pytest.raises(SystemExit):
            main._serve(theirs, Counting(40), lambda: beats.append(1))
        most = 2 + (time.monotonic() - begun_s) / main.FIGURES_S
    assert len(beats) == 40, "one with each turn of the loop"
    lines = capsys.readouterr().out.splitlines()
    assert 2 <= len(lines) <= most
    assert all(line.startswith(READY) for line in lines)


def run(
    tmp_path: Path, sent: list[bytes], environ: dict[str, str], awaited: tuple[str, ...] = ()
) -> tuple[int, str]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    fd = theirs.fileno()
    with ours, theirs, (tmp_path / "said").open("wb+") as said:
        child = subprocess.Popen(
            [sys.executable, "-m", "server.tracing", "--fd", str(fd), "--parent", str(os.getpid())],
            cwd=ROOT,
            stdout=said,
            stderr=said,
            pass_fds=(fd,),
            env={**os.environ, **environ},
        )
        for data in sent:
            ours.send(data)
        path = Path(said.name)
        if awaited:
            wait_until(lambda: all(one in path.read_text() for one in awaited), limit_s=20)
            child.terminate()
        code = child.wait(20)
        return code, path.read_text()


def test_it_counts_says_what_it_cannot_read_and_ends_when_told(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    awaited = ("a record was not understood", READY, BEAT)
    code, said = run(tmp_path, [b"nonsense", pack(RECORD)], {}, awaited)
    assert code == 0
    assert all(one in said for one in awaited)


def test_without_the_package_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry/__init__.py").write_text("raise ImportError('none here')")
    environ = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    code, said = run(tmp_path, [], environ)
    assert code == main.EXIT_REFUSED
    assert said == f"kvkeep: no traces: none here; {install('tracing')}\n"
