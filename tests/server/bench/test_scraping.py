"""The bench beside scraping in small: a real server with its pages, and both kinds of turns."""

from __future__ import annotations

import json
import math

import pytest

from server.bench import scraping, session, sizing
from server.bench.noise import WHICH
from server.bench.scraper import PATHS
from server.bench.scraping import TURNS, Turns
from tests.server.bench.test_run import SMALL

FEW = Turns(turns=1, lookups=10, rounds=1)


@pytest.mark.slow
def test_every_figure_is_measured_with_and_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sizing, "choose", lambda available_bytes, quick: SMALL)
    monkeypatch.setattr(scraping, "TURNS", {True: FEW})
    assert session.run(as_json=True, quick=True, check=False, seed=1, scrape=True) == 0
    said = capsys.readouterr()
    assert said.err.splitlines() == ["cold slots", "with and without scraping"]
    document = json.loads(said.out)
    taken, figures = document["samples"], document["figures"]
    assert taken["turns"]["turns"] == len(taken["without"]) == len(taken["scraped"]) == 1
    (scraped,) = taken["scrapes"]
    assert scraped["scrapes"] >= 1
    assert scraped["num_bytes"] > 1000 * len(PATHS)
    assert all(math.isfinite(value) and value > 0 for value in figures.values())
    targets = {f"{name.removesuffix('_ms')}_scraped_by_without" for name in WHICH}
    assert document["targets"].keys() == targets
    assert figures.keys() == targets | WHICH.keys() | {"echo_p50_scraped_by_without"}


def test_the_full_run_is_the_longer_one() -> None:
    full, quick = TURNS[False], TURNS[True]
    assert full.turns > quick.turns >= 3
    assert full.lookups > quick.lookups
