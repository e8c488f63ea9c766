import pytest

from adapter.conformance.host.forward import ForwardEntry, TokenCell


def test_a_cell_read_too_early_is_a_broken_order() -> None:
    cell = TokenCell()
    with pytest.raises(RuntimeError, match="before it was sampled"):
        cell.get()
    cell.token = 0
    assert cell.get() == 0


def test_an_entry_yields_prompt_tokens_or_the_fed_back_one() -> None:
    cell = TokenCell()
    cell.token = 9
    assert ForwardEntry(0, 2, [4, 5], ((0,),), False, True, None).token_ids() == [4, 5]
    assert ForwardEntry(2, 1, cell, ((0,),), True, False, None).token_ids() == [9]
