"""Offers of the aggressive mode: asked for in the scheduling pass, settled later or never.

A waiting request is asked about before anyone knows whether it gets pages; its offer, cut to whole
blocks, is held until it does. What is not used returns by ``cancel_load``: the cut, what was
matched on the device meanwhile, what no page was left for, all of an offer that has waited too
long, or whose request is cancelled (host contract §5, "Aggressive mode"; §3, E4).

Must not know: pages, batches. Executor thread only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from adapter.conformance.host.connector import ConnectorPort
from adapter.conformance.host.requests import HostRequest

_MOST_PASSES: Final = 12
"""An offer that was not settled in so many is given back, and asked for again."""

_HALVED_AFTER: Final = 2
"""Passes after which half of an offer is taken up, if that fits."""


@dataclass
class Held:
    """An offer that is not settled.

    Attributes:
        start: Tokens matched on the device.
        end: Where the offer ends: a whole block, or ``start``.
        is_async: Whether it loads outside the batch.
        num_passes: Scheduling passes that it has been held for.
    """

    start: int
    end: int
    is_async: bool
    num_passes: int = 0


class PrefixBudget:
    """Offers of waiting requests.

    Args:
        port: The connector.
        tokens_per_block: Tokens a page holds.

    Attributes:
        num_held_over: Offers that were settled in a later pass than they were made in.
    """

    def __init__(self, port: ConnectorPort, tokens_per_block: int) -> None:
        self.num_held_over = 0
        self._port = port
        self._size = tokens_per_block
        self._held: dict[int, Held] = {}

    def look(self, request: HostRequest, matched: int) -> Held:
        """What a request may count on in this pass; asks the connector if nothing is held.

        Args:
            request: A waiting one.
            matched: Tokens matched on the device now.
        """
        held = self._held.get(request.request_id)
        if held is not None:
            held.num_passes += 1
            if matched < held.start or held.num_passes > _MOST_PASSES:
                self.give_back(request)
                held = None
            else:
                self._cut_front(request, held, matched)
        if held is None:
            held = self._held[request.request_id] = self._ask(request, matched)
        return held

    def shorter_end(self, held: Held) -> int | None:
        """Where half of an offer ends that has not fitted for some passes; else None."""
        num_blocks = (held.end - held.start) // self._size
        if held.num_passes < _HALVED_AFTER or num_blocks < 2:
            return None
        return held.start + num_blocks // 2 * self._size

    def settle(self, request: HostRequest) -> Held:
        """The request is begun with its offer, or a part; the caller gives back the rest."""
        held = self._held.pop(request.request_id)
        self.num_held_over += held.num_passes > 0 and held.end > held.start
        return held

    def give_back(self, request: HostRequest) -> None:
        """All of what is held for a request, if anything, is not used."""
        held = self._held.pop(request.request_id, None)
        if held is not None and held.end > held.start:
            self._port.cancel_load(request, held.start, held.end)

    def _ask(self, request: HostRequest, matched: int) -> Held:
        offered, is_async = 0, False
        if not request.params.generation_only:
            offered, is_async = self._port.query(request, matched)
        end = min(matched + offered, request.context_len - 1)
        end = max(matched, end - end % self._size)
        if end < matched + offered:
            self._port.cancel_load(request, end, matched + offered)
        return Held(matched, end, is_async)

    def _cut_front(self, request: HostRequest, held: Held, matched: int) -> None:
        if matched > held.start:
            if held.end > held.start:
                self._port.cancel_load(request, held.start, min(matched, held.end))
            held.start, held.end = matched, max(matched, held.end)
