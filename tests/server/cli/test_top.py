"""``kvkeep top``: one interval, lines for programs, a terminal, Ctrl-C, and a server that goes."""

from __future__ import annotations

import errno
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from click.testing import CliRunner

from server import asking
from server.cli import cli, reaching, top
from server.cli.rates import Moment
from tests.server.cli.cached import FIRST, Cached, keys_of
from tests.server.cli.told import COPIER, ENGINE, STATS, TIER, reply
from tests.server.test_remarks import QUOTA
from tests.wire.process import ROOT


def program(url: str, *arguments: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "server", "top", "--endpoint", url, "--interval", "0.2", *arguments],
        cwd=ROOT,
        stdout=stdout,
        stderr=subprocess.PIPE,
    )


def line(running: subprocess.Popen[bytes], limit_s: float = 20.0) -> dict[str, Any]:
    """The next object."""
    assert running.stdout is not None
    assert select.select([running.stdout], [], [], limit_s)[0]
    found = json.loads(running.stdout.readline())
    assert isinstance(found, dict)
    return found


def ended(running: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=20)
    return running.returncode, said


def test_one_interval_has_what_the_client_did_in_it(
    holding: Cached, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Moment] = []
    real = top.look

    def look(asker: asking.Asker) -> Moment:
        """Between the first look and the second one the client asks, however long each takes."""
        if looks:
            for number in range(3):
                holding.engine.lookup(keys_of(FIRST), request=number + 1)
        looks.append(real(asker))
        return looks[-1]

    with monkeypatch.context() as patch:
        patch.setattr(top, "look", look)
        told = holding.told("top", "--once", "--interval", "0.2")
    assert len(looks) == 2
    rates = told["rates"]
    assert (rates["requested_chunks"], rates["hit_chunks"]) == (15, 15)
    [row] = rates["engines"]
    assert (row["pid"], row["requested_chunks"], row["hit_chunks"]) == (os.getpid(), 15, 15)
    assert told["l1"]["chunks"] == 7
    shown = holding.run("top", "--once", "--interval", "0.2")
    assert shown.exit_code == 0
    assert "since the start 100.0 %" in shown.output
    refused = holding.run("top")
    assert refused.exit_code == 2
    assert "--once or --json" in refused.output


def test_lines_for_programs_until_ctrl_c_and_beyond_the_server(holding: Cached) -> None:
    running = program(holding.server.url, "--json")
    try:
        assert line(running)["server"]["pid"] == holding.server.pid
        assert line(running)["reasons"] == []
        holding.server.kill()
        while "away" not in (found := line(running)):
            pass
        assert found["away"].startswith(f"no answer from {holding.server.url}: ")
        assert ended(running) == (0, b"")
    finally:
        running.kill()
        running.wait()


def test_it_ends_when_nobody_reads_its_lines_any_more(holding: Cached) -> None:
    running = program(holding.server.url, "--json")
    try:
        assert line(running)["reasons"] == []
        assert running.stdout is not None
        running.stdout.close()
        assert running.wait(20) == 0
        assert running.stderr is not None
        with running.stderr as said:
            assert said.read() == b""
    finally:
        running.kill()
        running.wait()


