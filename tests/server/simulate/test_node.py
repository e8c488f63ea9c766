from __future__ import annotations

import pytest

from server.core.tiers.policy import Policy
from server.simulate.lower import ASK_S, PIECE_BYTES, Contents
from server.simulate.node import MAX_WAITING_WRITES, Miss, Node, Outcome, Tier
from server.simulate.settings import Lower, Size

CHUNK = PIECE_BYTES
"""One chunk is one piece."""

FAST = 1e9


def tier(
    policy: Policy = Policy.WRITE_THROUGH,
    uses: int = 0,
    read_s: float = 1 / FAST,
    write_s: float = 1 / FAST,
    contents: Contents | None = None,
) -> Tier:
    """A tier that takes so many seconds to read and to write a chunk."""
    spec = Lower("disk", False, Size(0), policy, uses, CHUNK / 1e9 / read_s, CHUNK / 1e9 / write_s)
    held = Contents(1000) if contents is None else contents
    return Tier(spec, held, CHUNK, lambda at: None)


def ask(node: Node, at: float, *chunks: int, usable: int | None = None) -> Outcome:
    for one in node.tiers:
        one.writer.settle(at)
    return node.serve(at, list(chunks), len(chunks) if usable is None else usable)


def test_without_tiers_there_are_cold_and_evicted_chunks() -> None:
    node = Node(3, [], 1.0)
    first = ask(node, 0, 1, 2, 3)
    assert (first.hits, first.missing, first.why) == ([0], 3, Miss.COLD)
    assert ask(node, 1, 1, 2, 3).hits == [3]
    assert ask(node, 2, 9).why is Miss.COLD
    again = ask(node, 3, 1, 2, 3)
    assert (again.hits, again.missing, again.why) == ([2], 1, Miss.EVICTED)


def test_the_block_of_the_last_token_is_no_hit() -> None:
    node = Node(3, [], 1.0)
    ask(node, 0, 1, 2, 3)
    outcome = ask(node, 1, 1, 2, 3, usable=2)
    assert (outcome.hits, outcome.missing, outcome.why) == ([2], 1, Miss.LAST_TOKEN)


def test_a_prompt_that_memory_cannot_hold_is_held_in_part() -> None:
    node = Node(2, [], 1.0)
    ask(node, 0, 1, 2, 3)
    outcome = ask(node, 1, 1, 2, 3)
    assert (outcome.hits, outcome.why) == ([2], Miss.COLD)


def test_what_was_evicted_comes_back_from_a_tier() -> None:
    disk = tier()
    node = Node(3, [disk], 1.0)
    ask(node, 0, 1, 2, 3)
    ask(node, 1, 7, 8, 9)
    outcome = ask(node, 2, 1, 2, 3)
    assert (outcome.hits, outcome.missing, outcome.why) == ([0, 3], 0, None)
    assert outcome.read_chunks == [3]
    assert outcome.waited_s == pytest.approx(ASK_S, abs=1e-6)
    assert ask(node, 3, 1, 2, 3).hits == [3, 0]


def test_what_comes_after_the_deadline_serves_the_next_request() -> None:
    disk = tier(read_s=0.4)
    node = Node(4, [disk], 1.0)
    ask(node, 0, 1, 2, 3, 4)
    ask(node, 10, 6, 7, 8, 9)
    late = ask(node, 20, 1, 2, 3, 4)
    assert (late.hits, late.missing, late.why) == ([0, 2], 2, Miss.DEADLINE)
    assert late.waited_s == 1.0
    assert late.read_chunks == [4]
    joined = ask(node, 20.7, 1, 2, 3, 4)
    assert (joined.hits, joined.why) == ([1, 3], None)
    assert joined.waited_s == pytest.approx(0.9 + ASK_S)
    assert joined.read_chunks == [0]
    assert ask(node, 30, 1, 2, 3, 4).hits == [4, 0]


def test_who_joins_a_load_waits_no_longer_than_its_own_deadline() -> None:
    disk = tier(read_s=0.4)
    node = Node(4, [disk], 0.5)
    ask(node, 0, 1, 2, 3, 4)
    ask(node, 10, 6, 7, 8, 9)
    ask(node, 20, 1, 2, 3, 4)
    joined = ask(node, 20.1, 1, 2, 3, 4)
    assert (joined.hits, joined.why, joined.waited_s) == ([0, 1], Miss.DEADLINE, 0.5)


def test_reads_wait_for_one_another() -> None:
    disk = tier(read_s=0.4)
    node = Node(4, [disk], 1.0)
    ask(node, 0, 1, 2)
    ask(node, 1, 3, 4)
    ask(node, 10, 6, 7, 8, 9)
    assert ask(node, 20, 1, 2).hits == [0, 2]
    outcome = ask(node, 20, 3, 4)
    assert (outcome.hits, outcome.why) == ([0, 0], Miss.DEADLINE)


