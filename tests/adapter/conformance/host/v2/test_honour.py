from hypothesis import given
from hypothesis import strategies as st

from adapter.conformance.host.v2.honour import Window, chunk_end, honour


def by_the_contract(
    matched: int, offered: int, sized: int, prompt: int, bs: int, grows: bool
) -> Window:
    """Host contract §5, "V2 rule", word for word; L is ``matched``, C is ``sized``."""
    e = min(matched + offered, prompt - 1)
    if e < sized:
        return Window(e, sized)
    if grows:
        end = e + (sized - matched)
        if end >= prompt:
            return Window(e, prompt)
        while end % bs:
            end -= 1
        return Window(e, end)
    multiples = [k for k in range(sized) if k % bs == 0 and k > matched]
    return Window(max(multiples), sized) if multiples else Window(matched, sized)


@given(st.data())
def test_it_is_the_contracts_rule(data: st.DataObject) -> None:
    bs = data.draw(st.sampled_from([1, 2, 4, 16]))
    prompt = data.draw(st.integers(1, 200))
    matched = data.draw(st.integers(0, (prompt - 1) // bs)) * bs
    budget = data.draw(st.integers(bs, 300))
    sized = chunk_end(matched, budget, prompt, bs)
    offered = data.draw(st.integers(0, prompt + 20))
    grows = data.draw(st.booleans())
    asked: list[tuple[int, int]] = []

    def grow(start: int, end: int) -> bool:
        asked.append((start, end))
        return grows

    got = honour(matched, offered, sized, prompt, bs, grow)
    assert got == by_the_contract(matched, offered, sized, prompt, bs, grows)
    assert matched <= got.start < got.end <= prompt
    assert got.start - matched <= offered
    assert got.end - got.start <= max(sized - matched, budget)
    assert got.end == prompt or got.end % bs == 0
    assert all(start == min(matched + offered, prompt - 1) >= sized for start, _ in asked)
    if not asked:
        assert got.end == sized  # no page was added


def test_an_offer_within_the_chunk_adds_no_page() -> None:
    assert honour(0, 32, 64, 200, 16, lambda start, end: False) == Window(32, 64)


def test_an_offer_beyond_the_chunk_moves_it_and_is_not_floored_itself() -> None:
    assert honour(16, 75, 48, 500, 16, lambda start, end: True) == Window(91, 112)


def test_without_pages_the_start_falls_back_to_a_block_of_the_chunk() -> None:
    assert honour(16, 100, 64, 500, 16, lambda start, end: False) == Window(48, 64)
    assert honour(16, 100, 32, 500, 16, lambda start, end: False) == Window(16, 32)
