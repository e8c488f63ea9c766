"""How the server and its children come to write lines of one form."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.wire.process import ROOT

BREAKS = """
import threading
from server import logsetup
logsetup.child("copier")
logsetup.say("copier", "numa_place", "far away")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start(); thread.join()
raise KeyError("no such thing")
"""

SERVER_BREAKS = """
import logging, sys, threading
from server import logsetup
logsetup.set_up(logging.StreamHandler(), "INFO", "json")
thread = threading.Thread(target=sys.exit)
thread.start(); thread.join()
raise KeyError("no such thing")
"""


def lines(form: str, script: str = BREAKS) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "KVKEEP_LOG_FORMAT": form},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    return done.stderr.splitlines()


def test_a_child_that_breaks_says_so_in_json() -> None:
    told = [json.loads(line) for line in lines("json")]
    assert [(one["event"], one["process"]) for one in told] == [
        ("numa_place", "copier"),
        ("uncaught", "copier"),
        ("uncaught", "copier"),
    ]
    assert "ZeroDivisionError" in told[1]["traceback"]
    assert told[2]["message"] == "KeyError('no such thing')"


def test_a_server_that_breaks_says_so_in_json() -> None:
    [line] = lines("", SERVER_BREAKS)
    told = json.loads(line)
    assert (told["event"], told["process"], told["level"]) == ("uncaught", "server", "CRITICAL")
    assert "KeyError" in told["traceback"]


@pytest.mark.parametrize("form", ["text", ""])
def test_elsewhere_it_is_as_python_has_it(form: str) -> None:
    found = lines(form)
    assert found[0] == "kvkeep copier: far away"
    assert found[-1] == "KeyError: 'no such thing'"
