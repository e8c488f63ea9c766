"""How long a new server takes to adopt what a former one held, per million records.

    python -m tests.benchmarks.bench_adoption [--json] [--records N] [--rounds N]

A program, not a test: it judges nothing, since a busy machine would decide. It writes records
into shared memory as a server leaves them, those of extents of 64 MiB with pages of 4 KiB, maps
them anew for each round and has a new core adopt them: chains of 4,096 chunks in one shard and in
eight, chains of 64, records in an order that has nothing to do with chains, extents that a
stranger may still touch, and an arena half as large. The bytes of pages play no part, so none are
there. CPU is this thread's; only on a machine that does nothing else it is also the time.
``unseal`` is thread CPU of the slices when the stranger goes (design rule 9: p99 of one burst at
most 300 µs). Knows ``protocol`` and the core, and needs no server.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import os
import random
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.extents import RECORD_DTYPE, ExtentGeometry, cut
from protocol.ids import ArenaId, Epoch, ExtentId, InstanceId
from protocol.namespace import LayerGroup, Namespace, fingerprint
from server.core import records
from server.core.adoption import FoundExtent, FoundParty, Heritage, PartyId
from server.core.config import CoreConfig
from server.core.dispatch import Core

PAGE_BYTES = 4096
EXTENT_BYTES = 64 << 20
SECOND_NS = 1_000_000_000
NOW_NS = 1000 * SECOND_NS


@dataclass(frozen=True)
class Case:
    """One kind of arena.

    Attributes:
        name: of the row.
        num_shards: ranks of its one layer group.
        chain: chunks per chain.
        shuffled: slots in no order.
        sealed: somebody may still touch all of it.
        room: share of it that the new arena has room for.
    """

    name: str
    num_shards: int = 1
    chain: int = 4096
    shuffled: bool = False
    sealed: bool = False
    room: float = 1.0


CASES = (
    Case("1 shard"),
    Case("8 shards", num_shards=8),
    Case("chains of 64", chain=64),
    Case("no order", shuffled=True),
    Case("sealed", sealed=True),
    Case("half the arena", room=0.5),
)


def space(num_shards: int) -> Namespace:
    """One layer group of small pages on so many ranks."""
    return Namespace(
        model_id="bench",
        config_digest=b"",
        weights_digest=b"",
        host_version="1",
        kv_dtype="float16",
        attention_backend="x",
        kv_layout="NHD",
        tokens_per_block=32,
        num_ranks=num_shards,
        groups=(LayerGroup(layers=(0,), page_bytes=PAGE_BYTES),),
    )


def shard_records(case: Case, num: int, shard: int, keys: bytes, born: int) -> NDArray[Any]:
    """Records of one shard of all chunks."""
    name = fingerprint(space(case.num_shards))
    parts = []
    for first in range(0, num, case.chain):
        count = min(case.chain, num - first)
        blob = keys[16 * first : 16 * (first + count)]
        stamp_us = 1_000_000 + born + first
        owner = InstanceId(b"i" * 16)
        parts.append(
            records.build(blob, b"", name, shard, 1, PAGE_BYTES, owner, stamp_us, born + first)
        )
    rows = np.concatenate(parts)
    return rows[np.random.default_rng(shard).permutation(num)] if case.shuffled else rows


class Arena:
    """Extents' records in one memory file."""

    def __init__(self, case: Case, num_records: int) -> None:
        name = fingerprint(space(case.num_shards))
        num = num_records // case.num_shards
        keys = random.Random(1).randbytes(16 * num)
        self.case = case
        self.num_records = num * case.num_shards
        self.geometries: list[ExtentGeometry] = []
        self._fd = os.memfd_create("records", os.MFD_CLOEXEC)
        for shard in range(case.num_shards):
            rows = shard_records(case, num, shard, keys, 1 + shard * num)
            while len(rows):
                geometry = cut(
                    ExtentId(len(self.geometries) + 1), name, shard, 1, PAGE_BYTES, EXTENT_BYTES
                )
                self.geometries.append(geometry)
                mine, rows = rows[: geometry.num_slots], rows[geometry.num_slots :]
                padded = np.zeros(geometry.num_slots, RECORD_DTYPE)
                padded[: len(mine)] = mine
                os.write(self._fd, padded.tobytes())

    def heritage(self) -> Heritage:
        """The same, mapped anew: each page is touched for the first time."""
        found, begin = [], 0
        view = mmap.mmap(self._fd, 0, mmap.MAP_SHARED)
        for geometry in self.geometries:
            rows = np.frombuffer(view, RECORD_DTYPE, geometry.num_slots, begin)
            begin += rows.nbytes
            found.append(FoundExtent(geometry, rows))
        namespace = space(self.case.num_shards)
        parties = [FoundParty(PartyId(1), None)] if self.case.sealed else []
        return Heritage({fingerprint(namespace): namespace}, found, parties)

    def core(self) -> Core:
        """A core with as much room as the case says."""
        whole = sum(geometry.file_bytes for geometry in self.geometries)
        config = CoreConfig(int(whole * self.case.room), EXTENT_BYTES)
        return Core(config, Epoch(b"E" * 16), ArenaId(b"A" * 16), random.Random(0).randbytes)

    def close(self) -> None:
        """Lets the memory go."""
        os.close(self._fd)


def measure(case: Case, num_records: int, rounds: int) -> dict[str, Any]:
    """Figures of one case.

    Returns:
        Seconds per million records (median and worst), chunks, and the longest slice of unsealing.
    """
    arena = Arena(case, num_records)
    taken, spent, num_chunks = [], [], 0
    slices = [0.0]
    for _ in range(rounds):
        heritage, core = arena.heritage(), arena.core()
        gc.collect()
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        adoption = core.adopt(heritage, NOW_NS)
        spent.append((time.thread_time() - begin_cpu) / arena.num_records * 1e6)
        taken.append((time.perf_counter() - begin) / arena.num_records * 1e6)
        num_chunks = adoption.num_chunks
        gc.freeze()  # as a server does once it has started
        if case.sealed:
            core.party_gone(PartyId(1), NOW_NS)
            more = True
            while more:
                started_ns = time.thread_time_ns()
                more = core.work(NOW_NS)
                slices.append((time.thread_time_ns() - started_ns) / 1000)
        del core, adoption, heritage
        gc.unfreeze()
    arena.close()
    slices.sort()
    return {
        "case": case.name,
        "records": arena.num_records,
        "chunks": num_chunks,
        "s_per_million": round(statistics.median(taken), 3),
        "worst_s_per_million": round(max(taken), 3),
        "cpu_s_per_million": round(statistics.median(spent), 3),
        "unseal_p99_us": round(slices[int(0.99 * (len(slices) - 1))], 1),
        "unseal_slices": len(slices) - 1,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """What ``measure`` gave, for people."""
    names = ("chunks", "s per million", "worst", "CPU s", "unseal p99 us")
    lines = ["".join([f"{'':16}", *(f"{name:>15}" for name in names)])]
    for row in rows:
        times = [row["s_per_million"], row["worst_s_per_million"], row["cpu_s_per_million"]]
        unseal = f"{row['unseal_p99_us']:15.1f}" if row["unseal_slices"] else ""
        shown = "".join(f"{value:15.3f}" for value in times)
        lines.append(f"{row['case']:16}{row['chunks']:15}{shown}{unseal}")
    return "\n".join(lines)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rows = [measure(case, options.records, options.rounds) for case in CASES]
    print(json.dumps({"rows": rows}, indent=2) if options.json else table(rows))


if __name__ == "__main__":
    main()
