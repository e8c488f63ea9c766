"""An engine's lines as objects, once, and bounded."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from adapter import loglines
from adapter.config import read_settings
from adapter.journal import Journal
from protocol.errors import ConfigError
from protocol.logline import LINES
from tests.adapter.hostlike import Args


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """The adapter's, as it was again afterwards."""
    found = logging.getLogger(loglines.NAME)
    before = (list(found.handlers), found.propagate, found.level)
    loglines.set_up()
    loglines.set_up()
    yield found
    found.handlers[:], found.propagate = before[0], before[1]
    found.setLevel(before[2])


def told(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_kind_of_trouble_is_the_event(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(logging.getLogger("kvkeep.link"))
    journal.report("saves_refused", "a save was refused: BUSY")
    journal.report("saves_refused", "a save was refused: BUSY")
    [line] = told(capsys)
    assert (line["event"], line["process"]) == ("saves_refused", "adapter")
    assert line["message"] == "a save was refused: BUSY"


def test_a_flood_is_cut_and_counted(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(LINES + 30):
        logger.warning("flood: %d", number)
    assert len(told(capsys)) == LINES
    late = logging.LogRecord("kvkeep", logging.WARNING, "x", 1, "calm: %s", ("y",), None)
    late.created += 61
    logger.handle(late)
    lines = told(capsys)
    assert [(one["event"], one.get("left_out")) for one in lines] == [("flood", 30), ("calm", None)]
    late.created += 1
    late.msg = "flood: %s"
    logger.handle(late)
    assert told(capsys)[0]["message"] == "flood: y"


def test_the_setting_is_checked() -> None:
    environ = {"TRTLLM_KVKEEP_SERVER_URL": "tcp://localhost:1"}
    assert not read_settings(Args(), environ).logs_json
    assert read_settings(Args(), {**environ, "KVKEEP_LOG_FORMAT": "JSON"}).logs_json
    for name, wrong in (("KVKEEP_LOG_FORMAT", "xml"), ("KVKEEP_TRACES", "2")):
        with pytest.raises(ConfigError, match=name):
            read_settings(Args(), {**environ, name: wrong})
    assert read_settings(Args(), {**environ, "KVKEEP_TRACES": "0.5"}).traces == 0.5
