"""The commands that the documents show, run; the exit codes that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from click.testing import CliRunner

from adapter.embedded import server_environ
from adapter.serverurl import resolve_server_url
from server import config, lmcachenames
from server.cli import COMMANDS, cli, reaching
from tests.repository import tree
from tests.wire.process import ServerProcess

OPERATIONS = tree.text("docs/operations.md")
FROM_LMCACHE = tree.text("docs/from-lmcache.md")
PART = OPERATIONS[OPERATIONS.index("## Commands") : OPERATIONS.index("## Warming")]


def shown(page: str) -> Iterator[list[str]]:
    """Words of each command in a page's console blocks."""
    for block in re.findall(r"^ *```console\n(.*?)^ *```", page, re.M | re.S):
        for line in re.findall(r"^ *\$ kvkeep (.*)$", block, re.M):
            yield [word.strip("'") for word in line.removesuffix(" &").split()]


def test_every_command_is_in_the_table_and_no_other() -> None:
    rows = re.findall(r"^\| (`[^|]*`) \| ", PART[: PART.index("Exit codes")], re.M)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(COMMANDS)


def test_exit_codes_are_the_described_ones() -> None:
    described = set(re.findall(r"^\| (\d+) \|", PART, re.M))
    known = (
        reaching.EXIT_OK,
        reaching.EXIT_FAILED,
        reaching.EXIT_CONFIG,
        reaching.EXIT_OTHER,
        reaching.EXIT_INTERRUPTED,
    )
    assert described == {str(code) for code in known}


def test_a_server_launched_as_lmcaches_was(short_dir: Path, shm_dir: Path) -> None:
    [[command, *flags]] = list(shown(FROM_LMCACHE))
    assert command == "launch"
    # All of it, as ``config`` takes the same flags and starts nothing.
    told = json.loads(CliRunner().invoke(cli, ["config", "--json", *flags]).output)
    assert [note.split()[0] for note in told["notes"]] == ["--chunk-size", "--eviction-policy"]
    found = told["settings"]
    assert found["endpoint"]["value"] == "tcp://127.0.0.1:5555"
    assert found["l1-size"]["value"] == "20 GiB"
    # And a start, with an endpoint and a size of the test's own.
    rest = flags[flags.index("--chunk-size") :]
    with ServerProcess(short_dir, shm_dir / "a", "--l1-size-gb", "0.0625", *rest) as server:
        assert "arena 64 MiB" in server.line
        assert re.findall(r"kvkeep: (--\S+) has no counterpart", server.log()) == [
            "--chunk-size",
            "--eviction-policy",
        ]


def test_flags_and_keys_of_lmcache_that_are_understood_are_described() -> None:
    flags = re.findall(r"`--([a-z0-9-]+)`", FROM_LMCACHE)
    assert set(lmcachenames.FLAGS) <= set(flags)
    keys = FROM_LMCACHE[FROM_LMCACHE.index("## Keys") : FROM_LMCACHE.index("## Environment")]
    for key in ("max_local_cpu_size", "local_disk", "max_local_disk_size", "remote_url"):
        assert f"`{key}`" in keys
    for key in ("server_url", "chunk_size", "remote_serde"):
        assert f"`{key}`" in keys


def test_one_file_of_lmcaches_serves_server_and_engines(tmp_path: Path) -> None:
    path = tmp_path / "lmcache.yaml"
    path.write_text(
        "chunk_size: 256\nmax_local_cpu_size: 20.0\nlocal_disk: file:///mnt/d\n"
        "max_local_disk_size: 100.0\nremote_url: redis://cache:6379\n"
    )
    environ = {"LMCACHE_CONFIG_FILE": str(path), "XDG_RUNTIME_DIR": str(tmp_path)}
    found = config.read({}, environ)
    assert found.arena_bytes == 20 << 30
    assert [(tier.kind, tier.location) for tier in found.tiers] == [
        ("disk", "/mnt/d/kvkeep"),
        ("valkey", "cache:6379"),
    ]
    assert resolve_server_url(object(), environ).url == found.endpoint.url
    # A private server, which an engine starts for itself, has it from there.
    assert server_environ(environ)["LMCACHE_CONFIG_FILE"] == str(path)
