"""``kvkeep status``: the figures are the ones that a client counted; what is wrong is said."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from click.testing import CliRunner

from server.cli import cli, overview, status
from tests.server.cli.cached import FIRST, SECOND, Cached, keys_of
from tests.server.cli.told import COPIER, ENGINE, SERVER, SPACE, STATS, TIER, reply
from tests.wire.process import ServerProcess


def test_it_agrees_with_what_the_client_counted(holding: Cached) -> None:
    engine = holding.engine
    asked = hit = loaded = 0
    for number, keys in enumerate((keys_of(FIRST), keys_of([*SECOND, *range(9000, 9064)]))):
        found = engine.lookup(keys, request=number + 1)
        asked, hit = asked + len(keys), hit + found.ready
        loaded += engine.read(found.lease, found.ready).shape[0]
    document = holding.told("status")
    assert (document["healthy"], document["reasons"]) == (True, [])
    assert document["hits"] == {
        "requested_chunks": asked,
        "hit_chunks": hit,
        "retrieved_chunks": loaded,
        "published_chunks": 7,
        "requested_tokens": 32 * asked,
        "hit_tokens_l1": 32 * hit,
        "loaded_tokens": 32 * loaded,
    }
    assert document["l1"]["chunks"] == 7
    assert document["server"]["pid"] == holding.server.pid
    assert document["server"]["endpoint"] == holding.server.url
    assert document["latency"]["LOOKUP"]["count"] == 2
    [row] = document["engines"]
    assert (row["pid"], row["state"], row["sessions"]) == (os.getpid(), "serving", 1)
    assert (row["requested_chunks"], row["hit_chunks"], row["leases"]) == (asked, hit, 2)
    [copier] = document["copiers"]
    assert (copier["name"], copier["state"]) == ("host", "up")
    [space] = document["namespaces"]
    assert (space["fingerprint"], space["chunks"]) == (holding.name, 7)

    shown = holding.run("status")
    assert shown.exit_code == 0
    assert f"{holding.server.url}, pid {holding.server.pid}, up " in shown.output
    assert ": healthy\n" in shown.output
    assert f"hits   {100 * hit / asked:.1f} % of {asked} chunks asked for" in shown.output
    assert "LOOKUP 2 answered" in shown.output


def test_a_tier_that_cannot_be_used_is_exit_code_3(short_dir: Path, shm_dir: Path) -> None:
    options = ("--l1-size", "64M", "--l2", "disk:/proc/version/x?size=16M")
    with ServerProcess(short_dir, shm_dir / "a", *options) as server:
        shown = CliRunner().invoke(cli, ["status", "--endpoint", server.url])
    assert shown.exit_code == 3
    first = shown.output.splitlines()[0]
    assert ": tier disk is down: " in first
    assert "/proc/version" in first, "why it cannot be used"
    assert "no engine is connected" in shown.output


def test_several_troubles_have_a_line_each_and_what_is_worth_knowing_below() -> None:
    tiers = (
        msgspec.structs.replace(TIER, state="down", why="no route"),
        msgspec.structs.replace(TIER, name="far", silent_s=9.0),
        msgspec.structs.replace(TIER, name="near", warning="its file system\nis full"),
    )
    stats = {**STATS, **{f"complaint_kind_{number}": number for number in range(1, 8)}}
    lines = status.text(overview.document(reply(tiers=tiers), stats)).splitlines()
    assert lines[0].endswith(": 2 things are wrong")
    assert lines[1] == "wrong  tier disk is down: no route"
    assert lines[2].startswith("wrong  tier far has not answered for 9 s: ")
    assert lines[3].startswith("note   tier near: its file system")
    assert lines[3].endswith("is full")
    assert "in 10 chunks, 3 pinned, extents" in lines[4]
    counted = "kind_7 7, kind_6 6, kind_5 5, kind_4 4, kind_3 3 and 2 more kinds"
    assert f"log    {counted} since the start" in lines
    assert any(line.split()[:4] == ["far", "disk", "silent", "9s"] for line in lines)


def test_nobody_there_is_exit_code_1(short_dir: Path) -> None:
    shown = CliRunner().invoke(cli, ["status", "--endpoint", f"ipc://{short_dir}/none"])
    assert shown.exit_code == 1
    assert shown.output.count("\n") == 1


def test_long_lists_are_cut_and_counted() -> None:
    whole = reply(
        engines=(ENGINE,) * 20, engines_more=3, namespaces=(SPACE,) * 30, namespaces_more=2
    )
    shown = status.text(overview.document(whole, {**STATS, "arena_quarantined_bytes": 1 << 20}))
    lines = shown.splitlines()
    assert "... and 11 more" in lines
    assert "... and 20 more" in lines
    assert "       1 MiB wait for engines, or former ones, to let go of them" in lines
    l1 = "L1     10 MiB of 64 MiB (15.6 %) in 10 chunks, 90 pinned, extents take 16 MiB; 4 evicted"
    assert l1 in lines
    assert sum(line.startswith("engine one") for line in lines) == status.MAX_ROWS
    assert [line.split()[:6] for line in lines if line.startswith("disk")] == [
        ["disk", "disk", "up", "1", "GiB", "of"]
    ]


def test_what_went_with_whole_extents_is_evicted_too() -> None:
    # Of two models in a full L1 each takes the other's extents, and evicts nothing of its own.
    shown = status.text(overview.document(reply(), {**STATS, "reclaimed_chunks": 3_000}))
    assert "; 3,004 evicted, 3,000 of these with whole extents" in shown


def test_what_was_kept_where_the_pages_are_and_who_is_silent_have_their_lines() -> None:
    assert not status.kept(overview.document(reply(), STATS)["server"])
    server = msgspec.structs.replace(
        SERVER,
        http="http://127.0.0.1:9500/",
        started_in_s=0.8,
        adopted_chunks=1000,
        adopted_bytes=16 << 20,
        adopted_in_s=0.25,
    )
    copier = msgspec.structs.replace(COPIER, silent_s=4.0)
    shown = status.text(overview.document(reply(server=server, copiers=(copier,)), STATS))
    lines = shown.splitlines()
    assert "pages  http://127.0.0.1:9500/" in lines
    assert (
        "kept   1,000 chunks (16 MiB) of the server before, taken over in 0.25 s; "
        "started in 0.80 s" in lines
    )
    assert ": the copier of host has not answered for 4 s: " in lines[0]
    assert [line.split()[:3] for line in lines if line.startswith("host")] == [
        ["host", "silent", "4s"]
    ]


def test_what_a_tiers_porter_says_does_nothing_to_the_terminal() -> None:
    rude = msgspec.structs.replace(TIER, state="down", why="\x1b[2Jx")
    assert "\x1b" not in status.text(overview.document(reply(tiers=(rude,)), STATS))


def test_what_engines_hold_back_has_a_column_where_one_does() -> None:
    assert "holds back" not in status.text(overview.document(reply(), STATS))
    slow = msgspec.structs.replace(ENGINE, quarantined_bytes=3 << 20)
    shown = status.text(overview.document(reply(engines=(ENGINE, slow)), STATS))
    rows = [line.split() for line in shown.splitlines() if line.startswith("engine one")]
    assert [row[-2:] for row in rows] == [["0", "bytes"], ["3", "MiB"]]


def test_what_an_engine_calls_itself_does_nothing_to_the_terminal() -> None:
    rude = msgspec.structs.replace(ENGINE, client="\x1b[2J[bold]x")
    shown = status.text(overview.document(reply(engines=(rude,)), STATS))
    assert "\x1b" not in shown
    assert "?[2J[bold]x" in shown
