"""What one engine learns of another's leases, and one tenant of another's salt: nothing.

Each answer about something of somebody else's is compared, field by field, with the answer about
something that never was.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol.frames import Reply
from protocol.keys import BlockHashChain, ReuseScope
from protocol.messages import (
    Cancel,
    ChunkCountReply,
    Commit,
    Delete,
    EndSession,
    Heartbeat,
    HeartbeatReply,
    Inspect,
    Lookup,
    LookupReply,
    Mapped,
    Pin,
    QueryPrefetchStatus,
    Release,
    Request,
    Retrieve,
    RetrieveReply,
    Unpin,
    Unregister,
)
from protocol.namespace import fingerprint
from tests.faults.bystander import engaged, fill, submit_store
from tests.wire.client import Engine, make_keys
from tests.wire.process import ServerProcess

NEVER = 2**62
NUM = 8
TOKENS = list(range(NUM * 32))


def plain(reply: Reply, *secrets: int) -> Any:
    """An answer without what must differ: numbers that the asker itself named."""
    if reply.error is None:
        return msgspec.to_builtins(reply.body, builtin_types=(bytes,))
    text = reply.error.message
    for secret in secrets:
        text = text.replace(str(secret), "N")
    return [reply.error.code.name, text, reply.error.detail, reply.error.retryable]


def ask(engine: Engine, body: Request, *secrets: int) -> Any:
    return plain(engine.wire.reply(engine.wire.submit(body)), *secrets)


@pytest.fixture
def pair(server: ServerProcess) -> Iterator[tuple[Engine, Engine]]:
    """Two engines of one namespace; the first has saved."""
    with engaged(server) as victim, engaged(server) as thief:
        fill(victim, 1)
        assert victim.save(make_keys(1, NUM), list(range(NUM))) == NUM
        yield victim, thief


def test_anothers_lease_is_answered_like_one_that_never_was(pair: tuple[Engine, Engine]) -> None:
    victim, thief = pair
    keys = make_keys(1, NUM)
    found = victim.lookup(keys, request=77)
    assert found.ready == NUM
    absent = os.urandom(16)

    def attempts(lease: bytes) -> list[Any]:
        mine = thief.session
        return [
            ask(thief, Retrieve(session=mine, lease=lease, start=0, count=1)),
            ask(thief, Retrieve(session=mine, lease=lease, start=10_000, count=1)),
            ask(thief, Retrieve(session=mine, lease=lease, start=0, count=16_384)),
            ask(thief, Release(session=mine, lease=lease)),
            ask(thief, Release(session=mine, lease=lease, start=0, count=1)),
            ask(thief, Release(session=mine, lease=lease, all_readers=True)),
        ]

    theirs, never = attempts(found.lease), attempts(absent)
    assert theirs == never
    assert [answer[0] for answer in theirs[:3]] == ["UNKNOWN_LEASE"] * 3
    assert theirs[3:] == [{"chunks": 0}] * 3
    # Nothing of that had an effect: pinned and unpinned parts are both still there.
    body = Retrieve(session=victim.session, lease=found.lease, start=0, count=NUM)
    assert len(victim.wire.call(body, RetrieveReply).slots) > 0
    assert attempts(found.lease) == attempts(absent)
    assert victim.release(found.lease) == NUM


def test_anothers_requests_and_sessions_are_answered_like_ones_that_never_were(
    pair: tuple[Engine, Engine],
) -> None:
    victim, thief = pair
    keys = make_keys(1, NUM)
    found = victim.lookup(keys, request=77)
    fill(victim, 2)
    submit_seq = submit_store(victim, make_keys(2, 4), [0, 1, 2, 3], 5)
    assert victim.wire.reply(submit_seq).error is None  # copied, and awaits its COMMIT

    def attempts(request: int, session: int, store: int) -> list[Any]:
        mine = thief.session
        named = (
            EndSession(session=mine, request=request),
            QueryPrefetchStatus(session=mine, request=request, wait_ms=0),
            Commit(session=mine, store=store, count=1),
            Cancel(session=mine, store=store),
            Lookup(session=session, request=1, start=0, keys=b"".join(keys)),
            Retrieve(session=session, lease=found.lease, start=0, count=1),
            Release(session=session, lease=found.lease),
            Heartbeat(session=session),
            Mapped(session=session, unmapped=(1).to_bytes(4, "little")),
            Unregister(session=session),
            Commit(session=session, store=store, count=1),
            Cancel(session=session, store=store),
        )
        return [ask(thief, body, request, session, store) for body in named]

    theirs = attempts(77, victim.session, 5)
    assert theirs == attempts(NEVER, NEVER - 1, NEVER - 2)
    assert [answer[0] for answer in theirs[4:]] == ["UNKNOWN_SESSION"] * 8
    # A heartbeat ends leases of requests it does not name: of its own engine's, and no other's.
    thief.wire.call(Heartbeat(session=thief.session), HeartbeatReply)
    body = Retrieve(session=victim.session, lease=found.lease, start=0, count=NUM)
    assert len(victim.wire.call(body, RetrieveReply).slots) > 0
    assert victim.commit(5, 4).published == 4
    assert victim.release(found.lease) == NUM


def test_leases_cannot_be_guessed_from_earlier_ones(pair: tuple[Engine, Engine]) -> None:
    victim, _ = pair
    keys = make_keys(1, NUM)
    leases = [victim.lookup(keys, request=number).lease for number in range(512)]
    assert len(set(leases)) == 512
    for place in range(16):
        # 512 draws of a byte leave out about 35 of its 256 values; a counter, a clock or a part
        # that is the process's own would repeat far more.
        assert len({lease[place] for lease in leases}) > 180, place
    for one, other in itertools.pairwise(leases):
        apart = int.from_bytes(one, "big") ^ int.from_bytes(other, "big")
        assert 30 < apart.bit_count() < 98


@contextmanager
def tenants(folder: Path, shm: Path, name: str) -> Iterator[tuple[Engine, Engine]]:
    """Two engines of one namespace on a server of their own."""
    place = folder / name
    place.mkdir()
    with (
        ServerProcess(place, shm / name) as server,
        engaged(server) as victim,
        engaged(server) as prober,
    ):
        yield victim, prober


def keys_of(salt: str | None, tokens: list[int] = TOKENS) -> list[bytes]:
    chain = BlockHashChain.start(ReuseScope(cache_salt=salt), 32)
    chain.extend(tokens)
    return [bytes(chain.key(block)) for block in range(len(tokens) // 32)]


def busy_tenant(victim: Engine, fingerprint_of: bytes) -> None:
    """All that a tenant can have here: chunks, a pin, a lease, a STORE that awaits its COMMIT."""
    mine = keys_of("the victim's salt")
    fill(victim, 3)
    assert victim.save(mine[:4], [0, 1, 2, 3]) == 4
    body = Pin(fingerprint=fingerprint_of, keys=b"".join(mine[:4]), ttl_s=600)
    assert victim.wire.call(body, ChunkCountReply).chunks == 4
    assert victim.lookup(mine, request=5).ready == 4
    seq = submit_store(victim, mine, [4, 5], 9, start=4)
    victim.wire.reply(seq)


def probes(prober: Engine, name: bytes, salt: str | None) -> list[Any]:
    """Every question about the victim's tokens, under a salt of the prober's own."""
    keys = keys_of(salt)
    blob, session = b"".join(keys), prober.session
    answers: list[Any] = []

    def asked(body: Request) -> None:
        answers.append([type(body).__name__, without_ids(ask(prober, body, session))])

    def looked_up(stop: int = NUM) -> None:
        asked(Lookup(session=session, request=1, start=0, keys=blob[: 16 * stop]))

    def without_ids(answer: Any) -> Any:
        if isinstance(answer, dict) and "lease" in answer:
            return {**answer, "lease": len(answer["lease"])}
        return answer

    def stored(start: int, stop: int, store: int, wants: int) -> None:
        seq = submit_store(prober, keys[:stop], list(range(stop - start)), store, start=start)
        answers.append(["Store", plain(prober.wire.reply(seq))])
        if wants:
            asked(Commit(session=session, store=store, count=wants))

    looked_up()
    asked(Inspect(fingerprint=name, keys=blob))
    asked(Pin(fingerprint=name, keys=blob, ttl_s=60))
    asked(Unpin(fingerprint=name, keys=blob))
    asked(QueryPrefetchStatus(session=session, request=1, wait_ms=0))
    stored(4, 6, 1, 0)  # after a parent that only the victim has
    stored(0, 6, 2, 6)  # over what the victim holds, and what it has reserved
    asked(Delete(fingerprint=name, keys=b"".join(keys[4:])))
    looked_up()
    asked(Inspect(fingerprint=name, keys=blob))
    stored(4, 8, 3, 2)
    asked(Delete(fingerprint=name, keys=keys[2]))
    looked_up()
    return answers


def test_a_salt_cannot_be_told_from_any_answer(short_dir: Path, shm_dir: Path) -> None:
    with (
        tenants(short_dir, shm_dir, "a") as (victim, prober),
        tenants(short_dir, shm_dir, "b") as (_, alone),
    ):
        name = bytes(fingerprint(victim.namespace))
        busy_tenant(victim, name)
        for salt in (None, "", "the victim's", "the victim's salt ", "The victim's salt"):
            beside = probes(prober, name, salt)
            assert beside == probes(alone, name, salt), salt
            kinds = {kind for kind, _ in beside}
            assert kinds == {
                *("Lookup", "Inspect", "Pin", "Unpin", "Delete", "Store", "Commit"),
                "QueryPrefetchStatus",
            }
        # The victim has lost nothing by that either.
        assert victim.lookup(keys_of("the victim's salt"), request=6).ready == 4


def test_who_knows_salt_and_tokens_is_told_the_same_questions_otherwise(
    short_dir: Path, shm_dir: Path
) -> None:
    """Else the test above would compare answers that never depend on anything."""
    with (
        tenants(short_dir, shm_dir, "a") as (victim, prober),
        tenants(short_dir, shm_dir, "b") as (_, alone),
    ):
        name = bytes(fingerprint(victim.namespace))
        busy_tenant(victim, name)
        beside = probes(prober, name, "the victim's salt")
        never = probes(alone, name, "the victim's salt")
        differ = {one[0] for one, other in zip(beside, never, strict=True) if one != other}
        assert {"Lookup", "Inspect", "Pin", "Unpin", "Store", "Commit"} <= differ
        busy = b"".join(keys_of("the victim's salt", TOKENS[: 4 * 32]))
        fill(victim, 4)
        assert victim.save(keys_of("the victim's salt"), list(range(NUM))) == NUM
        assert ask(prober, Delete(fingerprint=name, keys=busy)) == {
            "chunks": NUM,
            "tiers_pending": 0,
        }
        assert ask(alone, Delete(fingerprint=name, keys=busy)) == {
            "chunks": 2,
            "tiers_pending": 0,
        }  # its own


def test_retrieved_slots_name_only_what_was_asked_for(pair: tuple[Engine, Engine]) -> None:
    """A reply has exactly the chunks and shards of the lease, whatever lies beside them."""
    victim, thief = pair
    keys = make_keys(1, NUM)
    found = thief.lookup(keys[:3])
    assert found == LookupReply(lease=found.lease, ready=3)
    for start, count in ((0, 4), (3, 1), (2, 2), (NUM, 1)):
        body = Retrieve(session=thief.session, lease=found.lease, start=start, count=count)
        assert ask(thief, body)[0] == "INVALID_ARGUMENT"
    assert thief.read(found.lease, 3).shape[0] == 3
    del victim
