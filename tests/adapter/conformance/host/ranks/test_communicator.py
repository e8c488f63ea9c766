"""Broadcast and allgather between ranks, and what is seen of a rank that is late or gone."""

from __future__ import annotations

import time
from typing import Any

import pytest

from adapter.conformance.host.errors import HostError
from adapter.conformance.host.ranks.communicator import ProcessCommunicator
from adapter.conformance.host.ranks.wire import RankLostError, RankSilentError
from tests.adapter.conformance.host.ranks.meeting import LIMIT_S, outcome, star, together


def meet(size: int, limit_s: float = LIMIT_S) -> list[ProcessCommunicator]:
    wires = star(size)
    actions = [
        lambda rank=rank: ProcessCommunicator(rank, wires[rank], limit_s) for rank in range(size)
    ]
    return together(actions)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_rank_gets_the_leaders_value_and_everyones_values(size: int) -> None:
    comms = meet(size)
    assert [(comm.rank, comm.size) for comm in comms] == [(rank, size) for rank in range(size)]

    def work(comm: ProcessCommunicator) -> list[Any]:
        said = [comm.broadcast((turn, {"rank": comm.rank})) for turn in range(3)]
        return [*said, comm.allgather([comm.rank] * comm.rank)]

    for result in together([lambda comm=comm: work(comm) for comm in comms]):  # type: ignore[misc]
        assert result[:3] == [(turn, {"rank": 0}) for turn in range(3)]
        assert result[3] == [[rank] * rank for rank in range(size)]
    for comm in comms:
        comm.close()


def test_values_are_pickled_not_shared() -> None:
    comms = meet(2)
    value = {"pages": [1, 2]}
    first, second = together([lambda c=c: c.broadcast(value) for c in comms])  # type: ignore[misc]
    assert first is value
    assert second == value
    assert second is not value
    for comm in comms:
        comm.close()


def test_all_wait_for_a_late_rank() -> None:
    comms = meet(3)

    def work(comm: ProcessCommunicator) -> float:
        began_s = time.monotonic()
        if comm.rank == 2:
            time.sleep(0.3)
        comm.allgather(comm.rank)
        return time.monotonic() - began_s

    durations = together([lambda comm=comm: work(comm) for comm in comms])  # type: ignore[misc]
    assert min(durations) >= 0.29
    for comm in comms:
        comm.close()


def test_a_rank_that_is_gone_is_an_error_for_all_that_wait() -> None:
    comms = meet(3)
    comms[1].close()
    leader = outcome(lambda: comms[0].allgather(0))
    assert isinstance(leader, RankLostError)
    comms[0].close()
    assert isinstance(outcome(lambda: comms[2].allgather(2)), RankLostError)
    comms[2].close()


def test_a_rank_that_stays_away_is_an_error_after_the_limit() -> None:
    comms = meet(2, limit_s=0.1)
    assert isinstance(outcome(lambda: comms[1].broadcast(None)), RankSilentError)
    assert isinstance(outcome(lambda: comms[0].allgather(0)), RankSilentError)
    for comm in comms:
        comm.close()


def test_a_follower_has_one_wire() -> None:
    with pytest.raises(HostError, match="needs one wire"):
        ProcessCommunicator(1, [])
