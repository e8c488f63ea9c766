"""What the core asks of records: it keeps no salt of its own for each chunk.

A part of ``server.core.effects``, in a file of its own. Must not know: where records are. Runs in:
the loop thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.ids import ExtentId


@dataclass(frozen=True)
class FindSalt:
    """Look which records of an extent name a salt; answered by ``Core.salt_found``, always.

    Attributes:
        search: for whom.
        extent: which extent.
        begin: first slot to look at.
        end: behind the last one.
        salt: digest of it.
    """

    search: int
    extent: ExtentId
    begin: int
    end: int
    salt: bytes
