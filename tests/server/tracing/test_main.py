"""The traces process: records in, spans out, and why it cannot."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.traceparent import SpanRef
from server.tracing import main
from server.tracing.wire import READY, Record, pack
from tests.wire.process import ROOT

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


def run(tmp_path: Path, sent: list[bytes], environ: dict[str, str]) -> tuple[int, str]:
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
        try:
            code = child.wait(1.5 if sent else 20)
        except subprocess.TimeoutExpired:
            child.terminate()
            code = child.wait(20)
        said.seek(0)
        return code, said.read().decode()


def test_it_counts_says_what_it_cannot_read_and_ends_when_told(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    code, said = run(tmp_path, [b"nonsense", pack(RECORD)], {})
    assert code == 0
    assert "a record was not understood" in said
    assert READY in said


def test_without_the_package_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry/__init__.py").write_text("raise ImportError('none here')")
    environ = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    code, said = run(tmp_path, [], environ)
    assert code == main.EXIT_REFUSED
    assert said == "kvkeep: no traces: none here; pip install 'kvkeep[tracing]'\n"
