import pytest

from adapter.conformance.host.transfers import TransferLedger


def test_ids_are_announced_once() -> None:
    ledger = TransferLedger()
    ledger.start_save(1, [4, 5])
    ledger.start_load(2)
    assert ledger.announce() == ([1], [2])
    assert ledger.announce() == ([], [])
    assert (ledger.num_saving_pages, ledger.num_loading) == (2, 1)


def test_a_transfer_ends_once() -> None:
    ledger = TransferLedger()
    ledger.start_save(1, [4, 5])
    ledger.start_load(2)
    assert ledger.finish_save(1) == [4, 5]
    ledger.finish_load(2)
    for finish in (ledger.finish_save, ledger.finish_load):
        for request_id in (1, 2, 3):
            with pytest.raises(KeyError, match="not pending"):
                finish(request_id)


def test_a_second_reference_outlives_one_completion() -> None:
    ledger = TransferLedger()
    ledger.start_save(1, [4])
    ledger.start_save(1, [4])
    assert ledger.announce() == ([1, 1], [])
    ledger.finish_save(1)
    assert ledger.num_saving_pages == 1
