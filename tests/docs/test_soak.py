"""docs/soak.md against the code: options, claims, numbers, and what the command line refuses."""

from __future__ import annotations

import re

import pytest

from tests.repository import tree
from tests.soak import figures, run
from tests.soak.__main__ import MIN_MINUTES, main
from tests.soak.figures import Minute, Sample
from tests.soak.worker import CHAIN_CHUNKS

PAGE = tree.text("docs/soak.md")
PLAIN = re.sub(r"\s+", " ", PAGE)


def test_the_options_and_their_defaults_are_the_described_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = re.sub(r"\s+", " ", capsys.readouterr().out)
    described = re.findall(r"^\| `(--[a-z]+)", PAGE, re.M)
    assert set(described) == set(re.findall(r" (--[a-z]+) [A-Z]+ [a-z]", shown))
    assert f"at least {MIN_MINUTES} (default 30)" in shown
    assert f"30 without it; {MIN_MINUTES} at least" in PAGE
    assert "at least 1 (default 64)" in shown
    assert "64 without it; 1 at least" in PAGE


@pytest.mark.parametrize(
    ("name", "value"), [("--minutes", "0.2"), ("--minutes", "nan"), ("--clients", "0")]
)
def test_a_soak_of_nothing_is_refused(
    name: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([name, value])
    assert end.value.code == 2
    assert f"a soak takes {MIN_MINUTES} minutes and one client at least" in capsys.readouterr().err


def test_the_claims_are_the_described_ones() -> None:
    done = run.Soak(1, 1, 60.0, [Sample(at, 1.0, 1) for at in range(60)], [Minute()])
    table = PAGE.partition("| claim |")[2].partition("## ")[0]
    described = re.findall(r"^\| ([a-z ]+) \| ", table, re.M)
    assert described == list(done.document()["claims"])


def test_the_numbers_of_the_page_are_the_codes() -> None:
    assert f"{run.CLIENTS_PER_PROCESS} clients to a process" in PLAIN
    assert f"chain of {CHAIN_CHUNKS} chunks" in PLAIN
    assert f"arena of {run.ARENA_MIB} MiB" in PLAIN
    assert run.TIMES_THE_ARENA == 10
    assert f"first {figures.WARM_UP_SHARE:.0%} of the time".replace("%", " %") in PLAIN
    assert figures.WARM_UP_LIMIT_S == 120
    assert f"less than {figures.MAX_SLOPE_MIB_PER_MIN:g} MiB a minute" in PLAIN
    assert f"of less than {figures.MIN_MINUTES_FOR_SLOPE:g} minutes" in PLAIN
    assert f"by less than {figures.MAX_GROWTH_MIB:g} MiB in all" in PLAIN
    assert f"at most {figures.MAX_MORE_DESCRIPTORS} apart" in PLAIN
