"""What is planted is there: bytes of large files change, small ones stay."""

from __future__ import annotations

import random
from pathlib import Path

from tests.chaos.plant import Flipper
from tests.wire.process import wait_until


def test_bytes_in_the_second_half_of_extents_are_flipped(tmp_path: Path) -> None:
    content = random.Random(1).randbytes(1 << 20)
    (tmp_path / "extent-1").write_bytes(content)
    (tmp_path / "lock").write_bytes(content[:100])
    flipper = Flipper(tmp_path, seed=1)
    flipper.start()
    assert wait_until(lambda: flipper.num_flips)
    flipper.end()
    flipper.join(10)
    now = (tmp_path / "extent-1").read_bytes()
    assert now[: 1 << 19] == content[: 1 << 19]
    changed = sum(one != other for one, other in zip(now, content, strict=True))
    assert 64 <= changed <= 64 * flipper.num_flips
    assert (tmp_path / "lock").read_bytes() == content[:100]
