"""The schema of the settings: names, ranges that are the ones checked, and what a slip meant."""

from __future__ import annotations

import pytest

from protocol.errors import ConfigError
from protocol.logline import FORMATS
from server import config, schema
from server.schema import SETTINGS, nearest


def test_names_follow_from_keys_and_are_unique() -> None:
    assert SETTINGS["l1-size"].variable == "KVKEEP_L1_SIZE"
    assert len({setting.variable for setting in SETTINGS.values()}) == len(SETTINGS)
    assert [key for key, setting in SETTINGS.items() if not setting.is_in_file] == ["config"]
    assert [key for key, setting in SETTINGS.items() if setting.is_repeated] == ["l2", "quota"]


def test_every_setting_says_unit_range_default_and_purpose() -> None:
    for setting in SETTINGS.values():
        assert setting.unit
        assert setting.valid
        assert setting.default
        assert setting.purpose[-1] not in ".:"
        for part in (setting.purpose, setting.valid, f"[default: {setting.default}]"):
            assert part in setting.help


@pytest.mark.parametrize(
    ("key", "least", "most", "below", "above"),
    [
        ("l1-size", "1M", "16T", "1023K", "17T"),
        ("extent-size", "64K", "1G", "60K", "1025M"),
        ("incomplete-timeout", "0.1", "86400", "0.09", "86401"),
        ("promote-deadline", "0.01", "3600", "0.009", "3601"),
    ],
)
def test_the_ranges_that_are_told_are_the_ones_that_hold(
    key: str, least: str, most: str, below: str, above: str
) -> None:
    assert f"{least} to {most}" in SETTINGS[key].valid
    for text in (least, most):
        config.read({"endpoint": "ipc:///a/b", key: text}, {})
    for text in (below, above):
        with pytest.raises(ConfigError, match=key):
            config.read({"endpoint": "ipc:///a/b", key: text}, {})


@pytest.mark.parametrize("key", ["arena-at-exit", "log-format", "log-level"])
def test_the_words_that_are_told_are_the_ones_that_are_taken(key: str) -> None:
    words = {
        "arena-at-exit": schema.AT_EXIT,
        "log-format": FORMATS,
        "log-level": schema.LOG_LEVELS,
    }[key]
    for word in words:
        assert word in SETTINGS[key].valid
        config.read({"endpoint": "ipc:///a/b", key: word}, {})
    assert SETTINGS[key].default in words


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("l1size", "l1-size"),
        ("l1_size", "l1-size"),
        ("L1-SISE", "l1-size"),
        ("log_lvl", "log-level"),
        ("promote-dedline", "promote-deadline"),
        ("zzz", ""),
        ("", ""),
    ],
)
def test_a_slip_leads_to_what_was_meant(name: str, meant: str) -> None:
    assert nearest(name, SETTINGS) == meant
