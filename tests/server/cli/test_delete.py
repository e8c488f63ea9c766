"""``kvkeep delete``: what is named is gone, in L1 and in a tier, and what was not named stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from protocol.keys import ReuseScope
from protocol.messages import (
    DeleteSalt,
    DeleteSaltReply,
    LookupReply,
    QueryPrefetchStatus,
    StatusReply,
    Store,
    StoreReply,
)
from server import asking
from server.cli.delete import _of_salt, told, told_of_salt
from tests.server.cli import test_quota
from tests.server.cli import told as told_status
from tests.server.cli.cached import FIRST, SECOND, SYSTEM, Cached, cached, keys_of
from tests.wire.process import wait_until


def held(holding: Cached, *prompts: list[int]) -> list[int]:
    result = holding.run("inspect", "--json", "--tokens", holding.file(*prompts))
    assert result.exit_code in (0, 3)
    return [one["held"] for one in json.loads(result.output)["prompts"]]


def test_one_prompt_goes_and_what_others_share_stays(holding: Cached) -> None:
    name = ("--namespace", holding.name)
    first = holding.file(FIRST)
    found = holding.told("delete", "--tokens", first, *name, "--from-token", str(len(SYSTEM)))
    expected = {"prompts": 1, "deleted": 3, "found_after": 0, "tiers_pending": 0}
    assert found == {"fingerprint": holding.name, **expected}
    assert held(holding, FIRST, SECOND) == [2, 4]
    # Again: nothing is there to be deleted, and that is no error.
    assert holding.told("delete", "--tokens", first, *name, "--from-token", "64")["deleted"] == 0
    # From its start on: with all that continues it, the other prompt too.
    shown = holding.run("delete", "--tokens", holding.file(SYSTEM), *name)
    assert shown.exit_code == 0
    assert shown.output.splitlines() == [
        "deleted 4 chunks of 1 prompt from L1, with what continued them",
        "asked again: nothing of them is found",
    ]
    assert held(holding, FIRST, SECOND) == [0, 0]
    assert asking.stats(holding.server.side_path, 10.0)["deleted_chunks"] == 7


def test_what_makes_no_sense_is_refused(holding: Cached) -> None:
    for arguments, said in (
        (["--key", "1" * 32], "say where to delete from: --namespace NAME"),
        (["--namespace", holding.name], "--tokens FILE, or --key HEX"),
        (["--namespace", holding.name, "--key", "xyz"], "32 hex digits of a chunk's key"),
        (["--namespace", "0" * 32, "--key", "1" * 32, "--from-token", "9"], "--tokens with it"),
        (["--salt", ""], "an empty salt is none"),
        (["--salt", "x", "--namespace", holding.name], "--tokens FILE, or --key HEX"),
        (["--salt", "x", "--from-token", "9"], "goes with prompts"),
        (["--tenant", "salt/" + "1" * 32, "--salt", "x"], "--tenant stands alone"),
        (["--tenant", f"namespace/{holding.name}"], "kvkeep clear"),
    ):
        refused = holding.run("delete", *arguments)
        assert refused.exit_code == 2, refused.output
        assert said in refused.output
        assert refused.output.count("\n") == 1


def test_a_tier_forgets_too(short_dir: Path, shm_dir: Path) -> None:
    (short_dir / "l2").mkdir()
    with cached(short_dir, shm_dir, "--l2", f"disk:{short_dir}/l2?size=64M") as holding:

        def counted(name: str) -> int:
            return asking.stats(holding.server.side_path, 10.0).get(name, 0)

        assert wait_until(lambda: counted("tier_disk_put_bytes") >= 7 * 16_384, 20.0, 0.05)
        prompts = holding.file(FIRST)
        found = holding.told("delete", "--tokens", prompts, "--namespace", "test/model")
        # SECOND lost its beginning, and so all of itself.
        assert (found["deleted"], found["found_after"], found["tiers_pending"]) == (7, 0, 0)
        engine = holding.engine
        engine.lookup(keys_of(FIRST))
        body = QueryPrefetchStatus(session=engine.session, request=1, wait_ms=5000)
        reply = engine.wire.call(body, LookupReply)
        assert (reply.ready, reply.final) == (0, True)


def save_as(holding: Cached, salt: str, tokens: list[int]) -> list[bytes]:
    """Saves a prompt as an engine does for a salted request."""
    engine, keys = holding.engine, keys_of(tokens, salt)
    body = Store(
        session=engine.session,
        store=1_000_000 + len(salt),
        request=1,
        shard=0,
        start=0,
        parent=b"",
        keys=b"".join(keys),
        pages=b"".join(number.to_bytes(4, "little") for number in range(len(keys))),
        tenant=ReuseScope(cache_salt=salt).tenant(),
    )
    stored = engine.wire.call(body, StoreReply)
    assert engine.commit(body.store, stored.copied).published == len(keys)
    return keys


@pytest.mark.parametrize("layout", ["slab", "files"])
def test_all_of_a_salt_goes_from_l1_and_the_disk_and_of_nobody_else(
    short_dir: Path, shm_dir: Path, layout: str
) -> None:
    (short_dir / "l2").mkdir()
    url = f"disk:{short_dir}/l2?size=64M&layout={layout}"
    with cached(short_dir, shm_dir, "--l2", url) as holding:
        mine, others = save_as(holding, "tenant", FIRST), save_as(holding, "another", FIRST)
        num_bytes = (7 + len(mine) + len(others)) * 16_384

        def put_bytes() -> int:
            stats = asking.stats(holding.server.side_path, 10.0)
            return stats.get("tier_disk_put_bytes", 0)

        assert wait_until(lambda: put_bytes() >= num_bytes, 20.0, 0.05)
        words = ("set", "1M", "--tier", "disk", "--salt", "tenant")
        (quota,) = test_quota.told(holding, *words)["quotas"]
        assert (quota["tier"], quota["floor_bytes"]) == ("disk", 1 << 20)
        digits = ReuseScope(cache_salt="tenant").tenant().hex()
        found = holding.told("delete", "--salt", "tenant")
        assert found == {
            "tenant": f"salt/{digits}",
            "deleted": len(mine),
            "tier_values": {"disk": len(mine)},
            "at_least": False,
            "tiers_unknown": [],
            "tiers_away": {},
            "tiers_pending": 0,
            "found_after": 0,
        }
        engine = holding.engine
        engine.lookup(mine)
        body = QueryPrefetchStatus(session=engine.session, request=1, wait_ms=5000)
        reply = engine.wire.call(body, LookupReply)
        assert (reply.ready, reply.final) == (0, True)
        assert engine.lookup(others, request=2).ready == len(others)
        assert held(holding, FIRST, SECOND) == [5, 4]
        shown = holding.run("delete", "--tenant", f"salt/{digits}")
        assert shown.output.splitlines() == [
            "deleted 0 chunks from L1",
            "deleted 0 values from disk",
            "asked again: nothing of it is found",
            f"nothing was found of salt/{digits}: is that the salt, exactly as requests have it?",
        ]


def test_what_of_a_salt_may_be_left_is_said() -> None:
    document = {
        "tenant": "salt/1",
        "deleted": 0,
        "tier_values": {"disk": 2},
        "at_least": True,
        "tiers_unknown": ["s3", "valkey"],
        "tiers_away": {"valkey": "a check-up failed"},
        "tiers_pending": 1,
        "found_after": 3,
    }
    assert told_of_salt(document).splitlines() == [
        "deleted 0 chunks from L1",
        "deleted at least 2 values from disk",
        "s3 cannot tell whose its values are, or not in time: of it goes what the others named",
        "valkey cannot be asked now (a check-up failed): of it goes what the others named",
        "asked again: 3 are there, stored anew or not forgotten yet",
        "1 tier has not forgotten yet: what it has is not counted above; ask again later",
    ]
    two = told_of_salt(document | {"tiers_pending": 2}).splitlines()
    assert two[-1].startswith("2 tiers have not forgotten yet: what they have is not")


def test_what_is_not_over_yet_is_said() -> None:
    document = {"deleted": 1, "prompts": 1, "found_after": 2, "tiers_pending": 1}
    lines = told(document).splitlines()
    assert lines[1] == "asked again: 2 chunks are there, stored anew"
    assert lines[2].startswith("1 tier has not forgotten yet")


class Stuck:
    """A server of which a tier names what it cannot be told to forget."""

    def __init__(self) -> None:
        self.asked: list[DeleteSalt] = []

    def status(self, limit_s: float) -> StatusReply:
        away = {"store": "a check-up failed", "old": "", "else": "hangs"}
        rows = [replace(told_status.TIER, name=one, state="down", why=away[one]) for one in away]
        return told_status.reply(tiers=(told_status.TIER, *rows))

    def expect(self, body: DeleteSalt, kind: type[DeleteSaltReply], limit_s: float) -> object:
        self.asked.append(body)
        values = {"disk": 448 if body.look or len(self.asked) == 1 else 0}
        unknown = ("disk", "old", "store") if body.look else ()
        return kind(chunks=0, tier_values=values, tiers_unknown=unknown, more=True)


def test_what_does_not_get_on_is_not_asked_for_ever() -> None:
    server = Stuck()
    document = _of_salt(server, b"s" * 16)  # type: ignore[arg-type]
    assert [one.look for one in server.asked] == [False, False, True]
    assert (document["tier_values"], document["found_after"]) == ({"disk": 448}, 448)
    assert document["tiers_unknown"] == ["disk", "old", "store"], (
        "what cannot be asked again is not known to be gone"
    )
    assert document["tiers_away"] == {"old": "down", "store": "a check-up failed"}
    assert document["at_least"]
