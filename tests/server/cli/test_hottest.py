"""``kvkeep inspect --hottest``: what the most found prompts begin with."""

from __future__ import annotations

from protocol.prefixes import HEAD_BYTES, PrefixStatus
from server.cli.hottest import hottest_text, of_hottest
from tests.server.cli.cached import FIRST, SECOND, Cached, keys_of
from tests.server.cli.told import reply

ROW = PrefixStatus(fingerprint=b"n" * 16, head=b"prefix", chunks=1500, hits=7, idle_s=65.0)
STRANGER = PrefixStatus(fingerprint=b"o" * 16, head=b"others", chunks=2, hits=1, idle_s=0.0)


def test_a_live_server_tells_what_was_found(holding: Cached) -> None:
    assert keys_of(FIRST)[0] == keys_of(SECOND)[0], "they begin alike"
    before = holding.told("inspect", "--hottest")["prefixes"]
    for prompt in (FIRST, SECOND, SECOND):
        found = holding.engine.lookup(keys_of(prompt))
        assert found.ready == len(keys_of(prompt))
        holding.engine.release(found.lease)
    [one] = holding.told("inspect", "--hottest")["prefixes"]
    assert one["head"] == keys_of(FIRST)[0][:HEAD_BYTES].hex()
    assert one["hits"] == sum(row["hits"] for row in before) + 3
    assert (one["name"], one["fingerprint"]) == ("test/model", holding.name)
    assert (one["chunks"], one["tokens"]) == (4, 128)
    assert one["head"] in holding.run("inspect", "--hottest").output
    named = holding.told("inspect", "--hottest", "--namespace", "test/model")
    assert [row["head"] for row in named["prefixes"]] == [one["head"]]
    assert holding.told("inspect", "--hottest", "--namespace", "0" * 32, code=3)["prefixes"] == []


def test_prompts_and_the_hottest_are_not_asked_for_together(holding: Cached) -> None:
    refused = holding.run("inspect", "--hottest", "--key", "1" * 32)
    assert refused.exit_code == 2
    assert "--hottest" in refused.output


def test_of_all_namespaces_or_of_one() -> None:
    status = reply(prefixes=(ROW, STRANGER))
    both = of_hottest(status, None)["prefixes"]
    assert [(row["name"], row["tokens"]) for row in both] == [("m/one", 48_000), ("", 0)]
    assert [row["hits"] for row in of_hottest(status, b"o" * 16)["prefixes"]] == [1]


def test_for_people() -> None:
    shown = hottest_text(of_hottest(reply(prefixes=(ROW,)), None))
    assert b"prefix".hex() in shown
    for part in ("m/one", "1,500", "48,000", "1m 5s"):
        assert part in shown
    assert hottest_text({"prefixes": []}) == "nothing that is in L1 was found of late"
