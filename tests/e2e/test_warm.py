"""``warm`` from outside: a server whose arena is gone is as warm as before, before any engine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from protocol.keys import BlockHashChain, ReuseScope
from protocol.namespace import fingerprint
from server.cli import cli
from tests.tiers.rig import CHAIN, PAGE_BYTES, TierEngine, chains, counters, disk, serve, settle
from tests.wire.client import make_namespace
from tests.wire.process import ROOT, ServerProcess, wait_until

FEW = 3
"""Chains that fit into L1."""


def warm(server: ServerProcess, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["warm", "--endpoint", server.url, *arguments])


def told(server: ServerProcess, *arguments: str) -> dict[str, Any]:
    result = warm(server, "--json", *arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert isinstance(found, dict)
    return found


@pytest.fixture(params=["slab", "files"])
def url(request: pytest.FixtureRequest, short_dir: Path) -> str:
    return disk(short_dir / "l2", layout=request.param)


def fill(short_dir: Path, arena: Path, url: str, count: int, *models: str) -> list[list[bytes]]:
    """A server that stored chains and ended; its arena is gone."""
    wanted, kept = chains(count), 0
    with serve(short_dir / "s", arena, url) as server:
        for model in models or ("test/tiers",):
            engine = TierEngine(server, model)
            for keys in wanted:
                engine.keep(keys)
                kept += CHAIN
                settle(server, "disk", kept)
            engine.close()
        assert server.terminate() == 0
    shutil.rmtree(arena, ignore_errors=True)
    return wanted


def test_after_a_reboot_all_is_there_at_once(short_dir: Path, shm_dir: Path, url: str) -> None:
    wanted = fill(short_dir, shm_dir / "a", url, FEW)
    with serve(short_dir / "s", shm_dir / "a", url) as server:
        assert counters(server)["namespaces"] == 0
        reply = told(server)
        assert (reply["chunks"], reply["missed"]) == (FEW * CHAIN, 0)
        assert reply["bytes"] == FEW * CHAIN * PAGE_BYTES
        assert reply["reason"] == "all that tiers list is there"
        engine = TierEngine(server)
        before = counters(server)["tier_disk_get_bytes"]
        for keys in wanted:
            found = engine.look(keys, 0)
            assert (found.ready, found.final) == (CHAIN, True)
            engine.end()
            assert engine.fetch(keys) == CHAIN  # and each byte is compared
        after = counters(server)
        assert after["tier_disk_get_bytes"] == before
        assert after["lookups"] == 2 * FEW
        again = warm(server)
        assert again.exit_code == 0
        assert again.output.startswith("warmed 0 chunks (0 bytes) in ")
        assert f"{FEW * CHAIN} were there" in again.output
        engine.close()


def test_an_l1_that_is_too_small_takes_what_fits(short_dir: Path, shm_dir: Path, url: str) -> None:
    wanted = fill(short_dir, shm_dir / "a", url, 16)
    with serve(short_dir / "s", shm_dir / "a", url) as server:
        reply = told(server)
        assert reply["reason"] == "L1 is full"
        assert 2 * CHAIN < reply["chunks"] < 4 * CHAIN + 1
        assert counters(server).get("evicted_chunks", 0) == 0
        # The rest still comes by itself.
        engine = TierEngine(server)
        assert [engine.fetch(keys) for keys in wanted] == [CHAIN] * 16
        engine.close()


def test_so_many_bytes_or_one_namespace(short_dir: Path, shm_dir: Path, url: str) -> None:
    fill(short_dir, shm_dir / "a", url, 1, "test/a", "test/b")
    with serve(short_dir / "s", shm_dir / "a", url) as server:
        name = fingerprint(make_namespace(PAGE_BYTES, "test/b")).hex()
        reply = told(server, "--namespace", name, "--bytes", str(5 * PAGE_BYTES))
        assert (reply["chunks"], reply["reason"]) == (5, "as many bytes as were wanted")
        assert counters(server)["namespaces"] == 1
        assert told(server, "--namespace", name)["held"] == 5
        assert told(server, "--namespace", "test/b")["held"] == CHAIN  # it is known now
        assert counters(server)["namespaces"] == 1
        assert told(server)["chunks"] == CHAIN


def test_the_prompts_of_a_file(short_dir: Path, shm_dir: Path, url: str) -> None:
    prompts = [list(range(1000 * at, 1000 * at + CHAIN * 4)) for at in range(1, 4)]
    keys = []
    for tokens in prompts:
        chain = BlockHashChain.start(ReuseScope(), 4)
        chain.extend(tokens)
        keys.append([bytes(chain.key(block)) for block in range(CHAIN)])
    with serve(short_dir / "s", shm_dir / "a", url) as server:
        with TierEngine(server) as engine:
            for at, one in enumerate(keys[:2], 1):
                engine.keep(one)
                settle(server, "disk", at * CHAIN)
        assert server.terminate() == 0
    shutil.rmtree(shm_dir / "a", ignore_errors=True)
    path = short_dir / "prompts"
    path.write_text("".join(f"{tokens}\n" for tokens in [prompts[0][:20], *prompts[1:]]))
    name = fingerprint(make_namespace(PAGE_BYTES, "test/tiers")).hex()
    which = ("--namespace", name, "--tokens", str(path), "--tokens-per-block", "4")
    with serve(short_dir / "s", shm_dir / "a", url) as server:
        reply = told(server, *which)
        assert (reply["chunks"], reply["missed"]) == (5 + CHAIN, CHAIN)
        assert reply["reason"] == f"{CHAIN} chunks were not found"
        with TierEngine(server) as engine:
            assert engine.look(keys[1], 0).final
            engine.end()
            assert engine.fetch(keys[1]) == CHAIN


def test_nothing_listed_and_no_tier_at_all_are_one_clear_line(
    short_dir: Path, shm_dir: Path, url: str
) -> None:
    with serve(short_dir / "s", shm_dir / "a", url) as server:
        result = warm(server)
        assert result.exit_code == 3
        assert result.output.startswith("warmed 0 chunks (0 bytes) in ")
        assert "no tier lists anything" in result.output
    (short_dir / "b").mkdir()
    with ServerProcess(short_dir / "b", shm_dir / "b") as server:
        result = warm(server, "--wait", "60")
        assert result.exit_code == 1
        assert len(result.output.splitlines()) == 1
        assert "this server has no lower tiers" in result.output


@contextmanager
def held_up(
    short_dir: Path, shm_dir: Path
) -> Iterator[tuple[ServerProcess, subprocess.Popen[str]]]:
    """A warm command whose tier does not answer for a moment."""
    url = disk(short_dir / "l2")
    fill(short_dir, shm_dir / "a", url, FEW)
    with serve(short_dir / "s", shm_dir / "a", url) as server:
        porter = counters(server)["tier_disk_porter_pid"]
        os.kill(porter, signal.SIGSTOP)
        try:
            program = subprocess.Popen(
                [sys.executable, "-m", "server", "warm", "--endpoint", server.url, "--json"],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert wait_until(lambda: counters(server).get("warms", 0) == 1, every_s=0.05)
            yield server, program
        finally:
            os.kill(porter, signal.SIGCONT)
        # It did no harm, and another one may begin.
        assert wait_until(lambda: counters(server)["tier_disk_up"] == 1, every_s=0.1)
        assert told(server)["listed"] == FEW * CHAIN
        assert counters(server)["chunks"] == FEW * CHAIN
        assert server.terminate() == 0


def test_ctrl_c_ends_it_and_harms_nothing(short_dir: Path, shm_dir: Path) -> None:
    with held_up(short_dir, shm_dir) as (_, program):
        program.send_signal(signal.SIGINT)
        output, _ = program.communicate(timeout=30)
        assert program.returncode == 130
        reply = json.loads(output)
        assert (reply["reason"], reply["chunks"]) == ("cancelled", 0)


def test_a_killed_command_ends_its_job(short_dir: Path, shm_dir: Path) -> None:
    with held_up(short_dir, shm_dir) as (server, program):
        assert "a warm job runs already" in warm(server).output
        program.kill()
        program.communicate()
        # Both it and its connection are seen to be gone.
        assert wait_until(lambda: counters(server)["processes"] == 1, every_s=0.1)
