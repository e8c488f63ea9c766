"""The process as the kernel has it: its age, its descriptors, its collector."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import time

import pytest

from protocol.errors import ConfigError
from server import process
from tests.wire.process import ROOT


def test_its_age_counts_from_its_start() -> None:
    first_s = process.process_age_s()
    time.sleep(0.1)
    assert 0.05 <= process.process_age_s() - first_s < 5
    assert first_s > 0


def test_the_collector_leaves_what_was_loaded_alone() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        process.calm_collector()
        assert gc.get_freeze_count() > frozen
        assert gc.get_threshold()[0] > before[0]
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def test_the_soft_limit_is_raised_and_a_low_hard_one_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1 << 20))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: told.append(limits))
    process.raise_descriptor_limit()
    assert told == [(1 << 20, 1 << 20)]
    few = process.MIN_OPEN_FILES - 1
    monkeypatch.setattr(resource, "getrlimit", lambda which: (few, few))
    with pytest.raises(ConfigError, match=str(process.MIN_OPEN_FILES)):
        process.raise_descriptor_limit()


def test_closed_standard_descriptors_are_taken_by_dev_null() -> None:
    script = (
        "import os\n"
        "from server.process import occupy_standard_descriptors\n"
        "os.close(0); os.close(2)\n"
        "occupy_standard_descriptors()\n"
        "names = [os.readlink(f'/proc/self/fd/{fd}') for fd in (0, 2)]\n"
        "os.write(1, ' '.join(names).encode())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, timeout=20, check=True
    )
    assert done.stdout.decode().split() == [os.devnull, os.devnull]
