from adapter.conformance.host.comm import Communicator, Solo


def test_one_rank_talks_to_itself() -> None:
    solo: Communicator = Solo()
    assert (solo.rank, solo.size) == (0, 1)
    value = object()
    assert solo.broadcast(value) is value
    assert solo.allgather(value) == [value]
    solo.abort("nobody hears it")
    assert Solo(3).rank == 3
