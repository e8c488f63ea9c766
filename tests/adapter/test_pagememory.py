"""Where a page's bytes lie: regions, runs of bytes across them, layers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.pagememory import GroupPages, LayerSlice, PageMemory, PagePart


def group(*sizes: tuple[int, int], num_pages: int = 3) -> GroupPages:
    """Pages of parts of (size, stride); part p of page i is filled with its page's bytes."""
    parts = []
    for size, stride in sizes:
        flat = np.zeros(stride * (num_pages - 1) + size, dtype=np.uint8)
        parts.append(PagePart(flat, size, stride))
    return GroupPages(tuple(parts), num_pages)


def write(pages: GroupPages, page: int, content: np.ndarray) -> None:
    """A page written part by part, independent of ``cuts``."""
    at = 0
    for part in pages.parts:
        begin = page * part.stride_bytes
        part.host[begin : begin + part.size_bytes] = content[at : at + part.size_bytes]
        at += part.size_bytes


SIZES = st.lists(
    st.tuples(st.integers(1, 9), st.integers(0, 5)).map(lambda s: (s[0], s[0] + s[1])),
    min_size=1,
    max_size=4,
)


@given(SIZES, st.data())
def test_cuts_are_the_bytes_asked_for(sizes: list[tuple[int, int]], data: st.DataObject) -> None:
    pages = group(*sizes)
    contents = [np.arange(pages.page_bytes, dtype=np.uint8) + 50 * i for i in range(3)]
    for page, content in enumerate(contents):
        write(pages, page, content)
    start = data.draw(st.integers(0, pages.page_bytes))
    length = data.draw(st.integers(0, pages.page_bytes - start))
    for page, content in enumerate(contents):
        found = [
            pages.parts[cut.part].host[cut.part_byte + cut.stride * page :][: cut.num_bytes]
            for cut in pages.cuts(start, length)
        ]
        joined = np.concatenate([np.empty(0, np.uint8), *found])
        assert np.array_equal(joined, content[start : start + length])


def test_the_whole_page_is_its_parts() -> None:
    pages = group((4, 4), (2, 6))
    assert pages.page_bytes == 6
    assert [(c.part, c.page_byte, c.num_bytes) for c in pages.whole] == [(0, 0, 4), (1, 4, 2)]


def test_layers_are_trusted_only_where_they_leave_no_byte_out() -> None:
    pages = group((4, 4))
    full = {0: (LayerSlice(0, 0, 2),), 1: (LayerSlice(0, 2, 2),)}
    assert PageMemory((pages,), None, layers=full).is_layered
    assert not PageMemory((pages,), None, layers={0: full[0]}).is_layered
    assert not PageMemory((pages,), None).is_layered
    assert not PageMemory((pages, group((2, 2))), None, layers=full).is_layered


def test_a_region_of_a_device_has_addresses_and_no_bytes() -> None:
    part = PagePart.on_device(4096, 28, 4, 12)
    assert (part.address, part.span_bytes, part.flat) == (4096, 28, None)
    with pytest.raises(TypeError, match="device"):
        _ = part.host


def test_a_region_of_host_memory_knows_its_address() -> None:
    (part,) = GroupPages.packed(np.zeros(12, dtype=np.uint8), 4).parts
    assert (part.address, part.span_bytes) == (part.host.ctypes.data, 12)
