"""B15: an engine that asks nothing stays registered; one that stood still is back after one miss.

Also its reverse: an engine that will never be cached again does not stay registered.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.asking import stats
from tests.adapter.enginerig import EngineRig, write_model
from tests.adapter.hostlike import Output, Report, tokens
from tests.adapter.rankrig import RankRig
from tests.wire.process import ROOT, ServerProcess, wait_until

PROMPT = tokens(30)
IDLE_S = 13.0
"""Longer than every time-out on either side: 10 s for a registration, or for a farewell."""

CHILD = """
import sys
from pathlib import Path
from tests.adapter.enginerig import EngineRig
from tests.adapter.hostlike import tokens

rig = EngineRig(sys.argv[1], Path(sys.argv[2])).register()
rig.run_saved(tokens(30))
session = rig.worker.link.joined.session
for line in sys.stdin:
    word, joined = line.strip(), rig.worker.link.joined
    if word == "session":
        print("same" if joined is not None and joined.session == session else "other", flush=True)
    else:
        print(rig.run(tokens(30)).offered, flush=True)
"""


class Child:
    """An engine in a process of its own, that does what it is told."""

    def __init__(self, server: ServerProcess, model: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, server.url, str(model)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, word: str) -> str:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(word + "\n")
        stdin.flush()
        return stdout.readline().strip()


@pytest.fixture
def children(own_server: ServerProcess, tmp_path: Path) -> Iterator[list[Child]]:
    made = [Child(own_server, write_model(tmp_path / name)) for name in ("a", "b")]
    yield made
    for one in made:
        one.process.send_signal(signal.SIGCONT)
        with one.process:
            one.process.kill()


def test_b15_an_idle_engine_stays_registered_and_one_that_stood_still_misses_once(
    own_server: ServerProcess, children: list[Child]
) -> None:
    """Both over the same time: one asks nothing, one is stopped, and hits again after its miss."""
    idle, stopped = children
    assert [one.ask("run") for one in children] == ["28", "28"]
    os.kill(stopped.process.pid, signal.SIGSTOP)
    time.sleep(IDLE_S)
    assert stats(own_server.side_path, 5.0)["sessions"] == 2  # it has not exited
    assert idle.ask("session") == "same"
    assert idle.ask("run") == "28"
    os.kill(stopped.process.pid, signal.SIGCONT)
    offered = [stopped.ask("run") for _ in range(2)]
    assert offered[0] in ("0", "28")
    if offered[1] != "28":  # it may have to join anew, which takes no longer than this
        assert wait_until(lambda: stopped.ask("run") == "28", 2)
    assert stats(own_server.side_path, 5.0)["sessions"] == 2


def test_b15_an_engine_uncached_for_good_leaves_when_its_promises_are_kept(
    own_server: ServerProcess, tmp_path: Path
) -> None:
    rig = EngineRig(own_server.url, write_model(tmp_path / "m")).register()
    try:
        rig.run_saved(PROMPT)
        request, offered, pages = rig.begin(PROMPT)
        assert offered == 28
        rig.scheduler._engine.run_uncached("the test wants it")
        time.sleep(0.5)
        now = stats(own_server.side_path, 5.0)
        assert (now["sessions"], now["pinned_slots"]) == (1, 7)
        report = Report(request.request_id, PROMPT, pages, 0, len(PROMPT) - offered)
        rig.iterate(Output([report]), forward=lambda: rig.check(PROMPT, pages, 7))
        assert rig.worker.counters()["pages_loaded"] == 7
        assert wait_until(lambda: not stats(own_server.side_path, 5.0)["sessions"], 5)
        assert stats(own_server.side_path, 5.0)["pinned_slots"] == 0
        assert rig.run(tokens(30, seed=3)).offered == 0
    finally:
        rig.close()


def test_b15_a_rank_uncached_for_good_leaves_and_takes_no_promise_along(
    own_server: ServerProcess, tmp_path: Path
) -> None:
    """The leader goes on asking; nothing is offered that the rank would not be there to read."""
    rig = RankRig(own_server.url, write_model(tmp_path / "m"), 2).register()
    try:
        rig.run_saved(PROMPT)
        request, offered, pages = rig.begin(PROMPT)
        assert offered == 28
        rig.followers[0].worker._engine.run_uncached("the test wants it")
        time.sleep(0.5)
        assert rig.stats()["pinned_slots"] == 14
        report = Report(request.request_id, PROMPT, pages, 0, len(PROMPT) - offered)
        rig.iterate(Output([report]), forward=lambda: rig.check(PROMPT, pages, 7))

        def has_left() -> bool:
            assert rig.run(PROMPT).offered == 0
            return rig.stats()["sessions"] == 1

        assert wait_until(has_left, 5)
        assert rig.run(PROMPT).offered == 0
        rig.check_nothing_leased()
    finally:
        rig.close()
