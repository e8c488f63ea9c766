from typing import Any

import pytest

from adapter.conformance.host import answers
from adapter.conformance.host.errors import ConnectorAnswerError, ConnectorContractError


@pytest.mark.parametrize("answer", [8, (8,), [8, False], (-1, False), (True, False), (8, 1)])
def test_an_offer_of_another_kind_kills(answer: Any) -> None:
    with pytest.raises(ConnectorAnswerError, match="expected"):
        answers.offer(answer, 0, 20, capped=False)


def test_nothing_cannot_be_loaded_later() -> None:
    with pytest.raises(ConnectorAnswerError, match=r"\(0, True\)"):
        answers.offer((0, True), 0, 20, capped=True)
    assert issubclass(ConnectorAnswerError, ValueError)
    assert issubclass(ConnectorAnswerError, RuntimeError)


def test_one_token_is_left_to_compute_unless_the_host_cuts_the_offer() -> None:
    assert answers.offer((11, True), 8, 20, capped=False) == (11, True)
    with pytest.raises(ConnectorContractError, match="at least one token"):
        answers.offer((12, False), 8, 20, capped=False)
    assert answers.offer((12, False), 8, 20, capped=True) == (12, False)
    assert answers.offer((0, False), 20, 20, capped=False) == (0, False)


def test_keeping_is_yes_or_no() -> None:
    assert answers.keep(True)
    with pytest.raises(ConnectorContractError, match="expected a bool"):
        answers.keep(1)


def test_what_ended_is_two_lists() -> None:
    assert answers.finished(((1, 2), [3])) == ([1, 2], [3])
    with pytest.raises(ConnectorContractError, match="two lists"):
        answers.finished([1])
