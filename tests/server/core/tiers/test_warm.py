"""A warm job's words: pages cut into chains, and what is said at its end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import Fingerprint
from server.core.effects import ProcessId
from server.core.tiers.warm import SHOWN, Segment, Warm, segments
from tests.server.core.world import chain

ZERO = bytes(16)


def job() -> Warm:
    return Warm(1, ProcessId(1), Fingerprint(b""), 0)


@given(st.lists(st.integers(1, 6), max_size=8))
def test_a_page_is_cut_where_a_chunk_does_not_continue_the_one_before(lengths: list[int]) -> None:
    chains = [chain(f"c{number}", length) for number, length in enumerate(lengths)]
    pairs = b"".join(
        key + parent
        for keys in chains
        for key, parent in zip(keys, [ZERO, *keys[:-1]], strict=True)
    )
    assert segments(pairs) == [Segment(b"", b"".join(keys)) for keys in chains]


def test_branches_and_continued_pages_name_what_they_continue() -> None:
    trunk, branch = chain("a", 4), chain("b", 2)
    pairs = [(trunk[2], trunk[1]), (trunk[3], trunk[2]), (branch[0], trunk[2])]
    found = segments(b"".join(key + parent for key, parent in pairs))
    assert found == [
        Segment(trunk[1], trunk[2] + trunk[3]),
        Segment(trunk[2], branch[0]),
    ]


def test_a_segment_is_cut_in_two() -> None:
    keys = chain("a", 5)
    whole = Segment(b"", b"".join(keys))
    assert whole.first(2) == Segment(b"", b"".join(keys[:2]))
    assert whole.after(2) == Segment(keys[1], b"".join(keys[2:]))
    assert whole.after(0) == whole
    assert whole.after(5).num_chunks == 0


def test_half_a_pair_is_none() -> None:
    assert segments(b"k" * 31) == []


def test_its_end_says_what_went_wrong() -> None:
    empty = job()
    assert empty.summary() == "no tier lists anything"
    empty.trouble = "tier a cannot say what it has"
    assert empty.summary() == empty.trouble
    wrong = job()
    wrong.fingerprint = Fingerprint(b"n" * 16)
    wrong.known = dict.fromkeys(Fingerprint(bytes([number]) * 16) for number in range(SHOWN + 2))
    assert wrong.summary().startswith(f"no tier knows this namespace; known: {'00' * 16}, ")
    assert wrong.summary().endswith(" and 2 more")
    some = job()
    some.listed = 3
    assert some.summary() == "all that tiers list is there"
    some.missed, some.trouble = 2, "no tier can be read any more"
    assert some.summary() == "2 chunks could not be read: no tier can be read any more"
