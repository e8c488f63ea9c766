"""What kind of question somebody waits for, and which touches L1."""

import numpy as np

from protocol.ids import Fingerprint
from server.core.effects import JobId, TierGet, TierHealth, TierId, TierProbe, TierPut
from server.core.tiers.job import Job, Over
from server.core.tiers.parts import PART_DTYPE

TIER, NUMBER, SPACE = TierId(0), JobId(1), Fingerprint(bytes(16))
PARTS = np.zeros(1, PART_DTYPE)
Effect = TierGet | TierPut | TierProbe | TierHealth


def job(effect: Effect) -> Job:
    over: Over = lambda statuses, count: None  # noqa: E731
    return Job(effect, over)


def test_somebody_waits_for_what_is_read_and_asked() -> None:
    reads: list[Effect] = [
        TierGet(TIER, NUMBER, SPACE, PARTS),
        TierProbe(TIER, NUMBER, SPACE, b"k" * 16, 1, 0),
    ]
    others: list[Effect] = [TierPut(TIER, NUMBER, SPACE, PARTS), TierHealth(TIER, NUMBER)]
    assert [job(one).is_read for one in reads + others] == [True, True, False, False]


def test_values_on_their_way_touch_memory() -> None:
    carried: list[Effect] = [
        TierGet(TIER, NUMBER, SPACE, PARTS),
        TierPut(TIER, NUMBER, SPACE, PARTS),
    ]
    others: list[Effect] = [
        TierProbe(TIER, NUMBER, SPACE, b"k" * 16, 1, 0),
        TierHealth(TIER, NUMBER),
    ]
    assert [job(one).touches_memory for one in carried + others] == [True, True, False, False]
