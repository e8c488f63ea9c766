"""B53: health that stays green while nothing can be saved or a tier is dead. A worker is frozen and
a tier is broken in earnest: /readyz is red within ten seconds and says which; /healthz, which asks
for a restart, stays green, since a restart is not what helps.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from server import asking
from tests.server.web.pageserver import Pages, serving
from tests.server.web.traffic import Script, scripted
from tests.wire.client import make_keys
from tests.wire.process import ServerProcess, wait_until

SEEN_S = 10.0


@pytest.fixture
def tier(short_dir: Path) -> Path:
    return short_dir / "l2"


@pytest.fixture
def server(short_dir: Path, shm_dir: Path, tier: Path) -> Iterator[ServerProcess]:
    sizes = ("--l1-size", "16M", "--extent-size", "1M", "--l2", f"disk:{tier}?size=64M")
    with ServerProcess(short_dir, shm_dir / "a", *sizes) as made:
        yield made


@pytest.fixture
def pages(server: ServerProcess) -> Iterator[Pages]:
    with serving(server.side_path) as (made, _):
        assert wait_until(lambda: made.get("/readyz")[0] == 200, 15, every_s=0.2)
        yield made


@pytest.fixture
def script(server: ServerProcess) -> Iterator[Script]:
    made = scripted(server)
    yield made
    made.engine.close()


def why(pages: Pages) -> str:
    """What /readyz has against the server, while /healthz has nothing."""
    assert pages.get("/healthz")[0] == 200
    code, content = pages.get("/readyz")
    told = json.loads(content)["why"]
    assert (code == 200) == (told == [])
    return "; ".join(told)


def test_b53_a_frozen_copier_is_seen(server: ServerProcess, pages: Pages, script: Script) -> None:
    porter = asking.stats(server.side_path, 10)["tier_disk_porter_pid"]
    (copier,) = set(server.children()) - {porter}
    os.kill(copier, signal.SIGSTOP)
    try:
        seq = script.engine.submit_store(make_keys(1, 8), list(range(8)))
        begun_s = time.monotonic()
        assert wait_until(lambda: "copiers: " in why(pages), SEEN_S, every_s=0.3), why(pages)
        assert time.monotonic() - begun_s < SEEN_S
    finally:
        os.kill(copier, signal.SIGCONT)
    script.engine.stored(seq)
    assert wait_until(lambda: why(pages) == "", 15, every_s=0.3), why(pages)


@pytest.mark.slow
def test_b53_a_killed_copier_is_seen_or_back_at_once(
    server: ServerProcess, pages: Pages, script: Script
) -> None:
    porter = asking.stats(server.side_path, 10)["tier_disk_porter_pid"]
    (copier,) = set(server.children()) - {porter}
    os.kill(copier, signal.SIGKILL)
    assert wait_until(lambda: pages.metrics()['kvkeep_copier_restarts_total{copier="host"}'] == 1)
    assert wait_until(lambda: why(pages) == "", 15, every_s=0.3), why(pages)
    script.save(make_keys(1, 8), list(range(8)))
    assert script.counted.published == 8


@pytest.mark.slow
def test_b53_a_frozen_porter_is_seen(server: ServerProcess, pages: Pages, script: Script) -> None:
    porter = asking.stats(server.side_path, 10)["tier_disk_porter_pid"]
    os.kill(porter, signal.SIGSTOP)
    try:
        script.save(make_keys(1, 8), list(range(8)))  # is to be written to the tier
        begun_s = time.monotonic()
        assert wait_until(lambda: "tiers: disk: " in why(pages), SEEN_S, every_s=0.3), why(pages)
        assert time.monotonic() - begun_s < SEEN_S
        assert pages.get("/readyz?exclude=tiers")[0] == 200
    finally:
        with contextlib.suppress(ProcessLookupError):  # the server may have ended it by then
            os.kill(porter, signal.SIGCONT)
    assert script.load(make_keys(1, 8)) == 8, "L1 serves meanwhile"
    assert wait_until(lambda: why(pages) == "", 40, every_s=0.5), why(pages)


def test_b53_a_tier_that_was_taken_away_is_seen(
    server: ServerProcess, pages: Pages, script: Script, tier: Path
) -> None:
    ending = threading.Event()

    def work() -> None:
        seed = 1
        while not ending.wait(0.05):
            script.play(prompts=2, seed=seed)
            seed += 2

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        shutil.rmtree(tier)
        tier.write_text("no folder any more")
        assert wait_until(lambda: "tiers: disk: " in why(pages), SEEN_S + 2, every_s=0.3)
    finally:
        ending.set()
        thread.join(20)
