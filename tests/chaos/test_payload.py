"""Wrong bytes are seen, told and put right; each rank and kind holds its own, all sample alike."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from adapter.conformance.host.forward import ForwardEntry, v1_layers  # noqa: E402
from tests.chaos.payload import ChaosPayload  # noqa: E402

pytestmark = pytest.mark.torch
BLOCK = 4
TOKENS = tuple(range(10, 10 + 3 * BLOCK + 1))


def made(rank: int = 0, kind: str = "k") -> tuple[ChaosPayload, Any]:
    payload = ChaosPayload(BLOCK, rank=rank, kind=kind, num_layers=2, bytes_per_token=8)
    pool = torch.zeros((6, 2, 2, BLOCK * 8), dtype=torch.uint8)
    payload.bind_layers(v1_layers(pool))
    return payload, pool


def forward(payload: ChaosPayload, start: int = 0) -> ForwardEntry:
    """The prompt from ``start`` on; what stands before counts as loaded."""
    entry = ForwardEntry(
        start=start,
        num_tokens=len(TOKENS) - start,
        tokens=TOKENS[start:],
        tables=((3, 1, 4, 5),),
        wants_sample=True,
        first=True,
        memo=payload.new_memo(TOKENS),
    )
    payload.begin([entry])
    for layer in range(2):
        payload.layer(layer, [entry])
    payload.end([entry])
    return entry


def test_what_was_computed_is_right_when_it_is_loaded() -> None:
    payload, _ = made()
    forward(payload)
    forward(payload, 3 * BLOCK)
    assert (payload.num_wrong, payload.num_verified_pages) == (0, 3)


@pytest.mark.parametrize("at", [(3, 0, 0, 0), (1, 1, 1, 31), (4, 0, 1, 7)])
def test_one_wrong_byte_is_one_wrong_part_once(at: tuple[int, int, int, int]) -> None:
    payload, pool = made()
    forward(payload)
    right = pool.clone()
    pool[at] ^= 1
    forward(payload, 3 * BLOCK)
    assert payload.num_wrong == 1
    assert f"layer {at[1]}" in payload.wrong[0]
    assert "1 of 32 bytes differ" in payload.wrong[0]
    assert torch.equal(pool, right), "it was put right"
    forward(payload, 3 * BLOCK)
    assert payload.num_wrong == 1


def test_a_page_that_was_never_filled_is_told_as_such() -> None:
    payload, _ = made()
    forward(payload, 3 * BLOCK)
    assert payload.num_wrong == 3 * 2 * 2
    assert all("all zero" in text for text in payload.wrong)


def test_a_page_in_the_place_of_another_is_wrong() -> None:
    payload, pool = made()
    forward(payload)
    pool[[3, 1]] = pool[[1, 3]]
    forward(payload, 3 * BLOCK)
    assert payload.num_wrong == 2 * 2 * 2


def test_ranks_and_kinds_hold_other_bytes() -> None:
    pools = []
    for rank, kind in ((0, "k"), (1, "k"), (0, "other")):
        payload, pool = made(rank, kind)
        forward(payload)
        pools.append(pool)
    assert not torch.equal(pools[0], pools[1])
    assert not torch.equal(pools[0], pools[2])


def test_ranks_sample_the_same_token() -> None:
    payloads = [made(rank)[0] for rank in range(2)]
    first, second = (payload.sample(forward(payload))[0] for payload in payloads)
    assert first == second
