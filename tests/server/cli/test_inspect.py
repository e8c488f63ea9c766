"""``kvkeep inspect``: namespaces, and how much of prompts is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from click.testing import CliRunner

from server import asking
from server.cli import cli
from server.cli.inspect import namespaces_text
from tests.server.cli.cached import FIRST, SECOND, SYSTEM, Cached, cached, keys_of
from tests.wire.process import wait_until

LONGER = [*FIRST, *range(1, 200)]


def test_namespaces_and_prompts_of_a_live_server(holding: Cached) -> None:
    before = asking.stats(holding.server.side_path, 10.0)
    [one] = holding.told("inspect")["namespaces"]
    assert (one["fingerprint"], one["name"]) == (holding.name, "test/model")
    assert (one["chunks"], one["chunk_tokens"], one["chunk_blocks"]) == (7, 32, 1)
    assert one["bytes"] == 7 * 16_384
    shown = holding.run("inspect")
    assert holding.name[:12] in shown.output
    assert "test/model" in shown.output

    # How it is named: by all of it, by its beginning, by the model, or not at all.
    prompts = holding.file(FIRST, SECOND, SYSTEM[:10])
    for naming in ((), ("--namespace", holding.name[:6]), ("--namespace", "test/model")):
        found = holding.told("inspect", "--tokens", prompts, *naming)
        assert found["prompts"] == [
            {"chunks": 5, "held": 5, "tiers": {}},
            {"chunks": 4, "held": 4, "tiers": {}},
        ]
        assert (found["chunk_tokens"], found["fingerprint"]) == (32, holding.name)
    shown = holding.run("inspect", "--tokens", holding.file(FIRST))
    assert shown.output == "prompt 1: 5 of 5 chunks in L1 (160 tokens)\n"

    # A longer prompt, another salt, another block size, keys instead of tokens.
    longer = holding.told("inspect", "--tokens", holding.file(LONGER), code=3)
    assert longer["prompts"] == [{"chunks": 11, "held": 5, "tiers": {}}]
    salted = holding.told("inspect", "--tokens", prompts, "--salt", "tenant", code=3)
    assert [one["held"] for one in salted["prompts"]] == [0, 0]
    other = holding.told("inspect", "--tokens", prompts, "--tokens-per-block", "16", code=3)
    assert [one["held"] for one in other["prompts"]] == [0, 0]
    named = [word for key in keys_of(SECOND) for word in ("--key", key.hex())]
    assert holding.told("inspect", *named)["prompts"] == [{"chunks": 4, "held": 4, "tiers": {}}]

    # A namespace that is not there holds nothing; a name that is none is refused.
    absent = ("--namespace", "0" * 32)
    assert holding.told("inspect", *absent, code=3)["namespaces"] == []
    found = holding.told("inspect", *absent, "--key", "1" * 32, code=3)
    assert found["prompts"] == [{"chunks": 1, "held": 0, "tiers": {}}]
    refused = holding.run("inspect", "--namespace", "another/model")
    assert refused.exit_code == 2
    assert f"expected one that is there: {holding.name} (test/model)" in refused.output

    # It was no use of anything.
    after = asking.stats(holding.server.side_path, 10.0)
    for name in ("lookups", "lookup_chunks", "hit_chunks", "leases", "pinned_prefixes"):
        assert after.get(name, 0) == before.get(name, 0)


def test_what_lower_tiers_say_they_have_is_told(short_dir: Path, shm_dir: Path) -> None:
    tiers = f"disk:{short_dir}/tier?size=64M disk:/proc/version/x?size=16M&name=gone"
    options = [word for url in tiers.split() for word in ("--l2", url)]
    with cached(short_dir, shm_dir, *options) as holding:

        def below() -> Any:
            found = holding.told("inspect", "--tokens", holding.file(LONGER), code=3)
            return found["prompts"][0]["tiers"]

        assert wait_until(lambda: below() == {"disk": 5, "gone": None}, every_s=0.1)
        before = asking.stats(holding.server.side_path, 10.0)
        shown = holding.run("inspect", "--tokens", holding.file(FIRST))
        assert shown.output == (
            "prompt 1: 5 of 5 chunks in L1 (160 tokens); disk says it has 5; "
            "gone cannot be asked now\n"
        )
        after = asking.stats(holding.server.side_path, 10.0)
        assert after.get("tier_disk_get_bytes", 0) == before.get("tier_disk_get_bytes", 0)
        assert after["chunks"] == 7, "nothing was loaded"


def test_nobody_there_is_exit_code_1_and_one_line(short_dir: Path) -> None:
    shown = CliRunner().invoke(cli, ["inspect", "--server", f"ipc://{short_dir}/none"])
    assert shown.exit_code == 1
    assert shown.output.count("\n") == 1
    assert "no server listens there" in shown.output


def test_an_empty_server_says_so() -> None:
    document = {"namespaces": [], "left_out": 0}
    assert namespaces_text(document) == "nothing is cached: no namespace has content or engines"
