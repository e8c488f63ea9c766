"""An engine that fills the arena until everything that is not held must go."""

from __future__ import annotations

from tests.adapter.enginerig import EngineRig
from tests.adapter.hostlike import tokens

PROMPT_TOKENS = 61
MAX_PROMPTS = 400


def press(rig: EngineRig, num_evicted: int) -> None:
    """Stores new prompts until so many chunks were evicted since.

    Args:
        rig: registered, of the same model as whoever is to feel it.
        num_evicted: chunks; more than the arena holds leaves nothing old unless it is pinned.
    """
    before = rig.stats().get("evicted_chunks", 0)
    for _ in range(MAX_PROMPTS):
        if rig.stats().get("evicted_chunks", 0) - before >= num_evicted:
            return
        rig.run_saved(tokens(PROMPT_TOKENS, seed=1_000_000 + rig.next_id))
    raise AssertionError(f"the arena is too large to be pressed: {rig.stats()}")