def test_a_tier_that_holds_more_than_memory_has_room_for() -> None:
    node = Node(3, [tier(contents=contents_of(1, 2, 3, 4, 5))], 1.0)
    outcome = ask(node, 0, 1, 2, 3, 4, 5)
    assert (outcome.hits, outcome.missing, outcome.why) == ([0, 3], 2, Miss.NO_ROOM)


def contents_of(*chunks: int) -> Contents:
    contents = Contents(1000)
    for chunk in chunks:
        contents.put(chunk)
    return contents


def test_tiers_are_asked_in_order_and_go_on_where_another_ends() -> None:
    disk, store = tier(contents=contents_of(1, 2)), tier(contents=contents_of(1, 2, 3, 4, 6))
    node = Node(10, [disk, store], 1.0)
    outcome = ask(node, 0, 1, 2, 3, 4, 5, 6)
    assert (outcome.hits, outcome.missing, outcome.why) == ([0, 2, 2], 2, Miss.COLD)
    node.tiers[0].writer.settle(1.0)
    assert disk.contents.leading([3, 4, 5, 6], 0, 4) == 4


def test_what_a_tier_gave_is_not_written_back_to_it() -> None:
    disk = tier(contents=contents_of(1, 2))
    written: list[float] = []
    disk = Tier(disk.spec, disk.contents, CHUNK, written.append)
    node = Node(10, [disk], 1.0)
    ask(node, 0, 1, 2, 3)
    disk.writer.settle(9.0)
    assert len(written) == 1


def test_a_tier_without_a_policy_is_only_read() -> None:
    store = tier(Policy.NONE, contents=contents_of(1))
    node = Node(1, [store], 1.0)
    assert ask(node, 0, 1, 2).hits == [0, 1]
    ask(node, 1, 5)
    store.writer.settle(9.0)
    assert len(store.contents) == 1


def test_on_evict_writes_what_goes_and_first_what_it_continues() -> None:
    order: list[int] = []

    class Noting(Contents):
        def put(self, chunk: int) -> None:
            order.append(chunk)
            super().put(chunk)

    disk = tier(Policy.ON_EVICT, contents=Noting(1000))
    node = Node(3, [disk], 1.0)
    ask(node, 0, 1, 2, 3)
    disk.writer.settle(0.5)
    assert order == []
    ask(node, 1, 9)
    disk.writer.settle(1.5)
    assert order == [1, 2, 3]
    ask(node, 2, 9, 8)
    disk.writer.settle(9.0)
    assert order == [1, 2, 3]


def test_after_so_many_uses_a_chain_is_written() -> None:
    disk = tier(Policy.AFTER_USES, uses=2)
    node = Node(4, [disk], 1.0)
    for at, expected in enumerate([0, 0, 3]):
        ask(node, at, 1, 2, 3)
        disk.writer.settle(at + 0.5)
        assert len(disk.contents) == expected


def test_uses_are_forgotten_with_the_chunk() -> None:
    disk = tier(Policy.AFTER_USES, uses=2)
    node = Node(2, [disk], 1.0)
    for at, chunks in enumerate([(1, 2), (1, 2), (8, 9), (1, 2), (1, 2)]):
        ask(node, at, *chunks)
    disk.writer.settle(9.0)
    assert len(disk.contents) == 0


def test_a_slow_tier_loses_what_is_evicted_before_its_turn() -> None:
    disk = tier(write_s=10.0)
    node = Node(2, [disk], 1.0)
    ask(node, 0, 1, 2)
    ask(node, 1, 5, 6)
    disk.writer.settle(1e6)
    assert disk.writer.dropped == 1
    assert [one for one in (1, 2, 5, 6) if one in disk.contents] == [1, 5, 6]


def test_two_nodes_meet_in_a_shared_tier() -> None:
    shared = Contents(100)
    first, second = (Node(10, [tier(contents=shared)], 1.0) for _ in range(2))
    ask(first, 0, 1, 2, 3)
    first.tiers[0].writer.settle(1.0)
    outcome = ask(second, 1, 1, 2, 3, 4)
    assert (outcome.hits, outcome.why) == ([0, 3], Miss.COLD)


def test_bounds_are_the_cores() -> None:
    from server.core.config import CoreConfig
    from server.core.tiers import promotion, reads, writer
    from server.simulate import lower

    assert MAX_WAITING_WRITES == writer.MAX_QUEUED
    assert lower.MAX_RUNS == promotion.MAX_RUNS
    assert CoreConfig(0, 0).promote_piece_bytes == lower.PIECE_BYTES
    assert (lower.LEAST_PIECE_BYTES, lower.PIECES) == (reads.LEAST_PIECE_BYTES, reads.PIECES)


def test_reasons_are_named_as_the_server_names_them() -> None:
    from server.core.tiers.misses import Miss as OfTheServer

    names = {reason.value for reason in Miss} - {Miss.LAST_TOKEN.value}
    assert names <= {reason.value for reason in OfTheServer}
