"""The disk tier: values in files of a local folder, or of one that several servers share.

Two layouts behind one ``open``: ``slab``, fixed slots in preallocated files for one server, and
``files``, a file for each value. Must not know: L1, the index, the porter. Runs in: the porter of a
tier.
"""

from __future__ import annotations

from server.tiers.disk.shared import SharedTier
from server.tiers.disk.slab import SlabTier
from server.tiers.interface import Tier
from server.tierspec import TierSpec


def open(spec: TierSpec) -> Tier:  # noqa: A001
    """Opens the tier that an operator wrote as ``disk:/path?size=200G``.

    Args:
        spec: of the kind ``disk``.

    Raises:
        TierError: the folder cannot be used, or another server uses it.
    """
    layout = SharedTier if spec.text("layout") == "files" else SlabTier
    return layout(spec.location, spec.number("size"), spec.name)
