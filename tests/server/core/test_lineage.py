"""Which records hang together: torn ones, twins, orphans, rings, several shards."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.extents import RECORD_DTYPE, STATE_DELETED, ExtentGeometry, checksums
from protocol.ids import ExtentId, Fingerprint, InstanceId
from server.core import records
from server.core.lineage import (
    LOST,
    ROOT,
    Rows,
    Survivors,
    by_first_byte,
    climb,
    graph,
    joined,
    last_used,
    newest_forgotten,
    sound_rows,
    survivors,
)
from tests.server.core.world import PAGE, chain

SPACE = Fingerprint(b"F" * 16)


def rows_of(keys: list[bytes], born: int, shard: int = 0, parent: bytes = b"") -> NDArray[Any]:
    return records.build(
        b"".join(keys), parent, SPACE, shard, 1, PAGE, InstanceId(b"i" * 16), born, born
    )


def read(*parts: NDArray[Any], shard: int = 0) -> Rows:
    blob = np.concatenate(parts)
    cut = ExtentGeometry(ExtentId(1), SPACE, shard, 1, PAGE, PAGE, len(blob))
    return sound_rows(blob, cut, 0)[0]


def alive(parts: list[Rows], full: tuple[bool, ...] = (True,)) -> tuple[Survivors, list[bytes]]:
    found = graph(joined(parts))
    result = survivors(found, np.ones(len(found.node), bool), full)
    keys = [bytes(found.key[at]) for at in np.flatnonzero(result.depth >= 0)]
    return result, sorted(keys)


# --- what is sound --------------------------------------------------------------------------------


def test_only_whole_records_of_this_extent_count() -> None:
    blob = np.zeros(3000, RECORD_DTYPE)
    blob[5:15] = rows_of(chain("x", 10), 1)
    changes: dict[str, Any] = {
        "state": STATE_DELETED,
        "shard": 1,
        "namespace": np.void(b"G" * 8),
        "chunk_blocks": 2,
        "payload_bytes": 1,
        "generation": 0,
    }
    for place, (name, value) in enumerate(changes.items(), 5):
        blob[name][place] = value
        blob["checksum"][place] = checksums(blob[place : place + 1])[0]
    blob["generation"][11] = 1 << 63
    blob["checksum"][11] = checksums(blob[11:12])[0]
    blob["stamp"][12] ^= 1  # torn
    cut = ExtentGeometry(ExtentId(1), SPACE, 0, 1, PAGE, PAGE, len(blob))
    found, others = sound_rows(blob, cut, 7)
    assert found.local.tolist() == [13, 14]
    assert found.file.tolist() == [7, 7]
    assert found.generation.tolist() == [9, 10]
    assert others == {"torn": 1, "not of this extent": 7}


@pytest.mark.parametrize("bit", [0, 130, 500, 1020])
def test_any_flipped_bit_makes_a_record_unsound(bit: int) -> None:
    blob = rows_of(chain("x", 1), 1)
    raw = bytearray(blob.tobytes())
    raw[bit // 8] ^= 1 << bit % 8
    damaged = np.frombuffer(bytes(raw), RECORD_DTYPE)
    cut = ExtentGeometry(ExtentId(1), SPACE, 0, 1, PAGE, PAGE, 1)
    assert len(sound_rows(damaged, cut, 0)[0].local) == 0


def test_voided_records_tell_which_generations_were_given_and_damaged_ones_do_not() -> None:
    blob = rows_of(chain("x", 10), 1)
    assert newest_forgotten(blob) == 0
    blob["checksum"][[2, 6]] = 0
    blob["generation"][8] = 1000  # its checksum says otherwise
    assert newest_forgotten(blob) == 7
    blob["generation"][6] = 1 << 62
    assert newest_forgotten(blob) == 3


def test_an_extent_without_records_gives_none() -> None:
    cut = ExtentGeometry(ExtentId(1), SPACE, 0, 1, PAGE, PAGE, 9)
    rows, _ = sound_rows(np.zeros(9, RECORD_DTYPE), cut, 0)
    result, keys = alive([rows])
    assert keys == []
    assert result.cells.shape == (0, 1)


# --- what hangs together --------------------------------------------------------------------------


def test_a_chain_survives_in_any_order_of_slots_and_generations() -> None:
    keys = chain("x", 50)
    blob = rows_of(keys, 1)
    blob["generation"] = np.random.default_rng(1).permutation(50) + 1
    blob["checksum"] = checksums(blob)
    result, found = alive([read(blob[::-1].copy())])
    assert found == sorted(keys)
    assert sorted(result.depth.tolist()) == list(range(50))
    assert (result.num_older, result.num_lost) == (0, 0)


def test_what_lacks_an_ancestor_is_left_out() -> None:
    blob = np.delete(rows_of(chain("x", 10), 1), 4)
    result, found = alive([read(blob, rows_of(chain("y", 3), 50))])
    assert found == sorted(chain("x", 4) + chain("y", 3))
    assert result.num_lost == 5


def test_of_two_records_of_a_chunk_the_newer_one_counts() -> None:
    keys = chain("x", 3)
    rows = joined([read(rows_of(keys, 10), rows_of(keys[1:], 20, parent=keys[0]))])
    found = graph(rows)
    result = survivors(found, np.ones(5, bool), (True,))
    held = result.cells[result.cells >= 0]
    assert sorted(rows.generation[held].tolist()) == [10, 20, 21]
    assert result.num_older == 2
    # Where the newer one's extent is not taken over, the older one will do.
    result = survivors(found, rows.generation < 20, (True,))
    held = result.cells[result.cells >= 0]
    assert sorted(rows.generation[held].tolist()) == [10, 11, 12]


def test_records_that_disagree_about_a_parent_follow_the_newest() -> None:
    x, y = chain("x", 2), chain("y", 1)
    stale = rows_of(x, 1)
    newer = rows_of([x[1]], 9, shard=1, parent=y[0])
    result, found = alive(
        [
            read(stale),
            read(newer, rows_of(y, 8, shard=1), shard=1),
            read(rows_of(y, 7)),
        ],
        (True, True),
    )
    assert found == sorted([*x, *y])
    assert result.num_lost == 1  # the older record of x[1]


def test_rings_and_a_chunk_that_continues_itself_are_left_out() -> None:
    a, b, c = chain("a", 3)
    ring = [rows_of([a], 1, parent=c), rows_of([b], 2, parent=a), rows_of([c], 3, parent=b)]
    own = rows_of([chain("s", 1)[0]], 4, parent=chain("s", 1)[0])
    result, found = alive([read(*ring, own, rows_of(chain("y", 2), 5))])
    assert found == sorted(chain("y", 2))
    assert result.num_lost == 4


def test_a_full_attention_shard_needs_its_parents_part_and_a_window_only_the_parent() -> None:
    keys = chain("x", 4)
    full, window = rows_of(keys, 1), rows_of(keys[2:], 9, shard=1, parent=keys[1])
    both = [read(full), read(window, shard=1)]
    result, found = alive(both, (True, False))
    assert found == sorted(keys)
    assert np.count_nonzero(result.cells >= 0) == 6
    result, found = alive(both, (True, True))
    assert found == sorted(keys)
    assert np.count_nonzero(result.cells >= 0) == 4
    # Without the second chunk the window's are not found either.
    result, found = alive([read(np.delete(full, 1)), read(window, shard=1)], (True, False))
    assert found == keys[:1]
    assert result.num_lost == 4


@pytest.mark.parametrize("seed", range(20))
def test_any_forest_with_holes_agrees_with_the_plain_rule(seed: int) -> None:
    rng = random.Random(seed)
    num_shards = rng.randint(1, 3)
    full = tuple(rng.random() < 0.7 for _ in range(num_shards))
    keys = [rng.randbytes(16) for _ in range(40)]
    above = {key: rng.choice([b"", *keys[:at]]) for at, key in enumerate(keys)}
    have = {(key, shard) for key in keys for shard in range(num_shards) if rng.random() < 0.8}
    born = {one: at for at, one in enumerate(rng.sample(sorted(have), len(have)), 1)}
    parts = []
    for shard in range(num_shards):
        mine = [
            rows_of([key], born[key, shard], shard, above[key]) for key, s in have if s == shard
        ]
        parts.append(read(*(mine or [np.zeros(0, RECORD_DTYPE)]), shard=shard))
    while True:
        known = {key for key, _ in have}
        wrong = {
            (key, shard)
            for key, shard in have
            if above[key]
            and (above[key] not in known or (full[shard] and (above[key], shard) not in have))
        }
        if not wrong:
            break
        have -= wrong
    found = graph(joined(parts))
    result = survivors(found, np.ones(len(found.node), bool), full)
    where = np.argwhere(result.cells >= 0).tolist()
    assert {(bytes(found.key[node]), shard) for node, shard in where} == have
    for node in np.flatnonzero(result.depth >= 0).tolist():
        key, depth = bytes(found.key[node]), 0
        while above[key]:
            key, depth = above[key], depth + 1
        assert result.depth[node] == depth


# --- the arithmetic -------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 3, 64, 1000])
def test_climbing_counts_steps_whatever_the_length(length: int) -> None:
    parent = np.arange(length) - 1
    assert climb(parent).tolist() == list(range(length))
    parent[0] = LOST
    assert (climb(parent) == -1).all()
    parent[0] = length - 1
    assert (climb(parent) == -1).all()


def test_a_chunk_was_used_when_anything_that_continues_it_was() -> None:
    parent = np.array([ROOT, 0, 1, 1, 3, ROOT, 7, 6])
    depth = climb(parent)
    stamp = np.array([1, 2, 9, 3, 5, 4, 99, 98])
    assert last_used(parent, depth, stamp).tolist() == [9, 9, 9, 5, 5, 4, 99, 98]


def test_keys_are_sorted_by_their_first_byte() -> None:
    keys = np.frombuffer(random.Random(0).randbytes(16 * 500), "V16")
    order, names, bounds = by_first_byte(keys)
    assert names == [bytes(keys[at]) for at in order]
    for byte in range(256):
        assert all(name[0] == byte for name in names[bounds[byte] : bounds[byte + 1]])
    assert bounds[-1] == 500
