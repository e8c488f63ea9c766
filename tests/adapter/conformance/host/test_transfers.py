import pytest

from adapter.conformance.host.transfers import TransferLedger


def test_each_id_is_announced_once() -> None:
    ledger = TransferLedger()
    assert not ledger
    ledger.start_save(1, [[10, 11]])
    ledger.start_load(2)
    assert ledger.announce() == ([1], [2])
    assert ledger.announce() == ([], [])
    assert (ledger.num_saving_pages, ledger.num_loading) == (2, 1)
    assert ledger.is_pending(1)
    assert ledger.is_pending(2)
    assert not ledger.is_pending(3)
    assert ledger


def test_ids_come_back_exactly_once() -> None:
    ledger = TransferLedger()
    ledger.start_save(1, [[10, -1]])
    ledger.start_load(2)
    assert ledger.settle([ledger.report([1], [2])]) == ([[[10, -1]]], [2])
    assert not ledger
    with pytest.raises(KeyError, match="1 saved"):
        ledger.report([1], [])
    with pytest.raises(KeyError, match="2 loaded"):
        ledger.report([], [2])


def test_an_id_twice_in_one_answer_is_one_too_many() -> None:
    ledger = TransferLedger()
    ledger.start_save(1, [[10]])
    with pytest.raises(KeyError):
        ledger.report([1, 1], [])


def test_the_newest_epoch_ignores_ids_it_does_not_wait_for() -> None:
    ledger = TransferLedger(ignore_unknown=True)
    ledger.start_load(2)
    assert ledger.settle([ledger.report([7], [2, 2])]) == ([], [2])
    assert ledger.settle([ledger.report([], [2])]) == ([], [])


def test_a_save_that_was_asked_for_twice_keeps_pages_after_one_completion() -> None:
    ledger = TransferLedger()
    ledger.start_save(1, [[10]])
    ledger.start_save(1, [[10]])
    assert ledger.announce() == ([1, 1], [])
    assert ledger.settle([ledger.report([1], [])]) == ([[[10]]], [])
    assert ledger.num_saving_pages == 1


def test_an_id_acts_once_every_rank_has_returned_it() -> None:
    ranks = [TransferLedger() for _ in range(2)]
    for ledger in ranks:
        ledger.start_save(1, [[10]])
        ledger.start_load(2)

    def iteration(*answers: tuple[list[int], list[int]]) -> tuple[list[list[list[int]]], list[int]]:
        gathered = [ledger.report(*answer) for ledger, answer in zip(ranks, answers, strict=True)]
        first, second = (ledger.settle(gathered) for ledger in ranks)
        assert first == second
        return first

    assert iteration(([1], []), ([], [])) == ([], [])
    assert iteration(([], []), ([], [2])) == ([], [])
    assert iteration(([], []), ([1], [])) == ([[[10]]], [])
    assert iteration(([], []), ([], [])) == ([], [])
    assert iteration(([], [2]), ([], [])) == ([], [2])
    assert not any(ranks)
    with pytest.raises(KeyError):
        ranks[1].report([], [2])


def test_a_rank_with_skew_counts_later_than_it_says() -> None:
    ledger = TransferLedger(skew=2)
    ledger.start_load(2)
    seen = [ledger.settle([ledger.report([], loaded)])[1] for loaded in ([2], [], [], [])]
    assert seen == [[], [], [2], []]
