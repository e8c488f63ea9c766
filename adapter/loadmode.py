"""When a promised load happens, relative to the engine's iterations, and which way is safe here.

Must not know: how bytes are copied, the host's objects. Plain data; chosen at registration.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from adapter.trtllm_api import EpochFeatures

AUTO: Final = "auto"


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


CHOICES: Final = (AUTO, *(mode.value for mode in LoadMode))
"""Valid values of the setting."""


def resolve(
    asked: str, features: EpochFeatures, is_adp: bool, has_layers: bool
) -> tuple[LoadMode, str]:
    """The mode that is safe in this host.

    Args:
        asked: one of ``CHOICES``.
        features: of the host's interface.
        is_adp: whether attention is data parallel.
        has_layers: whether the pool's description tells where each layer lies.

    Returns:
        The mode, and one line when it is not the one asked for; else an empty text.
    """
    if asked == AUTO:
        # Only a host that waits for a running load before it frees pages says so: by its
        # cancel handshake. Source: host contract §6.
        return (LoadMode.ASYNC if features.cancel_load else LoadMode.SYNC), ""
    mode = LoadMode(asked)
    if mode is LoadMode.ASYNC and not (features.cancel_load or (features.attention_dp and is_adp)):
        return LoadMode.SYNC, (
            "loads are synchronous: this host frees the pages of a cancelled request under a "
            "running asynchronous load"
        )
    if mode is LoadMode.LAYERWISE and not has_layers:
        return LoadMode.SYNC, (
            "loads are synchronous: the pool's description does not tell where each layer lies"
        )
    return mode, ""


def in_force(asked: str, mode: LoadMode) -> str:
    """What a line of the log says of how this engine loads.

    Args:
        asked: one of ``CHOICES``.
        mode: what ``resolve`` made of it.
    """
    if asked == AUTO and mode is LoadMode.ASYNC:
        return "async (auto: this host can cancel a load)"
    if asked == AUTO:
        return f"{mode.value} (auto: this host cannot cancel a load)"
    if asked == mode.value:
        return f"{mode.value} (as asked)"
    return f"{mode.value} ({asked} was asked for, and is not safe here)"
