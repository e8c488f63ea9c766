"""The quotas as they are kept for the next server.

A part of ``server.core.effects``, in a file of its own. Must not know: where they are kept. Runs
in: the loop thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.quotas import QuotaChange


@dataclass(frozen=True)
class KeepQuotas:
    """Write down every quota in place of what was written before.

    Attributes:
        quotas: all that are set.
    """

    quotas: tuple[QuotaChange, ...]
