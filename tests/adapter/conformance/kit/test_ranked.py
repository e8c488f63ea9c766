"""Each rank's connector is observed in its own process, and a rank can be lost before it saves."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from adapter.conformance.host.errors import HostError
from adapter.conformance.kit.bench import BLOCK, text
from tests.adapter.conformance.kit.breaching import Kit

pytestmark = pytest.mark.torch


def test_every_rank_tells_what_was_called_there(kit: Kit) -> None:
    prompt = text(2 * BLOCK + 1, seed=1)
    with kit.bench("Folder").ranks() as engine:
        assert engine.warm(prompt, 10.0)
        leader, follower = (engine.log(rank) for rank in range(2))
        assert [call.hook for call in engine.log(1, "wait_for_save")][:1] == ["wait_for_save"]
    assert "get_num_new_matched_tokens" in {call.hook for call in leader}
    assert "get_num_new_matched_tokens" not in {call.hook for call in follower}
    for calls in (leader, follower):
        assert {"start_load_kv", "wait_for_save", "get_finished"} <= {call.hook for call in calls}


def test_a_job_ends_with_the_rank_that_dies_before_it_saves(kit: Kit) -> None:
    prompt = text(2 * BLOCK + 1, seed=2)
    with kit.bench("Folder").ranks() as engine:
        engine.die_before_saving(prompt, rank=1)
        assert not engine.engine.is_alive
        with pytest.raises(HostError):
            engine.ask(prompt)
    assert not list(kit.folder.glob("*.1"))
