"""What is written to a tier, and when: the words that the operator, the core and others share.

Must not know: how it is done. Runs in: every process.
"""

from __future__ import annotations

from enum import Enum


class Policy(Enum):
    """When chunks go to a tier.

    AFTER_USES goes with a number of uses.
    """

    WRITE_THROUGH = "write-through"
    ON_EVICT = "on-evict"
    AFTER_USES = "after-N-uses"
    NONE = "none"

    @property
    def writes(self) -> bool:
        """Whether anything is ever written or forgotten there."""
        return self is not Policy.NONE
