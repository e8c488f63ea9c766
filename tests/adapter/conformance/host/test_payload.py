from typing import Any

import pytest

torch = pytest.importorskip("torch")

from adapter.conformance.host.errors import PageMismatchError  # noqa: E402
from adapter.conformance.host.forward import ForwardEntry, TokenCell  # noqa: E402
from adapter.conformance.host.payload import PayloadModel  # noqa: E402

pytestmark = pytest.mark.torch

TOKENS = list(range(100, 114))


def make() -> tuple[PayloadModel, Any]:
    model = PayloadModel(4, bytes_per_token=3, num_layers=2)
    pool = torch.zeros(model.pool_shape(6).shape, dtype=torch.uint8)
    model.bind_pool(pool)
    return model, pool


def run(model: PayloadModel, *entries: ForwardEntry) -> list[int]:
    model.begin(entries)
    for layer in range(model.num_layers):
        model.layer(layer, entries)
    model.end(entries)
    return [model.sample(entry)[0] for entry in entries if entry.wants_sample]


def entry(
    model: PayloadModel, start: int, end: int, blocks: list[int], memo: Any = None
) -> ForwardEntry:
    memo = memo or model.new_memo(TOKENS)
    return ForwardEntry(start, end - start, TOKENS[start:end], (tuple(blocks),), True, True, memo)


def test_pages_and_samples_depend_on_the_chain_alone() -> None:
    model, pool = make()
    whole = run(model, entry(model, 0, 14, [0, 1, 2, 3]))
    first = pool[:3].clone()
    pool.zero_()
    memo = model.new_memo(TOKENS)
    run(model, entry(model, 0, 6, [5, 4, 3, 2], memo))
    assert run(model, entry(model, 6, 14, [5, 4, 3, 2], memo)) == whole
    assert torch.equal(pool[[5, 4, 3]], first)
    assert not pool[2].any()  # a block that is not full has no page
    assert len({bytes(page.flatten().tolist()) for page in first}) == 3


def test_expected_pages_are_what_a_forward_writes() -> None:
    model, pool = make()
    run(model, entry(model, 0, 14, [0, 1, 2, 3]))
    assert model.page_bytes == 2 * 2 * 4 * 3
    for block in range(3):
        assert bytes(pool[block].flatten().tolist()) == model.expected_page(
            TOKENS[: (block + 1) * 4]
        )


def test_a_wrong_byte_in_a_loaded_page_is_found() -> None:
    model, pool = make()
    run(model, entry(model, 0, 14, [0, 1, 2, 3]))
    assert model.num_verified_pages == 0
    run(model, entry(model, 8, 14, [0, 1, 2, 3]))
    assert model.num_verified_pages == 2
    pool[1, 1, 1, 11] ^= 1
    with pytest.raises(PageMismatchError, match=r"page 1 .* block 1"):
        run(model, entry(model, 8, 14, [0, 1, 2, 3]))
    with pytest.raises(PageMismatchError, match=r"page 2 .* block 0"):
        run(model, entry(model, 8, 14, [2, 1, 0, 3]))


def test_generated_tokens_extend_the_chain() -> None:
    model, pool = make()
    memo = model.new_memo(TOKENS)
    tokens = [*TOKENS, *run(model, entry(model, 0, 14, [0, 1, 2, 3], memo))]
    while len(tokens) < 17:
        cell = TokenCell()
        cell.token = tokens[-1]
        fed = ForwardEntry(len(tokens) - 1, 1, cell, ((0, 1, 2, 3, 4),), True, False, memo)
        tokens += run(model, fed)
    assert bytes(pool[3].flatten().tolist()) == model.expected_page(tokens[:16])


def test_salted_models_differ() -> None:
    left, right = PayloadModel(4), PayloadModel(4, salt=b"other")
    assert left.expected_page(TOKENS[:4]) != right.expected_page(TOKENS[:4])
    assert (left.max_seq_len, left.num_layers) == (1 << 18, 1)
