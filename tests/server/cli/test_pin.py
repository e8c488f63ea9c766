"""``kvkeep pin``: a live server keeps what it is told to, for as long as it is told to."""

from __future__ import annotations

import pytest

from protocol.errors import ConfigError
from server import asking
from server.cli.pin import seconds
from tests.server.cli.cached import FIRST, SECOND, SYSTEM, Cached
from tests.wire.process import wait_until


def pinned(holding: Cached) -> int:
    return asking.stats(holding.server.side_path, 10.0)["pinned_prefixes"]


def test_prompts_are_pinned_for_a_time(holding: Cached) -> None:
    prompts = holding.file(FIRST, SECOND)
    found = holding.told("pin", "--tokens", prompts, "--ttl", "2d")
    assert found["ttl_s"] == 172_800
    assert found["prompts"] == [{"chunks": 5, "pinned": 5}, {"chunks": 4, "pinned": 4}]
    [one] = holding.told("inspect")["namespaces"]
    assert one["pinned_chunks"] == 7, "both begin with the same two, which count once"
    assert pinned(holding) == 2
    # The time is set anew, and then over.
    shown = holding.run("pin", "--tokens", prompts, "--ttl", "1")
    assert shown.output == "prompt 1: 5 of 5 chunks pinned\nprompt 2: 4 of 4 chunks pinned\n"
    assert wait_until(lambda: pinned(holding) == 0, 10.0, 0.1)


def test_what_is_not_there_as_a_whole_is_said(holding: Cached) -> None:
    longer = holding.file([*SYSTEM, *range(5000, 5064)])
    found = holding.told("pin", "--tokens", longer, code=3)
    assert found["prompts"] == [{"chunks": 4, "pinned": 2}]
    refused = holding.run("pin", "--tokens", longer, "--ttl", "31d")
    assert refused.exit_code == 2
    assert "30d at most" in refused.output
    refused = holding.run("pin")
    assert refused.exit_code == 2
    assert "--tokens FILE, or --key HEX" in refused.output


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("90s", 90), ("30m", 1800), (" 12H ", 43_200), ("30d", 2_592_000)],
)
def test_spans_of_time(text: str, expected: int) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5h", "h", "1w", "31d", "99999999999"])
def test_what_is_no_span_of_time(text: str) -> None:
    with pytest.raises(ConfigError, match="ttl="):
        seconds(text)
