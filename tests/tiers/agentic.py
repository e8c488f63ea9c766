"""agentic-144 through the connector, with an L1 of a quarter of what it needs.

Each page that is loaded is compared with what its tokens say. Runs in the pytest process; the
server is a child of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from adapter.conformance.agentic.rig import SETTINGS, Played, Scale, engine
from adapter.conformance.agentic.workload import Workload
from protocol.extents import RECORD_DTYPE, RECORDS_OFFSET_BYTES, align
from tests.tiers.leaflru import hits
from tests.tiers.rig import UP_S, num_up
from tests.wire.process import ServerProcess, wait_until

EXTENT_BYTES = 256 << 10
WORKLOAD = Workload(32)
SCALE = Scale(WORKLOAD, layers=4, elements=64)
"""16 KiB a block; counts are the same for every size."""

DEADLINE_MS = 30_000
SLOW_BUT_WHOLE: Mapping[str, str] = {
    **SETTINGS,
    "TRTLLM_KVKEEP_QUERY_BUDGET_MS": str(DEADLINE_MS),
}
AS_SHIPPED: Mapping[str, str] = {"TRTLLM_KVKEEP_HELD_PAGES_PERCENT": "100"}


def slots_per_extent(page_bytes: int) -> int:
    """Slots of one extent: each takes its record and its room."""
    count = EXTENT_BYTES // page_bytes
    while (
        RECORDS_OFFSET_BYTES + align(count * RECORD_DTYPE.itemsize) + count * page_bytes
        > EXTENT_BYTES
    ):
        count -= 1
    return count


def quarter_extents() -> int:
    """Extents of a quarter of the working set."""
    return max(4, WORKLOAD.distinct_blocks // 4 // slots_per_extent(SCALE.page_bytes))


def l1_slots() -> int:
    """Blocks that such an L1 holds."""
    return quarter_extents() * slots_per_extent(SCALE.page_bytes)


def launch(folder: Path, arena_dir: Path, *more: str, at_exit: str = "remove") -> ServerProcess:
    """A server whose L1 is a quarter of the working set."""
    folder.mkdir(exist_ok=True)
    sizes = ("--l1-size", str(quarter_extents() * EXTENT_BYTES), "--extent-size", str(EXTENT_BYTES))
    server = ServerProcess(folder, arena_dir, *sizes, *more, "--arena-at-exit", at_exit)
    assert wait_until(lambda: num_up(server) == more.count("--l2"), UP_S, 0.02), server.log()
    return server


def unlimited() -> list[int]:
    """Hits of each request in a cache that never evicts."""
    return WORKLOAD.expected_hits(saves_answers=False)


def counted() -> list[int]:
    """Hits of each request in such an L1 alone, counted without a server."""
    requests = []
    for turn in WORKLOAD.order():
        shared = WORKLOAD.system_blocks
        blocks = [
            ("system" if at < shared else turn.agent, at)
            for at in range(turn.num_tokens // WORKLOAD.block_tokens)
        ]
        requests.append((blocks, (turn.num_tokens - 1) // WORKLOAD.block_tokens))
    return hits(requests, l1_slots())


@dataclass(frozen=True)
class Result:
    """One pass.

    Attributes:
        played: what the engine saw.
    """

    played: Played

    @property
    def hits(self) -> list[int]:
        """Blocks that each request loaded."""
        return [one.hit_blocks for one in self.played.seen]

    @property
    def ratio(self) -> float:
        """Of all blocks."""
        return sum(self.hits) / sum(one.num_blocks for one in self.played.seen)

    @property
    def slowest_query_s(self) -> float:
        """Longest wait of one request."""
        return max(one.query_s for one in self.played.seen)


def play(url: str, model: Path, settings: Mapping[str, str]) -> Result:
    """An engine plays the workload; a page with wrong bytes ends it."""
    with engine(SCALE, url, model, settings) as rig:
        played = rig.play(saves_answers=False, report=lambda done, total: None)
    assert played.is_bit_exact
    return Result(played)
