from __future__ import annotations

import pytest

from tests.restarts.children import Child


def test_lines_one_by_one_and_every_wait_ends() -> None:
    child = Child("timeit", ["-n", "1", "-r", "1", "-u", "sec", "print('one', end='\\ntwo\\n')"])
    try:
        assert [child.hear(), child.hear()] == ["one", "two"]
        assert child.hear().startswith("1 loop")
        with pytest.raises(ConnectionError):
            child.hear()
    finally:
        child.close()


def test_silence_is_no_endless_wait() -> None:
    child = Child("tests.restarts.writer", ["1", "/dev/null"])
    try:
        with pytest.raises(TimeoutError):
            child.hear(0.05)
    finally:
        child.close()
