from adapter.conformance.host.lockstep import Lockstep
from tests.adapter.conformance.host.threadcomm import meet, on_all


def test_one_rank_without_a_batch_keeps_all_from_forwarding() -> None:
    comms = meet(3)
    assert on_all(lambda comm: Lockstep(comm).all_forward(comm.rank != 1), comms) == [False] * 3
    assert on_all(lambda comm: Lockstep(comm).all_forward(True), comms) == [True] * 3


def test_one_rank_with_a_batch_makes_the_others_add_a_dummy() -> None:
    comms = meet(2)
    assert on_all(lambda comm: Lockstep(comm).anyone(comm.rank == 1), comms) == [True] * 2
    assert on_all(lambda comm: Lockstep(comm).anyone(False), comms) == [False] * 2


def test_ranks_go_round_and_stop_together() -> None:
    comms = meet(2)
    assert (
        on_all(lambda comm: Lockstep(comm).meet(comm.rank == 1, False), comms)
        == [(True, False)] * 2
    )
    assert (
        on_all(lambda comm: Lockstep(comm).meet(False, comm.rank == 0), comms)
        == [(False, True)] * 2
    )
    assert [Lockstep(comm).rank for comm in comms] == [0, 1]