def test_a_server_that_goes_while_it_is_greeted_is_away_and_no_reader_that_went(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(side_path: str, limit_s: float, command: str) -> NoReturn:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    told = []

    def show(found: dict[str, Any]) -> None:
        told.append(found)
        if len(told) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(asking, "connected", gone)
    with pytest.raises(KeyboardInterrupt):
        top.watch(reaching.Place("ipc:///x", "/x.side"), 0.01, show)
    assert told == [{"away": "no answer from ipc:///x: Broken pipe"}] * 2


def test_on_a_terminal_it_shows_itself_until_ctrl_c(holding: Cached) -> None:
    ours, theirs = pty.openpty()
    running = program(holding.server.url, stdout=theirs)
    try:
        seen = b""
        deadline_s = time.monotonic() + 20
        while b"chunks/s loaded" not in seen and time.monotonic() < deadline_s:
            if select.select([ours], [], [], 0.5)[0]:
                seen += os.read(ours, 65_536)
        assert b"chunks/s loaded" in seen
        assert ended(running) == (0, b"")
    finally:
        running.kill()
        running.wait()
        os.close(ours)
        os.close(theirs)


def test_nobody_there_is_exit_code_1(short_dir: Path) -> None:
    for arguments in (["--once"], ["--json"]):
        shown = CliRunner().invoke(cli, ["top", "--endpoint", f"ipc://{short_dir}/x", *arguments])
        assert shown.exit_code == 1
        assert shown.output.count("\n") == 1


def test_a_frame_for_people() -> None:
    later = {**STATS, "lookup_chunks": 300, "hit_chunks": 225, "copied_bytes": 24 << 20}
    found = top.frame(Moment(10.0, reply(), STATS), Moment(12.0, reply(), later))
    lines = top.text(found).splitlines()
    assert lines[0] == "kvkeep at ipc:///x, pid 7, up 3h 12m: healthy"
    assert lines[1] == "L1     10 MiB of 64 MiB (15.6 %) in 10 chunks, 3 pinned"
    assert lines[2] == "hits   75.0 % of 50 chunks/s; since the start 75.0 %"
    assert lines[3] == "in     5 MiB/s, 0 chunks/s saved; 0 chunks/s evicted"
    assert any(row.split()[:3] == ["disk", "up", "25.0"] for row in lines)
    assert top.text({"away": "no answer"}) == "no answer"


def test_why_a_tier_is_down_is_in_its_row_and_in_the_first_line() -> None:
    tier = msgspec.structs.replace(TIER, state="down", why="no folder /x")
    now = Moment(12.0, reply(tiers=(tier,)), STATS)
    found = top.frame(Moment(10.0, reply(), STATS), now)
    assert found["rates"]["tiers"][0]["why"] == "no folder /x"
    assert top.text(found).splitlines()[0].endswith(": tier disk is down: no folder /x")


def test_at_three_in_the_morning_each_trouble_has_its_line() -> None:
    """A copier and a tier hang, another tier is down, an engine went, a tenant is at its limit."""
    tiers = (
        msgspec.structs.replace(TIER, silent_s=8.0),
        msgspec.structs.replace(TIER, name="far", state="down", why="nothing listens there"),
    )
    copier = msgspec.structs.replace(COPIER, silent_s=3.0)
    now = Moment(
        12.0,
        reply(tiers=tiers, copiers=(copier,)),
        {**STATS, "tier_disk_errors": 5, "complaint_porter_lost": 1, "complaint_copier_wedged": 2},
        (QUOTA,),
    )
    gone = [{"client": "engine two", "pid": 9, "gone_s": 4.0}]
    lines = top.text(top.frame(Moment(10.0, reply(), STATS), now, gone)).splitlines()
    assert lines[0] == "kvkeep at ipc:///x, pid 7, up 3h 12m: 3 things are wrong"
    assert [line[:7] for line in lines[1:6]] == ["wrong  "] * 3 + ["note   ", "L1     "]
    assert "log    copier_wedged 2, porter_lost 1 since the start" in lines
    rows = [line.split() for line in lines]
    assert ["engine", "two", "9", "gone", "4s"] in rows
    (disk,) = [row for row in rows if row[:1] == ["disk"]]
    assert disk[1:3] == ["silent", "8s"]
    assert disk[-2:] == ["5", "5"], "errors of the interval, and what waits to be written"


def test_engines_that_all_went_are_still_told_of() -> None:
    empty = Moment(12.0, reply(engines=()), STATS)
    gone = [{"client": "engine two", "pid": 9, "gone_s": 4.0}] * 30
    shown = top.text(top.frame(empty, empty, gone))
    assert "no engine" not in shown
    assert shown.count("gone") == top.MAX_ROWS
    assert "no engine is connected" in top.text(top.frame(empty, empty))


def test_engines_that_went_leave_room_for_those_that_are_here() -> None:
    here = tuple(msgspec.structs.replace(ENGINE, pid=100 + number) for number in range(20))
    now = Moment(12.0, reply(engines=here), STATS)
    gone = [{"client": "old", "pid": 900 + number, "gone_s": 50.0 - number} for number in range(20)]
    rows = [line.split() for line in top.text(top.frame(now, now, gone)).splitlines()]
    lost = [row for row in rows if "gone" in row]
    assert len(lost) == top.MAX_ROWS // 2
    assert lost[-1][1] == "919", "those that went last"
    assert len([row for row in rows if "serving" in row]) == top.MAX_ROWS - len(lost)


@pytest.mark.parametrize("interval", ["0.1", "61", "x"])
def test_an_interval_that_is_none_is_refused(interval: str) -> None:
    shown = CliRunner().invoke(cli, ["top", "--once", "--interval", interval])
    assert shown.exit_code == 2
