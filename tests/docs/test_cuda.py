"""docs/cuda.md and the section on doctor against the code: words, numbers, options, log lines."""

from __future__ import annotations

import re

from adapter import pinning
from server.cli import gpucheck, hostcheck
from server.cli.doctor import command
from server.cli.findings import Level
from server.config import KEYS
from server.copier import bounce, probe
from server.core import copiers
from tests.repository import tree

PAGE = tree.text("docs/cuda.md")
OPERATIONS = tree.text("docs/operations.md")
PART = OPERATIONS[
    OPERATIONS.index("## Checking a machine") : OPERATIONS.index("## Checking an installation")
]
MIB = 1 << 20


def test_doctors_options_and_levels_are_the_described_ones() -> None:
    options = {option for parameter in command.params for option in parameter.opts}
    described = set(re.findall(r"`(--[a-z0-9-]+)", PART))
    assert options <= described
    assert described - options <= {f"--{key}" for key in KEYS}, "else of launch, which it looks at"
    levels = PART[PART.index("| level |") :]
    assert re.findall(r"^\| `([a-z]+)` \|", levels, re.M) == [level.value for level in Level]
    assert f"{gpucheck.PROBE_LIMIT_S:.0f} s each" in PART


def test_what_is_to_be_compared_is_what_doctor_says() -> None:
    about = {finding.about for finding in hostcheck.findings({})}
    assert {"namespaces", "user"} <= about
    for text in (PAGE, PART):
        assert "`namespaces` and `user`" in re.sub(r"\s+", " ", text)


def test_the_numbers_of_the_page_are_the_codes() -> None:
    plain = re.sub(r"\s+", " ", PAGE)
    assert f"{bounce.BOUNCE_BYTES // MIB} MiB" in plain
    assert f"page-locks {probe.PIN_BYTES // MIB} MiB" in plain
    assert f"read {probe.COPY_BYTES // MIB} MiB" in plain
    assert f"at most {pinning.LONGEST_PAUSE_S:g} s" in plain
    assert f"ended {copiers.IDLE_NS // 10**9} s after the last one left" in plain


def test_the_log_lines_of_the_page_are_in_the_code() -> None:
    code = re.sub(r'"\s*\n\s*f?"', "", "\n".join(tree.text(p) for p in tree.files("adapter")))
    for line in ("the server reads the pool itself", "saves go through a"):
        assert line in PAGE
        assert line in code


def test_the_page_says_first_that_nothing_ran_on_a_gpu() -> None:
    begin = PAGE[: PAGE.index("## ")]
    assert "has run on a GPU yet" in begin
    table = PAGE[PAGE.index("| | without a GPU | on a GPU |") :]
    assert len(re.findall(r"\| (not yet|no) \|$", table, re.M)) >= 6
