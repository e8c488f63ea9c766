from pathlib import Path

import numpy as np
import pytest

from adapter.conformance.loadgen import memcpy

PAGE_BYTES = 4096


@pytest.fixture
def route() -> memcpy.Route:
    random = np.random.default_rng(1)
    source = random.integers(0, 256, 8 * PAGE_BYTES, dtype=np.uint8)
    source.flags.writeable = False
    target = np.zeros(8 * PAGE_BYTES, dtype=np.uint8)
    return memcpy.Route(
        memcpy.pages_of(source, PAGE_BYTES, [5, 0, 7]),
        memcpy.pages_of(target, PAGE_BYTES, [1, 2, 3]),
    )


@pytest.mark.parametrize("method", memcpy.METHODS)
def test_every_method_copies_every_byte(route: memcpy.Route, method: str) -> None:
    assert not any(page.any() for page in route.targets)
    assert memcpy.METHODS[method](route) > 0
    for source, target in zip(route.sources, route.targets, strict=True):
        assert np.array_equal(source, target)


@pytest.mark.parametrize("method", memcpy.METHODS)
def test_other_pages_stay(route: memcpy.Route, method: str) -> None:
    memcpy.METHODS[method](route)
    whole = route.targets[0].base
    assert isinstance(whole, np.ndarray)
    assert not whole[:PAGE_BYTES].any()
    assert not whole[4 * PAGE_BYTES :].any()


def test_bytes_of_a_route(route: memcpy.Route) -> None:
    assert route.num_bytes == 3 * PAGE_BYTES


def test_scratch_has_no_name_and_goes_with_its_view(shm_dir: Path) -> None:
    scratch = memcpy.scratch_file(shm_dir, 4 * PAGE_BYTES)
    assert scratch.shape == (4 * PAGE_BYTES,)
    scratch[:] = 7
    assert list(shm_dir.iterdir()) == []
    again = memcpy.scratch_file(shm_dir, PAGE_BYTES)
    assert not again.any(), "a second file of the same process is another one"
