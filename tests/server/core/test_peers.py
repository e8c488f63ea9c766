"""Processes, tokens and connections."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode, RequestError
from protocol.ids import ArenaId, Epoch, InstanceId, PoolId, Token
from protocol.messages import VERSION_MAJOR, Hello
from server.core.clock import Clock, Timers
from server.core.effects import DropPoolOffer, PeerId, ProcessId
from server.core.outbox import Outbox
from server.core.peers import Peers
from tests.server.core.world import config

INSTANCE, TOKEN = InstanceId(b"i" * 16), Token(b"t" * 16)


def peers() -> tuple[Peers, Outbox]:
    outbox = Outbox(Timers(Clock()))
    made = Peers(config(), Epoch(b"e" * 16), ArenaId(b"a" * 16), outbox)
    made.join(ProcessId(1), TOKEN, INSTANCE)
    return made, outbox


def hello(token: bytes = TOKEN, instance: bytes = INSTANCE, major: int = VERSION_MAJOR) -> Hello:
    return Hello(token=token, instance=instance, major=major, minor=0)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (hello(token=b""), ErrorCode.UNAUTHENTICATED),
        (hello(token=b"x" * 16), ErrorCode.UNAUTHENTICATED),
        (hello(instance=b"x" * 16), ErrorCode.UNAUTHENTICATED),
        (hello(major=VERSION_MAJOR + 1), ErrorCode.VERSION_MISMATCH),
    ],
)
def test_a_refused_hello_leaves_no_state(request_: Hello, code: ErrorCode) -> None:
    made, _ = peers()
    with pytest.raises(RequestError) as refused:
        made.greet(PeerId(b"p"), request_, made.stranger())
    assert refused.value.code is code
    assert made.num_peers == 0


def test_a_quiet_process_opens_no_connection() -> None:
    made, _ = peers()
    made.processes[ProcessId(1)].quiet = True
    with pytest.raises(RequestError, match="UNAUTHENTICATED"):
        made.greet(PeerId(b"p"), hello(), made.stranger())


def test_an_exit_forgets_token_connections_and_offers() -> None:
    made, outbox = peers()
    made.offer(ProcessId(1), PoolId(b"o" * 16), 10)
    made.greet(PeerId(b"p"), hello(), made.stranger())
    assert made.leave(ProcessId(1), gone=True) is not None
    assert made.leave(ProcessId(1), gone=True) is None
    assert made.num_peers == 0
    assert outbox.take() == [DropPoolOffer(ProcessId(1), PoolId(b"o" * 16))]
    with pytest.raises(RequestError, match="UNAUTHENTICATED"):
        made.greet(PeerId(b"p"), hello(), made.stranger())


def test_another_processes_connection_cannot_be_taken_over() -> None:
    made, _ = peers()
    made.join(ProcessId(2), Token(b"u" * 16), INSTANCE)
    session = made.stranger()
    made.greet(PeerId(b"p"), hello(), session)
    with pytest.raises(RequestError, match="DUPLICATE"):
        made.greet(PeerId(b"p"), hello(token=b"u" * 16), session)


def test_an_offer_of_nobody_is_closed() -> None:
    made, outbox = peers()
    made.offer(ProcessId(9), PoolId(b"o" * 16), 10)
    assert outbox.take() == [DropPoolOffer(ProcessId(9), PoolId(b"o" * 16))]
