"""What handlers share: keys, sessions, and answers that come later."""

from __future__ import annotations

import pytest

from protocol import messages as m
from protocol.errors import ErrorCode, RequestError
from protocol.limits import MAX_U32
from server.core.admission import SLICE_BLOCKS
from server.core.desk import check_keys, check_tenant
from tests.server.core.world import SECOND, World, chain, config, namespace


@pytest.mark.parametrize(
    ("keys", "start", "code"),
    [
        (b"x" * 17, 0, ErrorCode.COUNT_MISMATCH),
        (b"x" * 16, MAX_U32 // 2, ErrorCode.INVALID_ARGUMENT),
    ],
)
def test_wrong_keys(keys: bytes, start: int, code: ErrorCode) -> None:
    with pytest.raises(RequestError) as caught:
        check_keys(keys, start)
    assert caught.value.code is code


def test_a_tenant_has_16_bytes_that_are_not_all_zero_or_none() -> None:
    assert check_tenant(b"") == b""
    assert check_tenant(b"\0" * 15 + b"x") == b"\0" * 15 + b"x"
    for wrong in (bytes(16), b"x" * 15):
        with pytest.raises(RequestError) as caught:
            check_tenant(wrong)
        assert caught.value.code is ErrorCode.INVALID_ARGUMENT


def test_keys_are_counted() -> None:
    assert check_keys(b"x" * 48, 7) == 3


def test_a_session_is_its_process_s_or_its_engine_s_as_the_request_says() -> None:
    world = World(config())
    space = namespace(ranks=2)
    a, b = world.engine("a", 0), world.engine("a", 1)
    a.register(space)
    b.register(space)
    keys = b"".join(chain("x", 1))
    lookup = m.Lookup(session=a.session, request=1, start=0, keys=keys)
    assert b.ask(lookup).ready == 0
    stranger = m.Mapped(session=a.session, mapped=b"")
    assert b.error(stranger) is ErrorCode.UNKNOWN_SESSION


def test_long_work_past_its_deadline_is_ended_and_answered_so() -> None:
    count = 8 * SLICE_BLOCKS
    world = World(config(extents=4, slots=600), check=False)
    a = world.engine(pages=count)
    a.register(namespace())
    keys = chain("x", count)
    assert a.save(keys) == count
    found = a.lookup(keys)
    late = a.send(
        m.Retrieve(session=a.session, lease=found.lease, start=0, count=count), timeout_ns=SECOND
    )
    world.step(2 * SECOND)
    world.pump()
    error = a.replies[late].error
    assert error is not None
    assert error.code is ErrorCode.DEADLINE_EXCEEDED
    assert world.core.stats()["pinned_slots"] == 0
    world.core.check_integrity()
