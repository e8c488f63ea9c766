import numpy as np
import pytest

from adapter.conformance.loadgen.stamps import PER_PAGE, Stamps

PAGE_BYTES = 1024


@pytest.fixture
def pool() -> np.ndarray:
    return np.zeros(6 * PAGE_BYTES, dtype=np.uint8)


ALL = np.arange(6, dtype=np.int32)


def test_marks_come_and_go(pool: np.ndarray) -> None:
    stamps = Stamps.put(pool, PAGE_BYTES, np.random.default_rng(1))
    assert stamps.wrong(ALL) == 0
    stamps.wipe()
    assert stamps.wrong(ALL) == 6
    assert not pool.any()
    stamps.renew()
    assert stamps.wrong(ALL) == 0


@pytest.mark.parametrize("part", range(PER_PAGE))
def test_a_missing_part_is_seen(pool: np.ndarray, part: int) -> None:
    stamps = Stamps.put(pool, PAGE_BYTES, np.random.default_rng(2))
    step = PAGE_BYTES // PER_PAGE
    pool[2 * PAGE_BYTES + part * step :][:step] = 0
    assert stamps.wrong(ALL) == 1
    assert stamps.wrong(np.array([0, 1, 3], dtype=np.int32)) == 0


def test_two_pages_swapped_are_both_wrong(pool: np.ndarray) -> None:
    stamps = Stamps.put(pool, PAGE_BYTES, np.random.default_rng(3))
    pages = pool.reshape(6, PAGE_BYTES)
    pages[[0, 1]] = pages[[1, 0]]
    assert stamps.wrong(ALL) == 2


def test_odd_pages_are_refused(pool: np.ndarray) -> None:
    with pytest.raises(ValueError, match="cannot carry"):
        Stamps.put(pool, 100, np.random.default_rng(4))
