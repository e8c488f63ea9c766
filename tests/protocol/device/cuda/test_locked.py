import threading

import pytest

from protocol.device.cuda.locked import Locked


def test_begins_are_in_order_and_go_with_their_last_range() -> None:
    locked = Locked()
    assert locked.begins.tolist() == []
    for address in (300, 100, 200, 100):
        locked.add(address)
    assert locked.begins.tolist() == [100, 200, 300]
    locked.remove(100)
    locked.remove(300)
    assert locked.begins.tolist() == [100, 200], "there is a newer range at 100"
    locked.remove(100)
    assert locked.begins.tolist() == [200]


def test_what_somebody_looks_at_is_not_written() -> None:
    locked = Locked()
    locked.add(100)
    seen = locked.begins
    locked.add(200)
    locked.remove(100)
    assert seen.tolist() == [100]


@pytest.mark.parametrize("num_threads", [4])
def test_threads_lose_no_count(num_threads: int) -> None:
    locked = Locked()

    def use() -> None:
        for _ in range(300):
            locked.add(7)
            locked.remove(7)

    locked.add(9)
    threads = [threading.Thread(target=use) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert locked.begins.tolist() == [9]
