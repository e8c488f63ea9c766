"""Each query of the rules and the dashboard, asked of a real Prometheus that scrapes a server."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.observability.expressions import queries, rules, series
from tests.deploy.observability.promtool import RULES, program, promtool
from tests.server.web.pageserver import Pages, serving
from tests.server.web.traffic import scripted
from tests.wire.ports import free_port
from tests.wire.process import ServerProcess, wait_until

# Series of what a server that is well, on a machine without a GPU, does not have.
NOT_HERE = {
    'kvkeep_copier_device_bytes{job="kvkeep",instance=~".*"}',
}
EVERY_S = 1
QUOTA = (f"salt/{'5a' * 16}=1M:2M", f"salt/{'5a' * 16}=8M:16M@disk")


class Asked:
    """A Prometheus.

    Args:
        port: of its HTTP.
    """

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"

    def get(self, what: str, **query: str) -> Any:
        """The data of an answer; an error of the query fails the test."""
        url = f"{self._url}{what}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                told = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from None
        assert told["status"] == "success", told
        assert not told.get("warnings"), told
        return told["data"]

    def rows(self, expression: str) -> list[Any]:
        """What a query gives now."""
        found: list[Any] = self.get("query", query=expression)["result"]
        return found


@contextmanager
def prometheus(folder: Path, target: int) -> Iterator[Asked]:
    """One that scrapes a port every second and evaluates the rules."""
    port = free_port()
    config = folder / "prometheus.yml"
    config.write_text(
        f"global: {{scrape_interval: {EVERY_S}s, evaluation_interval: 1s}}\n"
        "scrape_configs:\n"
        "  - job_name: kvkeep\n"
        f"    static_configs: [{{targets: ['127.0.0.1:{target}']}}]\n"
        f"rule_files: ['{RULES}']\n",
        encoding="utf-8",
    )
    command = [program("prometheus"), f"--config.file={config}", "--log.level=error"]
    command += [f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            asked = Asked(port)

            def answers() -> bool:
                try:
                    return len(asked.rows("count_over_time(kvkeep_up[1m]) >= 4")) == 1
                except OSError:
                    return False

            assert wait_until(answers, 30, every_s=0.2), (folder / "log").read_text()
            yield asked
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Asked, Pages]]:
    """A server at work, with a tier, scraped for some seconds."""
    program("prometheus")  # or the test is skipped before anything starts
    with (
        tempfile.TemporaryDirectory(prefix="kvk-") as short,
        tempfile.TemporaryDirectory(prefix="kvk-", dir="/dev/shm") as shared,
    ):
        sizes = (
            "--l1-size",
            "8M",
            "--extent-size",
            "1M",
            "--l2",
            f"disk:{short}/l2?size=64M",
            *(part for quota in QUOTA for part in ("--quota", quota)),
        )
        with (
            ServerProcess(Path(short), Path(shared) / "a", *sizes) as server,
            serving(server.side_path) as (pages, _),
        ):
            script, ending = scripted(server), threading.Event()

            def play() -> None:
                seed = 1
                while not ending.wait(0.1):
                    script.play(prompts=3, seed=seed)
                    seed += 3

            thread = threading.Thread(target=play, daemon=True)
            thread.start()
            try:
                folder = tmp_path_factory.mktemp("prometheus")
                with prometheus(folder, pages.port) as asked:
                    yield asked, pages
            finally:
                ending.set()
                thread.join(20)
                script.engine.close()


def test_promtool_is_content_with_what_is_told(scraped: tuple[Asked, Pages]) -> None:
    content = scraped[1].get("/metrics")[1]
    assert content.count(b"# HELP ") > 100
    assert promtool("check", "metrics", stdin=content) == ""


def test_every_series_of_the_dashboard_is_there(scraped: tuple[Asked, Pages]) -> None:
    named = set().union(*(series(expression) for expression in queries().values()))
    empty = {one for one in named if not scraped[0].rows(one)}
    assert empty <= NOT_HERE, empty - NOT_HERE


def test_every_query_of_the_dashboard_gives_something(scraped: tuple[Asked, Pages]) -> None:
    asked, _ = scraped
    for where, expression in queries().items():
        rows = asked.rows(expression)
        if not series(expression) <= NOT_HERE:
            assert rows, f"{where}: {expression}"


def test_quotas_of_l1_and_of_tiers_are_there_side_by_side(scraped: tuple[Asked, Pages]) -> None:
    asked, _ = scraped
    floors = {
        row["metric"]["tier"]: int(row["value"][1])
        for row in asked.rows("kvkeep_quota_floor_bytes")
    }
    assert floors == {"l1": 1 << 20, "disk": 8 << 20}


def test_every_rule_can_be_evaluated_and_names_series_that_are_there(
    scraped: tuple[Asked, Pages],
) -> None:
    asked, _ = scraped
    for name, expression in rules().items():
        asked.rows(expression)
        empty = {one for one in series(expression) if not asked.rows(one)}
        assert empty <= NOT_HERE, (name, empty)
    time.sleep(1.5)  # a turn of the rules
    groups = asked.get("rules")["groups"]
    health = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
    assert health == dict.fromkeys(rules(), "ok")


def test_a_server_that_is_well_raises_no_alarm(scraped: tuple[Asked, Pages]) -> None:
    alerts = [alert["labels"]["alertname"] for alert in scraped[0].get("alerts")["alerts"]]
    # The arena of this test is made too small on purpose, and the machine may be a busy one.
    allowed = {"KvkeepArenaTooSmall", "KvkeepTierBehind", "KvkeepSlowLookups"}
    assert set(alerts) <= allowed, alerts


def test_what_prometheus_has_is_what_is_told(scraped: tuple[Asked, Pages]) -> None:
    asked, _ = scraped
    hit = "sum without (tier) (kvkeep_hit_tokens_total)"
    for part in (hit, "kvkeep_loaded_tokens_total"):
        (ratio,) = asked.rows(f"{part} / kvkeep_requested_tokens_total")
        assert 0 < float(ratio["value"][1]) < 1
    # Whatever was scraped so far, and while an engine asks: never more than the one before.
    since = {"start": f"{time.time() - 60}", "end": f"{time.time()}", "step": "1"}
    for wrong in (f"{hit} > kvkeep_requested_tokens_total", f"kvkeep_loaded_tokens_total > {hit}"):
        assert asked.get("query_range", query=wrong, **since)["result"] == []
    seen = asked.get("query_range", query=f"{hit} <= kvkeep_requested_tokens_total", **since)
    assert len(seen["result"][0]["values"]) >= 4
    (age,) = asked.rows("kvkeep_answer_age_seconds")
    assert 0 <= float(age["value"][1]) < 3
