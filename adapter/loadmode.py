"""When a promised load happens, relative to the engine's iterations.

Must not know: how bytes are copied, the host's objects. Plain data; chosen at registration.
"""

from __future__ import annotations

from enum import Enum


class LoadMode(Enum):
    """How offers are made and loaded.

    Attributes:
        SYNC: the load is complete before the iteration's forward begins.
        ASYNC: the request waits outside the batch while its pages fill.
        LAYERWISE: as SYNC, but each layer's attention waits for that layer's bytes only.
    """

    SYNC = "sync"
    ASYNC = "async"
    LAYERWISE = "layerwise"
