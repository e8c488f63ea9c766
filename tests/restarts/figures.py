"""What a run counts, and what must hold of it.

Knows nothing of processes. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

ANSWER_S: Final = 2.0
"""From the next server's exec to its first answer to a LOOKUP."""

WITHIN: Final = "the next server answered a LOOKUP within 2 s"
"""The one claim that depends on what else the machine does."""

MIN_HIT_RATIO: Final = 0.999
MIN_MID_WRITE: Final = 0.2


@dataclass
class Kill:
    """One kill and what the next server had.

    Attributes:
        held: chunks with a whole record at the kill.
        begun: slots whose bytes had come and whose record had not.
        torn: those of them that were not all there.
        stores: STOREs without an answer; ``commits`` likewise.
        evicted: chunks evicted in the life, and in its last moments.
        reclaimed: extents taken from one namespace for another in the life.
        answer_s: from the next server's exec to its first LOOKUP's answer, which was a hit.
        due: committed chunks with a whole record.
        hits: those of them that were offered and read.
        more: further chunks offered and read, of COMMITs without an answer.
        fresh: chunks of the COMMITs answered last, whatever the records say; ``fresh_hits``.
        unrecorded: chunks offered without a whole record at the kill.
        wrong: pages that were wrong.
        old_read: pages that an engine of the killed server read at the end of the next one's life.
        old_wrong: those of them that were wrong.
        late: registrations that were not answered within 15 s and were made again.
    """

    held: int = 0
    begun: int = 0
    torn: int = 0
    stores: int = 0
    commits: int = 0
    evicted: int = 0
    evicted_last: int = 0
    reclaimed: int = 0
    answer_s: float = 0.0
    due: int = 0
    hits: int = 0
    more: int = 0
    fresh: int = 0
    fresh_hits: int = 0
    unrecorded: int = 0
    wrong: int = 0
    old_read: int = 0
    old_wrong: int = 0
    late: int = 0


@dataclass
class Tally:
    """All kills.

    Attributes:
        seed: of the run.
        chunks: that must be held at each kill.
        kills: in order.
        troubles: what no kill explains, in words.
    """

    seed: int
    chunks: int
    kills: list[Kill] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    def sum(self, name: str) -> int:
        """A count over all kills."""
        return sum(int(getattr(kill, name)) for kill in self.kills)

    def share(self, name: str) -> float:
        """The part of the kills in which a count is not zero."""
        return sum(int(getattr(kill, name)) > 0 for kill in self.kills) / max(1, len(self.kills))

    @property
    def found_wrong(self) -> int:
        """Pages that were wrong, whoever read them."""
        return self.sum("wrong") + self.sum("old_wrong")

    def document(self) -> dict[str, Any]:
        """Figures and claims."""
        due, fresh = self.sum("due"), self.sum("fresh")
        answers = np.array([kill.answer_s for kill in self.kills] or [0.0])
        ratio = self.sum("hits") / due if due else 0.0
        fresh_ratio = self.sum("fresh_hits") / fresh if fresh else 0.0
        held = min((kill.held for kill in self.kills), default=0)
        claims = {
            f"at least {self.chunks} chunks were held at each kill": held >= self.chunks,
            "a fifth of the kills came mid-write": self.share("begun") >= MIN_MID_WRITE,
            "chunks were being evicted at a fifth": self.share("evicted_last") >= MIN_MID_WRITE,
            "extents were reclaimed before a fifth": self.share("reclaimed") >= MIN_MID_WRITE,
            WITHIN: float(answers.max()) <= ANSWER_S,
            "99.9 % of committed chunks hit after each": all(
                kill.due and kill.hits >= MIN_HIT_RATIO * kill.due for kill in self.kills
            ),
            "99.9 % of the chunks committed last hit": fresh_ratio >= MIN_HIT_RATIO,
            "nothing was offered that had no record": self.sum("unrecorded") == 0,
            "no page was wrong": self.sum("wrong") == 0,
            "old engines read their bytes": self.sum("old_read") > 0 and self.sum("old_wrong") == 0,
            "no trouble": not self.troubles,
        }
        return {
            "seed": self.seed,
            "kills": len(self.kills),
            "held_least": held,
            "mid_write": round(self.share("begun"), 3),
            "amid_a_copy": round(self.share("torn"), 3),
            "stores_unanswered": round(self.share("stores"), 3),
            "commits_unanswered": round(self.share("commits"), 3),
            "evicting": round(self.share("evicted_last"), 3),
            "reclaiming": round(self.share("reclaimed"), 3),
            "answer_s_p50": round(float(np.median(answers)), 3),
            "answer_s_max": round(float(answers.max()), 3),
            "due": due,
            "hits": self.sum("hits"),
            "hit_ratio": round(ratio, 6),
            "fresh": fresh,
            "fresh_ratio": round(fresh_ratio, 6),
            "verified": self.sum("hits") + self.sum("more"),
            "unrecorded": self.sum("unrecorded"),
            "wrong": self.sum("wrong"),
            "old_read": self.sum("old_read"),
            "old_wrong": self.sum("old_wrong"),
            "late_registrations": self.sum("late"),
            "evicted": self.sum("evicted"),
            "reclaimed": self.sum("reclaimed"),
            "claims": claims,
            "held": all(claims.values()),
            "troubles": self.troubles,
            "each": [vars(kill) for kill in self.kills],
        }
