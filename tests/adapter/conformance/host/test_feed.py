from concurrent.futures import Future

from adapter.conformance.host.comm import Solo
from adapter.conformance.host.feed import CommandFeed
from adapter.conformance.host.inbox import Command, Inbox
from adapter.conformance.host.requests import HostRequest, RequestHandle, RequestParams
from tests.adapter.conformance.host.threadcomm import ThreadComm, meet, on_all


def adopt(request_id: int, params: RequestParams) -> HostRequest:
    return HostRequest(request_id, params, RequestHandle(request_id), None)


def test_every_rank_gets_the_leaders_commands_and_makes_its_own_state() -> None:
    comms = meet(3)
    inboxes = [Inbox() for _ in comms]
    mine = adopt(7, RequestParams((1, 2), 3, cache_salt="s"))
    forget: Future[int] = Future()
    for command in (mine, 5, forget, None):
        inboxes[0].put(command)

    def take(comm: ThreadComm) -> list[Command]:
        return CommandFeed(inboxes[comm.rank], comm, adopt).take(1.0)

    leader, *followers = on_all(take, comms)
    assert leader == [mine, 5, forget, None]
    for taken in followers:
        request, cancelled, other, stop = taken
        assert isinstance(request, HostRequest)
        assert request is not mine
        assert (request.request_id, request.params) == (7, mine.params)
        assert (cancelled, stop) == (5, None)
        assert isinstance(other, Future)
        assert other is not forget


def test_idle_ranks_meet_again_and_again() -> None:
    comms = meet(2)

    def take(comm: ThreadComm) -> list[Command]:
        return CommandFeed(Inbox(), comm, adopt).take(None)

    assert on_all(take, comms) == [[], []]


def test_a_rank_alone_waits_in_its_inbox() -> None:
    inbox = Inbox()
    inbox.put(3)
    assert CommandFeed(inbox, Solo(), adopt).take(None) == [3]
    assert CommandFeed(inbox, Solo(), adopt).take(0) == []
