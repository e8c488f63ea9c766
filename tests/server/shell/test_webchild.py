"""The process that serves pages: started again, said once why not, ended with the server."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from server.shell import sidechild
from server.shell.complaints import Complaints
from server.shell.webchild import WebChild, web_environment
from tests.wire.process import ROOT, is_alive, wait_until

LISTENS = """
import signal, sys
print("kvkeep pages: http://" + sys.argv[sys.argv.index("--listen") + 1] + "/", flush=True)
signal.pause()
"""
REFUSED = """
import sys
print("kvkeep: no pages at 127.0.0.1:1: it is taken", file=sys.stderr)
raise SystemExit(3)
"""


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules that a child can be."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def child(scripts: Path, script: str, complaints: Complaints) -> WebChild:
    (scripts / "fakeweb.py").write_text(script, encoding="utf-8")
    return WebChild("/run/x.side", "127.0.0.1:0", complaints, "fakeweb", first_backoff_s=0.02)


def test_it_listens_is_started_again_and_ends(scripts: Path) -> None:
    complaints = Complaints()
    web = child(scripts, LISTENS, complaints)
    told: list[str] = []
    web.listens = told.append
    assert web.figures() == {"web_pid": 0, "web_restarts": 0}
    web.start()
    assert wait_until(lambda: web.url == "http://127.0.0.1:0/")
    first = web.figures()["web_pid"]
    os.kill(first, signal.SIGKILL)
    assert wait_until(lambda: web.figures()["web_pid"] not in (0, first) and web.url != "")
    second = web.figures()["web_pid"]
    assert web.figures()["web_restarts"] == 1
    assert complaints.counts() == {"web_lost": 1}
    assert told == ["http://127.0.0.1:0/"], "the same address is told once"
    assert web.stop(10)
    assert not is_alive(second)
    assert not web.is_alive()
    assert complaints.counts() == {"web_lost": 1}


def test_why_it_cannot_listen_is_said_once(scripts: Path, caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(interval_s=0)
    web = child(scripts, REFUSED, complaints)
    web.start()
    assert wait_until(lambda: web.starts >= 3)
    assert web.stop(10)
    assert complaints.counts() == {"web_refused": 1}
    [line] = [one.getMessage() for one in caplog.records]
    assert "no pages at 127.0.0.1:1: it is taken: the server serves on" in line


def test_what_it_logs_comes_through_and_its_end_is_told(scripts: Path) -> None:
    complaints = Complaints(interval_s=0)
    web = child(scripts, "print('kvkeep WARNING late')\nraise SystemExit(7)", complaints)
    web.start()
    assert wait_until(lambda: complaints.counts().get("web_lost", 0) >= 1)
    assert web.stop(10)
    assert complaints.counts()["web_said"] >= 1


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("print('late', flush=True)\nraise SystemExit(7)", "ended with 7: late; another"),
        (
            "import time\nprint('slow', flush=True)\ntime.sleep(0.6)\nraise SystemExit(7)",
            "ended with 7; another",
        ),
    ],
)
def test_what_it_said_long_before_is_not_why_it_ended(
    script: str,
    told: str,
    scripts: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sidechild, "LAST_LINE_S", 0.3)
    web = child(scripts, script, Complaints(interval_s=0))
    web.start()
    # Of one of them: the end of a process may take a while on a machine that is busy.
    assert wait_until(lambda: any(told in one.getMessage() for one in list(caplog.records)))
    assert web.stop(10)


def test_one_that_does_not_end_is_killed(scripts: Path) -> None:
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)" + LISTENS
    web = child(scripts, deaf, Complaints())
    web.start()
    assert wait_until(lambda: web.url != "")
    pid = web.figures()["web_pid"]
    assert web.stop(10)
    assert not is_alive(pid)


def test_one_that_was_never_started_has_ended() -> None:
    web = WebChild("/run/x.side", "127.0.0.1:0", Complaints())
    assert web.stop(1)


def test_it_gets_no_credentials_and_finds_this_installation() -> None:
    environ = {"AWS_SECRET_ACCESS_KEY": "x", "KVKEEP_VALKEY_PASSWORD": "y", "PATH": "/bin"}
    assert web_environment(environ) == {"PATH": "/bin", "PYTHONPATH": str(ROOT)}
    assert web_environment({"PYTHONPATH": "/a"})["PYTHONPATH"] == f"{ROOT}{os.pathsep}/a"
