"""Both halves of a connection against each other, with time as an argument."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import frames, limits, messages
from protocol.errors import ErrorCode, ReplyMalformedError, RequestError
from protocol.ids import ArenaId, Epoch, InstanceId, Token
from protocol.session import ClientSession, ServerSession

EPOCH, ARENA = Epoch(b"e" * 16), ArenaId(b"a" * 16)
INSTANCE, TOKEN = InstanceId(b"i" * 16), Token(b"t" * 16)
MS = 1_000_000


def welcome(now_ns: int = 0) -> messages.HelloReply:
    return messages.HelloReply(
        epoch=EPOCH,
        arena=ARENA,
        now_ns=now_ns,
        major=messages.VERSION_MAJOR,
        minor=messages.VERSION_MINOR,
        max_blocks=limits.MAX_BLOCKS_PER_MESSAGE,
        max_frame_bytes=limits.MAX_FRAME_BYTES,
        heartbeat_s=5.0,
    )


def joined(server_now_ns: int = 0, client_now_ns: int = 0) -> tuple[ClientSession, ServerSession]:
    client = ClientSession(INSTANCE, "test")
    server = ServerSession(EPOCH, ARENA)
    seq, frame = client.hello(TOKEN)
    envelope = frames.unpack_request(frame)
    server.admit(envelope, server_now_ns)
    body = frames.request_body(envelope)
    assert isinstance(body, messages.Hello)
    assert server.accept(body) == messages.VERSION_MINOR
    server.close(seq)
    answer = frames.pack_reply(int(messages.Op.HELLO), seq, welcome(server_now_ns))
    assert client.receive(answer, client_now_ns) is not None
    return client, server


def envelope_of(
    client: ClientSession, now_ns: int = 0, timeout_ns: int = MS
) -> frames.RequestEnvelope:
    _, frame = client.request(messages.Ping(), now_ns, timeout_ns)
    return frames.unpack_request(frame)


def refusal(server: ServerSession, envelope: frames.RequestEnvelope, now_ns: int = 0) -> ErrorCode:
    before = server.num_open
    with pytest.raises(RequestError) as caught:
        server.admit(envelope, now_ns)
    assert server.num_open == before
    return caught.value.code


def test_hello_then_requests_carry_the_incarnation() -> None:
    client, server = joined()
    envelope = envelope_of(client)
    assert (envelope.epoch, envelope.arena) == (EPOCH, ARENA)
    server.admit(envelope, 0)
    assert (server.num_open, client.num_awaited) == (1, 1)
    server.close(envelope.seq)
    reply = client.receive(frames.pack_reply(envelope.op, envelope.seq, messages.Done()), 0)
    assert reply is not None
    assert reply.body == messages.Done()
    assert (server.num_open, client.num_awaited) == (0, 0)


def test_nothing_goes_before_hello() -> None:
    client = ClientSession(INSTANCE)
    with pytest.raises(RequestError) as caught:
        client.request(messages.Ping(), 0, MS)
    assert caught.value.code is ErrorCode.UNAUTHENTICATED
    frame = frames.pack_request(messages.Ping(), 1, EPOCH, ARENA)
    fresh = ServerSession(EPOCH, ARENA)
    assert refusal(fresh, frames.unpack_request(frame)) is ErrorCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"epoch": b"x" * 16}, ErrorCode.STALE_EPOCH),
        ({"epoch": b""}, ErrorCode.STALE_EPOCH),
        ({"epoch": EPOCH[:15]}, ErrorCode.STALE_EPOCH),
        ({"arena": b"x" * 16}, ErrorCode.WRONG_ARENA),
        ({"arena": b""}, ErrorCode.WRONG_ARENA),
    ],
)
def test_another_incarnation_is_refused(change: dict[str, bytes], code: ErrorCode) -> None:
    client, server = joined()
    envelope = msgspec.structs.replace(envelope_of(client), **change)
    assert refusal(server, envelope) is code


@given(
    st.integers(0, 1 << 60), st.integers(0, 1 << 60), st.integers(1, 60_000), st.integers(0, 90_000)
)
def test_deadlines_are_told_on_the_servers_clock(
    server_start: int, client_start: int, timeout_ms: int, waited_ms: int
) -> None:
    """However far apart the clocks are, only the time that passed counts."""
    client, server = joined(server_start, client_start)
    envelope = envelope_of(client, client_start, timeout_ms * MS)
    now = server_start + waited_ms * MS
    if waited_ms < timeout_ms:
        server.admit(envelope, now)
    else:
        assert refusal(server, envelope, now) is ErrorCode.DEADLINE_EXCEEDED


def test_deadlines_stay_on_the_wires_scale() -> None:
    client, server = joined(server_now_ns=5)
    assert envelope_of(client, 0, -10 * MS).deadline_ns == 1
    assert envelope_of(client, 0, 1 << 80).deadline_ns == limits.MAX_U63
    server.admit(msgspec.structs.replace(envelope_of(client), deadline_ns=0), 1 << 62)


def test_a_seq_is_open_once() -> None:
    client, server = joined()
    envelope = envelope_of(client)
    server.admit(envelope, 0)
    assert refusal(server, envelope) is ErrorCode.DUPLICATE
    server.close(envelope.seq)
    server.admit(envelope, 0)


def test_open_requests_are_bounded() -> None:
    client, server = joined()
    for _ in range(limits.MAX_OUTSTANDING_REQUESTS):
        server.admit(envelope_of(client), 0)
    one_more = envelope_of(client)
    assert refusal(server, one_more) is ErrorCode.BUSY
    server.close(one_more.seq - 1)
    server.admit(one_more, 0)


def hello(
    major: int = messages.VERSION_MAJOR,
    minor: int = 0,
    token: bytes = TOKEN,
    instance: bytes = INSTANCE,
) -> messages.Hello:
    return messages.Hello(token=token, instance=instance, major=major, minor=minor)


@pytest.mark.parametrize("major", [messages.VERSION_MAJOR - 1, messages.VERSION_MAJOR + 1])
def test_another_major_is_told_ours(major: int) -> None:
    """B46."""
    with pytest.raises(RequestError, match=f"protocol {major}.0 is not spoken") as caught:
        ServerSession(EPOCH, ARENA).accept(hello(major))
    assert caught.value.code is ErrorCode.VERSION_MISMATCH
    assert caught.value.detail == {
        "major": messages.VERSION_MAJOR,
        "minor": messages.VERSION_MINOR,
    }


@pytest.mark.parametrize("minor", [0, messages.VERSION_MINOR + 1, 65_535])
def test_the_smaller_minor_is_used(minor: int) -> None:
    used = ServerSession(EPOCH, ARENA).accept(hello(minor=minor))
    assert used == min(minor, messages.VERSION_MINOR)


def test_hello_may_repeat_for_the_same_instance_only() -> None:
    _, server = joined()
    server.accept(hello())
    with pytest.raises(RequestError) as caught:
        server.accept(hello(instance=b"o" * 16))
    assert caught.value.code is ErrorCode.DUPLICATE
    assert server.instance == INSTANCE


@pytest.mark.parametrize("token", [b"", b"t" * 15])
def test_tokens_of_another_length(token: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        ServerSession(EPOCH, ARENA).accept(hello(token=token))
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT


def test_replies_nobody_waits_for_are_dropped() -> None:
    client, _ = joined()
    envelope = envelope_of(client)
    answer = frames.pack_reply(envelope.op, envelope.seq, messages.Done())
    client.forget(envelope.seq)
    assert client.receive(answer, 0) is None
    again = envelope_of(client)
    assert again.seq != envelope.seq
    assert client.receive(answer, 0) is None


def test_a_reply_of_another_operation_is_no_reply() -> None:
    client, _ = joined()
    envelope = envelope_of(client)
    with pytest.raises(ReplyMalformedError, match="answered as operation 3"):
        client.receive(frames.pack_reply(3, envelope.seq, messages.Done()), 0)
    assert client.num_awaited == 0


def test_a_refused_hello_leaves_the_client_outside() -> None:
    client = ClientSession(INSTANCE)
    seq, _ = client.hello(TOKEN)
    error = RequestError(ErrorCode.VERSION_MISMATCH, "no")
    reply = client.receive(frames.pack_error(1, seq, error), 0)
    assert reply is not None
    assert reply.error is not None
    assert client.welcome is None


@given(st.lists(st.sampled_from(("ask", "answer", "forget", "again")), max_size=60))
def test_every_seq_is_answered_at_most_once(steps: list[str]) -> None:
    client, server = joined()
    open_seqs: list[int] = []
    answered: list[bytes] = []
    for step in steps:
        if step == "ask" and len(open_seqs) < limits.MAX_OUTSTANDING_REQUESTS:
            envelope = envelope_of(client)
            assert envelope.seq not in open_seqs
            server.admit(envelope, 0)
            open_seqs.append(envelope.seq)
        elif step == "answer" and open_seqs:
            seq = open_seqs.pop(0)
            server.close(seq)
            answered.append(frames.pack_reply(int(messages.Op.PING), seq, messages.Done()))
            assert client.receive(answered[-1], 0) is not None
        elif step == "forget" and open_seqs:
            client.forget(open_seqs[0])
            server.close(open_seqs.pop(0))
        elif step == "again" and answered:
            assert client.receive(answered[-1], 0) is None
        assert server.num_open == len(open_seqs) == client.num_awaited
