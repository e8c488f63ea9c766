"""How much may be promised at most (B04; host contract rules 1 and 2)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapter.promises import load_window, why_lost
from tests.adapter.hostlike import geometry, offer

SIZES = st.integers(1, 8)


@given(
    size=SIZES,
    chunk=st.integers(1, 4),
    chunks=st.integers(0, 6),
    delta=st.sampled_from([-1, 0, 1]),
    local=st.integers(0, 60),
)
def test_a_token_is_always_left_to_compute(
    size: int, chunk: int, chunks: int, delta: int, local: int
) -> None:
    prompt = chunks * size * chunk + delta
    window = load_window(prompt, local, geometry(size, chunk))
    if window is None:
        fits = local % size == 0 and prompt > 0
        last = min((prompt - 1) // size, max(prompt, 0) // size // chunk * chunk)
        assert not fits or local // size >= last
        return
    assert window.first_block * size == local
    assert window.stop_block * size <= prompt - 1
    assert (window.stop_block + 1) * size > prompt - 1
    assert window.num_chunks * chunk * size <= prompt
    assert window.first_block < min(window.stop_block, window.num_chunks * chunk)


def test_full_hit_edges() -> None:  # B04
    geo = geometry(4)
    assert load_window(8, 0, geo).stop_block == 1  # type: ignore[union-attr]
    assert load_window(9, 0, geo).stop_block == 2  # type: ignore[union-attr]
    assert load_window(4, 0, geo) is None
    assert load_window(8, 4, geo) is None
    assert load_window(9, 3, geo) is None
    assert load_window(9, -4, geo) is None
    assert load_window(0, 0, geo) is None


def test_a_chunk_that_ends_with_the_prompt_is_used_but_for_its_last_block() -> None:
    window = load_window(16, 0, geometry(4, 2))
    assert window is not None
    assert (window.stop_block, window.num_chunks) == (3, 2)


def test_a_chunk_that_the_prompt_does_not_fill_is_not_asked_for() -> None:
    geo = geometry(4, 2)
    assert load_window(7, 0, geo) is None
    assert load_window(15, 8, geo) is None
    window = load_window(15, 4, geo)
    assert window is not None
    assert (window.stop_block, window.num_chunks) == (3, 1)


def test_what_is_lost_is_named() -> None:
    promised = offer(geometry(), 4, 12)
    said = "request 7: 48 tokens are counted as loaded, and "
    assert why_lost(7, 48, None) == said + "no offer stands"
    assert why_lost(7, 48, promised) == said + "only 8 are offered"
    assert why_lost(7, 9, promised)
    for kept in (8, 4, 0, None):
        assert why_lost(7, kept, promised) == ""
    assert why_lost(7, None, None) == why_lost(7, 0, None) == ""


def test_offer_counts_its_tokens() -> None:
    assert offer(geometry(), 4, 12).num_tokens == 8


@given(chunk=st.integers(1, 3), first=st.integers(0, 6), length=st.integers(2, 8), cut=st.data())
def test_parts_of_an_offer_keep_their_slots(
    chunk: int, first: int, length: int, cut: st.DataObject
) -> None:
    geo = geometry(4, chunk)
    whole = offer(geo, first * 4, (first + length) * 4)
    at = cut.draw(st.integers(first + 1, first + length - 1))
    for part in (whole.later(at * 4, geo), whole.shorter(at * 4, geo)):
        begin, stop = part.start_tokens // 4, part.end_tokens // 4
        assert part.first_chunk == begin // chunk
        assert len(part.slots) == -(-stop // chunk) - begin // chunk
        assert part.slots["slot"][0, 0] == part.first_chunk
        assert (part.lease, part.epoch) == (whole.lease, whole.epoch)
    assert whole.later(at * 4, geo).num_tokens + whole.shorter(at * 4, geo).num_tokens == length * 4
