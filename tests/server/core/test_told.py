"""What a reply was about, as far as its request says."""

from __future__ import annotations

from protocol.messages import Commit, Lookup, Ping
from server.core.effects import PeerId, SendReply
from server.core.told import chunks_of, request_of


def test_the_request_and_its_chunks_are_found_where_there_are_some() -> None:
    lookup = Lookup(session=1, request=0, start=0, keys=bytes(48))
    assert (request_of(lookup), chunks_of(lookup)) == (0, 3)
    commit = Commit(session=1, store=4, count=7)
    assert (request_of(commit), chunks_of(commit)) == (-1, 7)
    assert (request_of(Ping()), chunks_of(Ping())) == (-1, 0)
    assert (request_of(None), chunks_of(None)) == (-1, 0)


def test_most_replies_tell_nothing() -> None:
    assert SendReply(PeerId(b"p"), b"frame").told is None
