"""A part of a family's cases runs, another one with another seed, and no other test is left out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository import tree
from tests.repository.sampled import left_out

FILE = """
import pytest

@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", range(10))
def test_family(case): pass

@pytest.mark.parametrize("case", range(4))
def test_plain(case): pass

@pytest.mark.sampled(9)
@pytest.mark.parametrize("case", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_small(case): pass
"""
FAMILY = "tests/restarts/test_restarts.py"


class Collected:
    """A plugin that keeps what was collected."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = list(session.items)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[pytest.Item]:
    folder, seen = tmp_path_factory.mktemp("families"), Collected()
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    sampled\n    slow\n")
    (folder / "test_families.py").write_text(FILE)
    options = ["--collect-only", "--import-mode=importlib", "-p", "no:cacheprovider"]
    assert pytest.main([*options, "-p", "no:terminal", str(folder)], plugins=[seen]) == 0
    assert len(seen.items) == 16
    return seen.items


def ran(cases: list[pytest.Item], seed: int) -> list[str]:
    out = left_out(cases, str(seed))
    return [item.name for item in cases if item not in out]


def test_a_part_of_each_family_and_all_of_the_others(cases: list[pytest.Item]) -> None:
    for seed in range(20):
        names = ran(cases, seed)
        counts = [sum(name.startswith(one) for name in names) for one in ("test_f", "test_p")]
        assert counts == [4, 4]
        assert {"test_small[0]", "test_small[1]"} < set(names), "never none of them"
        assert ran(cases[::-1], seed) == names[::-1], "in whatever order they come"


def test_over_many_seeds_every_case_runs(cases: list[pytest.Item]) -> None:
    everything = {name for seed in range(40) for name in ran(cases, seed)}
    assert everything == {item.name for item in cases}


def test_make_test_draws_and_a_run_of_pytest_does_not(tmp_path: Path) -> None:
    assert re.search(r"^test: export KV_SAMPLED \?=", tree.text("Makefile"), re.M)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-o",
        f"cache_dir={tmp_path}",
        FAMILY,
    ]
    environ = {name: value for name, value in os.environ.items() if name != "KV_SAMPLED"}
    counts = []
    for more in ({}, {"KV_SAMPLED": "5"}):
        done = subprocess.run(
            command,
            cwd=tree.ROOT,
            env={**environ, **more},
            capture_output=True,
            text=True,
            check=True,
        )
        counts.append(done.stdout.count("<Function test_a_server_without_a_guard"))
        assert ("KV_SAMPLED=5" in done.stdout) == bool(more)
    assert counts == [3, 1]
