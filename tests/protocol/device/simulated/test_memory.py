import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.device.interface import DeviceError, MemoryKind
from protocol.device.simulated.memory import Memory, Range

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=12)


def host(base: int, num_bytes: int) -> Range:
    return Range(base, num_bytes, MemoryKind.HOST)


@given(RANGES, st.data())
def test_ranges_stay_apart_and_are_found(
    ranges: list[tuple[int, int]], data: st.DataObject
) -> None:
    memory, owner = Memory(), dict[int, Range]()
    for base, num_bytes in ranges:
        new = host(base, num_bytes)
        taken = [byte for byte in range(base, base + num_bytes) if byte in owner]
        if taken:
            with pytest.raises(DeviceError):
                memory.add(new)
        else:
            memory.add(new)
            owner.update(dict.fromkeys(range(base, base + num_bytes), new))
    address, size = data.draw(st.integers(0, 75)), data.draw(st.integers(1, 6))
    owners = {owner.get(byte) for byte in range(address, address + size)}
    expected = owners.pop() if len(owners) == 1 else None
    assert memory.find(address, size) is expected
    found, is_inside = memory.find_all(np.array([address, address]), np.array([size, size]))
    assert is_inside.tolist() == [expected is not None] * 2
    assert found == ([] if expected is None else [expected])
    for one in memory.ranges():
        assert memory.remove(one)
        assert not memory.remove(one)
    assert memory.find(address) is None


def test_memory_is_not_taken_away_under_a_copy() -> None:
    memory, one, other = Memory(), host(0, 8), host(100, 8)
    memory.add(one)
    memory.add(other)
    taker = threading.Thread(target=memory.remove, args=(one,), daemon=True)
    with memory.use(0, 100, 8):
        taker.start()
        taker.join(0.05)
        assert taker.is_alive()
    taker.join(10)
    assert not taker.is_alive()
    with pytest.raises(DeviceError, match="IllegalAddress") as raised, memory.use(0, 100, 8):
        pass
    assert raised.value.is_sticky
    assert other.num_users == 0
