"""The model of chaos engines: each page's bytes follow from its tokens; wrong ones are counted.

As the host's payload model, but each rank and each kind of engine has bytes of its own, as real
ones do, and a page that does not hold what its tokens say is described, counted and put right in
place of ending the engine: a run then tells how much is wrong, and of what kind. Must not know:
requests, the connector. Steps run on X's thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import torch

from adapter.conformance.host.forward import ForwardEntry
from adapter.conformance.host.payload import PayloadModel

_MAX_TOLD: Final = 20


class ChaosPayload(PayloadModel):
    """A payload model that survives what it finds.

    Args:
        tokens_per_block: tokens of a page.
        rank: of the engine; ranks sample the same tokens and hold other bytes.
        kind: engines of one kind share bytes.
        num_layers: of the pool.
        bytes_per_token: in one layer and one of K and V, on this rank.
        windows: attention window of each layer in tokens, 0 for full.

    Attributes:
        num_wrong: parts of pages found with wrong bytes.
        wrong: the first of them in words.
    """

    def __init__(
        self,
        tokens_per_block: int,
        *,
        rank: int,
        kind: str,
        num_layers: int,
        bytes_per_token: int,
        windows: Sequence[int] | None = None,
    ) -> None:
        super().__init__(
            tokens_per_block,
            bytes_per_token=bytes_per_token,
            num_layers=num_layers,
            salt=kind.encode(),
            windows=windows,
        )
        self.num_wrong = 0
        self.wrong: list[str] = []
        self._own = f"rank {rank}".encode()

    def _content(self, memo: Any, block: int) -> torch.Tensor:
        data = hashlib.shake_128(memo.digests[block] + self._own).digest(self.page_bytes)
        flat = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return flat.view(self.num_layers, 2, -1)

    def _mismatch(
        self, layer: int, block: int, page: int, part: Any, data: Any, entry: ForwardEntry
    ) -> None:
        self._tell(layer, block, page, part[page], data, entry)
        part[page] = data

    def _tell(
        self, layer: int, block: int, page: int, found: Any, wanted: Any, entry: ForwardEntry
    ) -> None:
        self.num_wrong += 1
        if len(self.wrong) >= _MAX_TOLD:
            return
        others = int((found != wanted).sum())
        look = "all zero" if not bool(found.any()) else bytes(found[:8].tolist()).hex()
        self.wrong.append(
            f"layer {layer}, block {block} of {entry.start // self.tokens_per_block} that count as "
            f"computed, page {page}: {others} of {len(wanted)} bytes differ ({look}…)"
        )
