"""docs/operations.md against the code: options, variables, counters, exit codes, log lines."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import adapter.config
import adapter.serverurl
from protocol.errors import ConfigError
from protocol.figures import COMPLAINTS, FAMILIES, FIGURES, TIER_FIGURES, find
from server import asking, config
from server.cli import overview, top
from server.cli.launch import command
from server.cli.rates import Moment
from server.core.tiers.misses import Miss
from server.core.tiers.parts import Status
from server.lmcachenames import FLAGS
from server.shell.tracechild import TraceChild
from server.shell.webchild import WebChild
from tests.repository import tree
from tests.server.cli.told import STATS, reply
from tests.wire.client import Engine
from tests.wire.process import ROOT, ServerProcess

PAGE = tree.text("docs/operations.md")


def section(title: str) -> str:
    """One second-level section of the page."""
    found = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    assert found is not None, title
    return found[1]


def rows(text: str) -> Iterator[list[str]]:
    """Cells of each table row but headings and rules."""
    previous = ""
    for line in text.splitlines():
        is_heading = previous.startswith("|") is False
        previous = line
        if line.startswith("|") and not is_heading and not set(line) <= set("|- "):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def coded(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def sources(*rooms: str) -> str:
    return "\n".join(tree.text(path) for path in tree.files(*rooms, suffix=".py"))


def test_the_options_of_launch_are_the_ones_described() -> None:
    described = {coded(row[0])[0]: coded(row[1])[0] for row in rows(section("Launch options"))}
    options = {option for parameter in command.params for option in parameter.opts}
    options -= {f"--{flag}" for flag in FLAGS}  # docs/configuration.md has these
    assert set(described) == options
    for option, name in described.items():
        key = option.removeprefix("--")
        assert key in config.KEYS
        assert name == config.variable(key)
    for level in config.LOG_LEVELS:
        assert f"`{level}`" in section("Launch options")


def test_every_setting_of_the_adapter_is_described() -> None:
    described = {coded(row[0])[0] for row in rows(section("Settings of engines"))}
    known = {
        value
        for module in (adapter.config, adapter.serverurl)
        for name, value in vars(module).items()
        if name.startswith("ENV_") and str(value).startswith("TRTLLM_")
    }
    assert described == known


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("TRTLLM_KVKEEP_QUERY_BUDGET_MS", ("0", "60001", "x"), ("1", "60000")),
        ("TRTLLM_KVKEEP_HELD_PAGES_PERCENT", ("-1", "101"), ("0", "100")),
        ("TRTLLM_KVKEEP_WEIGHTS_EPOCH", ("x" * 513,), ("", "x" * 512)),
        ("TRTLLM_KVKEEP_LORA_DIGESTS", ('{"1": "00"}',), (f'{{"1": "{"00" * 16}"}}',)),
        ("TRTLLM_KVKEEP_SERVER_URL", ("", "tcp://10.0.0.1:5"), ("tcp://[::1]:5555",)),
    ],
)
def test_the_ranges_of_the_adapters_settings_are_the_described_ones(
    name: str, wrong: tuple[str, ...], right: tuple[str, ...]
) -> None:
    for value in right:
        adapter.config.read_settings(None, {name: value})
    for value in wrong:
        with pytest.raises(ConfigError, match=name):
            adapter.config.read_settings(None, {name: value})


def described_counters() -> set[str]:
    found: set[str] = set()
    for heading in ("counter", "gauge"):
        table = re.search(rf"^\| {heading} \|.*?(?=^$)", section("What to watch"), re.M | re.S)
        assert table is not None
        for row in rows("\n" + table[0]):
            found.update(coded(row[0]))
    return found


def test_counters_in_the_code_are_described_and_those_described_exist() -> None:
    code = sources("server/core") + sources("server/shell")
    counted = set(re.findall(r'counters\["([a-z_]+)"\]', code))
    described = described_counters()
    assert counted - described == set()
    described -= {"error_…", "complaint_…"}
    of_each = {
        name: name.removesuffix("…").removesuffix("GPU-") for name in described if "…" in name
    }
    assert [name for name, begin in of_each.items() if f'f"{begin}{{' not in code] == []
    described -= set(of_each)
    assert [n for n in described if f'"{n}"' not in code and f"{n}=" not in code] == []


def of_tiers() -> set[str]:
    """What is described by a name that all tiers share, or that tells why chunks are not there."""
    pattern = r"`(?:tier_…|miss_chunks)_([a-z_]+)`"
    return set(re.findall(pattern, section("What to watch")))


def test_the_figures_of_tiers_and_the_reasons_of_misses_are_described() -> None:
    code = sources("server/core/tiers") + tree.text(Path("server/shell/porters.py"))
    counted = set(re.findall(r'\.count\(\s*"([a-z_]+)"', code))
    gauges = set(re.findall(r'f"\{self\._prefix\}([a-z_]+)"', code))
    gauges |= set(re.findall(r'f"tier_\{[a-z_.]+\}_([a-z_]+)"', code))
    both_ways = {f"{way}_{what}" for way in ("get", "put") for what in ("bytes", "us")}
    statuses = {status.name.lower() for status in set(Status) - {Status.OK, Status.ERROR}}
    reasons = {reason.value for reason in Miss}
    assert of_tiers() == counted | gauges | both_ways | statuses | reasons


def test_what_a_live_server_counts_is_described(short_dir: Path, shm_dir: Path) -> None:
    with (
        ServerProcess(short_dir, shm_dir / "a") as server,
        Engine(server.url, server.side_path) as engine,
    ):
        engine.register()
        keys = [os.urandom(16) for _ in range(4)]
        assert engine.save(keys, [0, 1, 2, 3]) == 4
        found = engine.lookup(keys)
        assert engine.read(found.lease, found.ready).shape[0] == 4
        counted = asking.stats(server.side_path, 10.0)
    expected = {
        "sessions": 1,
        "registrations": 1,
        "lookups": 1,
        "lookup_chunks": 4,
        "hit_chunks": 4,
        "retrieved_chunks": 4,
        "requested_tokens": 128,
        "hit_tokens_l1": 128,
        "loaded_tokens": 128,
        "stored_chunks": 4,
        "published_chunks": 4,
        "chunks": 4,
        "slots_held": 4,
        "pinned_slots": 4,
        "leases": 1,
        "stores": 0,
    }
    assert {name: counted[name] for name in expected} == expected
    of_many = ("error_", "complaint_", "hit_tokens_")
    names = [n for n in counted if not n.startswith(of_many)]
    unknown = [n for n in names if n not in described_counters()]
    assert unknown == []
    assert [name for name in counted if find(name) is None] == []


def test_the_table_of_figures_has_what_is_described_and_nothing_else() -> None:
    """What ``protocol.figures`` exports is what operators read about."""
    single = {name for name in described_counters() if "…" not in name}
    assert single - {f"miss_chunks_{reason.value}" for reason in Miss} == set(FIGURES)
    families = {name.partition("…")[0] for name in described_counters() if "…" in name}
    of_families = {family.removesuffix("GPU-").removesuffix("_") for family in families}
    assert of_families - {"tier"} == set(FAMILIES) - {"miss_chunks"}
    assert of_tiers() == set(TIER_FIGURES) | {reason.value for reason in Miss}


def test_the_log_lines_described_are_in_the_code() -> None:
    code = re.sub(r'"\s*\n\s*f?"', "", sources("server", "adapter"))
    code = re.sub(r"\{[^{}]*\}|%[sd]", "…", code)
    found = [part for row in rows(section("Log lines")) for part in coded(row[0])]
    assert len(found) > 12
    lost = [line for line in found if not all(part.strip() in code for part in line.split("…"))]
    assert lost == []
    kinds = set(re.findall(r'complaints\.note\(\s*"([a-z_]+)"', code))
    assert kinds - set(found) == set()
    for child in (TraceChild, WebChild):
        kinds |= {child.lost, child.said, child.refused, child.stuck}
    kinds |= set(re.findall(r'complaints\.note, "([a-z_]+)"', code))
    assert sorted(kinds) == list(COMPLAINTS), "those that /metrics tells as 0 before the first"


def test_all_that_status_and_top_write_as_json_is_named() -> None:
    text = PAGE.partition("**JSON.**")[2].partition("\n\n")[0]
    of_status, _, of_top = text.partition("`inspect`:")[0].partition("`top`, an object")
    frame = top.frame(Moment(1.0, reply(), STATS), Moment(2.0, reply(), STATS))
    for named, written in ((of_status, overview.document(reply(), STATS)), (of_top, frame)):
        assert set(written) - set(re.findall(r"`([a-z_0-9]+)`", named)) == set()


def launch(*arguments: str) -> int:
    return subprocess.run(
        [sys.executable, "-m", "server", "launch", *arguments],
        cwd=ROOT,
        capture_output=True,
        timeout=30,
        check=False,
    ).returncode


def test_exit_codes_are_the_described_ones(short_dir: Path, shm_dir: Path) -> None:
    """1, 130 and 143 are looked at in tests/server."""
    codes = {row[0]: row[1] for row in rows(section("Start, stop, upgrade"))}
    assert set(codes) == {"0", "1", "2", "130", "143"}
    assert launch("--l1-size", "1K") == 2
    with ServerProcess(short_dir, shm_dir / "a") as server:
        assert launch("--endpoint", server.url, "--l1-size", "1M") == 2
        assert server.terminate() == 0


def test_the_start_up_line_has_the_described_form(short_dir: Path, shm_dir: Path) -> None:
    [shown] = re.findall(r"^kvkeep ready: .*$", PAGE, re.M)
    with ServerProcess(short_dir, shm_dir / "a") as server:
        line = server.line.strip()

    def words(text: str) -> list[str]:
        return [word for word in text.split() if re.fullmatch(r"[a-z:(]+,?", word)]

    assert words(shown) == words(line)
