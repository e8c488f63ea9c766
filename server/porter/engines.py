"""Opens the engine that a spec names.

Purpose: an engine's library is imported only by the porter that needs it, and one that is not
installed is told in one line. Must not know: what engines do. Runs in: a porter's main thread.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import cast

from protocol.extras import install
from server.tiers.interface import Tier, TierError
from server.tiers.ledger import with_ledger
from server.tierspec import TierSpec

_MODULES = {
    "disk": "server.tiers.disk",
    "mooncake": "server.tiers.mooncake",
    "valkey": "server.tiers.valkey",
    "s3": "server.tiers.objectstore",
}
"""Each has ``open(spec)``, which returns a Tier or raises TierError."""


def open_tier(spec: TierSpec) -> Tier:
    """Opens a tier, with its ledger where one is wanted.

    Args:
        spec: of a kind that there is.

    Returns:
        The tier; the caller closes it.

    Raises:
        TierError: why not, in one line without secrets.
    """
    try:
        module = importlib.import_module(_MODULES[spec.kind])
    except ImportError as error:
        package = (error.name or "a library of it").partition(".")[0]
        raise TierError(f"{package} cannot be imported: {install(spec.kind)}") from error
    opened = cast(Callable[[TierSpec], Tier], module.open)
    tier = opened(spec)
    return with_ledger(tier, spec) if spec.options.get("ledger") else tier
