"""agentic-144 through the connector, with an L1 of a quarter of what it needs.

Each page that is loaded is compared with what its tokens say. Runs in the pytest process; the
server is a child of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from adapter.conformance.agentic.rig import SETTINGS, Played, Scale, engine
from adapter.conformance.agentic.workload import Workload
from protocol.extents import RECORD_DTYPE, RECORDS_OFFSET_BYTES, align
from tests.tiers.leaflru import hits
from tests.tiers.rig import UP_S, num_up
from tests.wire.process import ServerProcess, wait_until

DEADLINE_MS = 30_000
SLOW_BUT_WHOLE: Mapping[str, str] = {
    **SETTINGS,
    "TRTLLM_KVKEEP_QUERY_BUDGET_MS": str(DEADLINE_MS),
}
AS_SHIPPED: Mapping[str, str] = {"TRTLLM_KVKEEP_HELD_PAGES_PERCENT": "100"}
EXTENT_BYTES = 256 << 10
MIN_EXTENTS = 4
"""Of an L1 of a MiB; there is no smaller one."""


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


@dataclass(frozen=True)
class Agentic:
    """The workload, and what caches make of it; counts are the same for every size of a block.

    Attributes:
        workload: what is asked.
        elements: of one byte, in K and again in V, of a token in one of four layers.
    """

    workload: Workload
    elements: int = 64

    @property
    def scale(self) -> Scale:
        """Sizes of the engine."""
        return Scale(self.workload, layers=4, elements=self.elements)

    @property
    def slots_per_extent(self) -> int:
        """Slots of one extent: each takes its record and its room."""
        page_bytes = self.scale.page_bytes
        count = EXTENT_BYTES // page_bytes
        while (
            RECORDS_OFFSET_BYTES + align(count * RECORD_DTYPE.itemsize) + count * page_bytes
            > EXTENT_BYTES
        ):
            count -= 1
        return count

    @property
    def quarter_extents(self) -> int:
        """Extents of a quarter of the working set."""
        return max(MIN_EXTENTS, self.workload.distinct_blocks // 4 // self.slots_per_extent)

    @property
    def l1_slots(self) -> int:
        """Blocks that such an L1 holds."""
        return self.quarter_extents * self.slots_per_extent

    def launch(
        self, folder: Path, arena_dir: Path, *more: str, at_exit: str = "remove"
    ) -> ServerProcess:
        """A server whose L1 is a quarter of the working set; its tiers are up."""
        folder.mkdir(exist_ok=True)
        l1_bytes = self.quarter_extents * EXTENT_BYTES
        sizes = ("--l1-size", str(l1_bytes), "--extent-size", str(EXTENT_BYTES))
        server = ServerProcess(folder, arena_dir, *sizes, *more, "--arena-at-exit", at_exit)
        if not wait_until(lambda: num_up(server) == more.count("--l2"), UP_S, 0.02):
            said = server.log()
            server.kill()
            raise AssertionError(f"tiers are not up: {said}")
        return server

    def unlimited(self) -> list[int]:
        """Hits of each request in a cache that never evicts."""
        return self.workload.expected_hits(saves_answers=False)

    def counted(self) -> list[int]:
        """Hits of each request in such an L1 alone, counted without a server."""
        block_tokens, shared = self.workload.block_tokens, self.workload.system_blocks
        requests = []
        for turn in self.workload.order():
            blocks = [
                ("system" if at < shared else turn.agent, at)
                for at in range(turn.num_tokens // block_tokens)
            ]
            requests.append((blocks, (turn.num_tokens - 1) // block_tokens))
        return hits(requests, self.l1_slots)

    def whole(self) -> list[int]:
        """Hits of each request where all of it was stored before: all but the last token's."""
        return [
            (turn.num_tokens - 1) // self.workload.block_tokens for turn in self.workload.order()
        ]

    def play(
        self,
        url: str,
        model: Path,
        settings: Mapping[str, str],
        after: Callable[[int], None] = lambda done: None,
    ) -> Result:
        """An engine plays the workload; a page with wrong bytes ends it.

        Args:
            url: of the server.
            model: folder of the model; the same one makes the same namespace.
            settings: of the connector.
            after: called after each request with how many are done.
        """
        with engine(self.scale, url, model, settings) as rig:
            played = rig.play(saves_answers=False, report=lambda done, total: after(done))
        assert played.is_bit_exact
        return Result(played)


WHOLE = Agentic(Workload(32))
SAMPLE = Agentic(Workload(32, agents=6, turns=6), elements=128)
"""36 requests of the same kind, for where 144 take too long."""
