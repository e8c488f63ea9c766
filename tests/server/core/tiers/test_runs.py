"""What a run knows of itself."""

from __future__ import annotations

from server.core.index import ABSENT
from server.core.namespaces import Owner
from server.core.tiers.runs import NOBODY, Run, Share
from tests.server.core.tiers.model import TierWorld, tiered
from tests.server.core.world import chain, namespace


def run_of(keys: list[bytes]) -> tuple[Run, Owner, TierWorld]:
    world = TierWorld(tiered())
    engine = world.engine()
    engine.register(namespace())
    (owner,) = world.core._state.roster.owners.values()
    run = Run(owner=owner, index=owner.index, start=0, parent_key=b"", keys=b"".join(keys))
    return run, owner, world


def test_what_it_lacks_is_found_by_key_from_its_frontier_on() -> None:
    keys = chain("x", 5)
    run, _, _ = run_of(keys)
    assert [run.lacks(key) for key in keys] == [0, 1, 2, 3, 4]
    run.frontier = 3
    assert [run.lacks(key) for key in keys] == [ABSENT, ABSENT, ABSENT, 3, 4]
    assert run.lacks(chain("y", 1)[0]) == ABSENT
    assert (run.num_chunks, run.key(4), run.key(5)) == (5, keys[4], b"")


def test_a_key_across_two_others_is_none_of_its_own() -> None:
    keys = [bytes([one]) * 16 for one in (1, 2, 2, 3)]
    run, _, _ = run_of([keys[0], b"\x01" * 8 + b"\x02" * 8, keys[1]])
    assert run.lacks(b"\x01" * 16) == 0
    run.frontier = 1
    assert run.lacks(b"\x02" * 16) == 2


def test_clear_and_delete_end_it() -> None:
    run, owner, world = run_of(chain("x", 2))
    share = Share(
        run=run, shard=0, index=run.index, start=0, parent_key=b"", keys=run.keys, is_needed=True
    )
    before = run.is_cleared
    share.forfeit()
    assert (before, share.is_cleared, run.is_cleared) == (False, True, True)
    other = Run(owner=owner, index=owner.index, start=0, parent_key=b"", keys=run.keys)
    world.core._state.roster.renew_index(owner)
    assert other.is_cleared


def test_a_lock_on_a_node_that_is_gone_ends_it() -> None:
    run, owner, _ = run_of(chain("x", 2))
    nodes = owner.index.add_chain(chain("y", 1), ABSENT, 0)
    run.anchor, run.anchor_life = int(nodes[0]), owner.index.life[nodes[0]]
    before = run.is_cleared
    owner.index.remove(int(nodes[0]))
    assert (before, run.is_cleared) == (False, True)


def test_its_parts_are_nobodys() -> None:
    run, owner, _ = run_of(chain("x", 4))
    share = Share(
        run=run, shard=0, index=run.index, start=0, parent_key=b"", keys=run.keys, is_needed=True
    )
    share.held, share.slots = 1, [5, 6]
    assert share.owner is owner
    assert share.writer == NOBODY == bytes(16)
    assert share.end == 3
