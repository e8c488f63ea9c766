"""The rules for a connector's answers: what kills the real host raises here.

Host contract §3: the query's ``(0, True)``, a negative count, a flag or count of another type,
an offer that reaches the prompt's end (V1's C++ check; V2 cuts it).

Must not know: the connector, requests. Pure functions.
"""

from __future__ import annotations

from typing import Any

from adapter.conformance.host.errors import ConnectorAnswerError, ConnectorContractError


def offer(answer: Any, num_computed: int, prompt_len: int, *, capped: bool) -> tuple[int, bool]:
    """Check what ``get_num_new_matched_tokens`` answered.

    Args:
        answer: As it came.
        num_computed: Prompt tokens matched on the device.
        prompt_len: Tokens of the prompt.
        capped: Whether the host cuts an offer that is too long (V2) instead of dying of it.

    Returns:
        Tokens offered and whether they load asynchronously.

    Raises:
        ConnectorContractError: If the answer would kill the real host.
    """
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise ConnectorAnswerError(f"query answered {answer!r}, expected (int, bool)")
    count, is_async = answer
    if type(count) is not int or type(is_async) is not bool or count < 0:
        raise ConnectorAnswerError(f"query answered {answer!r}, expected (int >= 0, bool)")
    if count == 0 and is_async:
        raise ConnectorAnswerError("query answered (0, True)")
    if count and num_computed + count >= prompt_len and not capped:
        raise ConnectorContractError(
            f"query offered {count} tokens beyond {num_computed} of a prompt of {prompt_len}: "
            "at least one token must be left to compute"
        )
    return count, is_async


def keep(answer: Any) -> bool:
    """Check what ``request_finished`` answered.

    Raises:
        ConnectorContractError: If the answer is no bool.
    """
    if type(answer) is not bool:
        raise ConnectorContractError(f"request_finished answered {answer!r}, expected a bool")
    return answer


def finished(answer: Any) -> tuple[list[int], list[int]]:
    """Check what ``get_finished`` answered.

    Returns:
        Ids whose saves ended, ids whose loads ended.

    Raises:
        ConnectorContractError: If the answer is no pair of lists.
    """
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise ConnectorContractError(f"get_finished answered {answer!r}, expected two lists")
    saved, loaded = answer
    return list(saved), list(loaded)
