"""A ledger beside a store: what this server wrote there, so that tenants' limits can be kept.

Must not know: L1, the index, the porter. Runs in: the porter of a tier.
"""

from __future__ import annotations

from server.tiers.disk.troubles import Troubles
from server.tiers.interface import Tier
from server.tiers.ledger.ledger import Ledger
from server.tiers.ledger.tier import LedgerTier
from server.tierspec import TierSpec


def with_ledger(tier: Tier, spec: TierSpec) -> Tier:
    """A store with the ledger that its spec names.

    Args:
        tier: the engine, open; closed where the ledger cannot be used.
        spec: of a kind that has the option ``ledger``, which is given.

    Raises:
        TierError: the ledger cannot be used.
    """
    troubles = Troubles(spec.name)
    try:
        ledger = Ledger(spec.text("ledger"), spec.store, troubles)
    except BaseException:
        tier.close()
        raise
    return LedgerTier(tier, ledger, spec.kind, troubles)
