"""The command line of ``simulate``; what it finds is tested with ``server.simulate``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).parent.parent / "simulate" / "data"
SESSIONS = str(DATA / "sessions")


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "server", "simulate", *arguments],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )


def test_a_table_for_people() -> None:
    said = simulate(SESSIONS, "--l1", "25%", "--l2", "disk:unlimited", "--deadline", "30")
    assert said.returncode == 0, said.stderr
    assert said.stderr == ""
    assert "hit ratio" in said.stdout
    assert "disk promoted" in said.stdout


def test_a_bar_on_a_terminal_and_nothing_of_it_in_the_output() -> None:
    ours, theirs = os.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "server", "simulate", SESSIONS, "--json", "--copies", "4"],
            stdout=subprocess.PIPE,
            stderr=theirs,
            check=True,
            timeout=60,
        )
        shown = os.read(ours, 1 << 16)
    finally:
        os.close(ours)
        os.close(theirs)
    assert b"replaying" in shown
    assert b"100%" in shown
    assert json.loads(done.stdout)["requests"] == 416


def test_a_document_for_programs_with_every_option_in_it() -> None:
    said = simulate(
        *(SESSIONS, "--json", "--l1", "20G", "--l2", "100G,store:1T", "--nodes", "2"),
        *("--route", "round-robin", "--copies", "3", "--policy", "on-evict,after-2-uses"),
        *("--deadline", "5s", "--kv-bytes-per-token", "64K", "--block-tokens", "64"),
        *("--chunk-blocks", "4", "--prefill-tokens-s", "9000", "--l1-gbps", "20"),
        *("--read-gbps", "3.5,1", "--write-gbps", "4", "--one-by-one", "--count-partial"),
    )
    assert said.returncode == 0, said.stderr
    document = json.loads(said.stdout)
    tiers = document["settings"].pop("tiers")
    assert document["settings"] == {
        "nodes": 2,
        "route": "round-robin",
        "copies": 3,
        "chunk_tokens": 256,
        "chunk_bytes": 16 << 20,
        "deadline_s": 5.0,
        "prefill_tokens_s": 9000.0,
        "l1_gbps": 20.0,
        "l1_chunks": 1280,
        "one_by_one": True,
        "count_partial": True,
    }
    assert [(one["name"], one["shared"], one["policy"]) for one in tiers] == [
        ("disk", False, "on-evict"),
        ("store", True, "after-2-uses"),
    ]
    assert [(one["read_gbps"], one["write_gbps"]) for one in tiers] == [(3.5, 4.0), (1.0, 4.0)]
    assert document["requests"] == 3 * document["trace"]["requests"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.jsonl"], "kvkeep: none.jsonl: no such file"),
        ([str(DATA / "NOTICE.md")], "NOTICE.md: neither .jsonl (Mooncake) nor .json (a session)"),
        ([SESSIONS, "--l1", "big"], "kvkeep: l1='big': expected a size such as"),
        ([SESSIONS, "--l1", "1K"], "kvkeep: 1 KiB holds no chunk: one has "),
        ([SESSIONS, "--read-gbps", "3"], "kvkeep: read-gbps='3': expected a lower tier"),
        ([SESSIONS, "--write-gbps", "3"], "kvkeep: write-gbps='3': expected a lower tier"),
        ([SESSIONS, "--l2", "disk:4T?policy=none"], "--policy says what tiers are given"),
        ([SESSIONS, "--l2", "tape:1G"], "kvkeep: l2='tape:1G': expected disk:SIZE"),
        ([SESSIONS, "--l2", "1G", "--policy", "now"], "kvkeep: policy='now': expected write-"),
        ([SESSIONS, "--deadline", "soon"], "kvkeep: deadline='soon': expected"),
        ([SESSIONS, "--block-tokens", "32"], "and --block-tokens says 32"),
    ],
)
def test_what_is_wrong_is_one_line(arguments: list[str], message: str) -> None:
    said = simulate(*arguments)
    assert said.returncode == 2
    assert message in said.stderr
    assert said.stderr.count("\n") == 1
    assert said.stdout == ""


def test_without_a_trace_it_says_so() -> None:
    said = simulate()
    assert said.returncode == 2
    assert "TRACES" in said.stderr
