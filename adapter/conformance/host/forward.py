"""What a forward is made of: entries of a batch, and the interface of a model.

A model's steps run on the execution stream X, one ``layer`` step per decoder
layer so that the connector's layer hooks fall between them as in the real host;
``sample`` runs on M behind the forward.

Must not know: requests, scheduling, the connector. Steps run on stream threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class TokenCell:
    """A sampled token on its way from one forward to the next.

    It stands for device memory: written on M, read on X, and unknown to the
    executor until it has waited for the samples (overlap scheduling).
    """

    def __init__(self) -> None:
        """Make a cell that holds nothing yet."""
        self.token: int | None = None
        self.logits: Any = None

    def get(self) -> int:
        """The token.

        Raises:
            RuntimeError: If it is read before it was sampled: stream order is broken.
        """
        if self.token is None:
            raise RuntimeError("a token was read before it was sampled")
        return self.token


@dataclass
class TokenLane:
    """A generating request's tokens in device memory, and the drafts that are verified next.

    Written on M behind the samples, read on X: with the overlap scheduler the executor learns of
    either an iteration later.

    Attributes:
        tokens: The prompt and what was sampled and confirmed; the last one is fed next.
        drafts: Tokens proposed to follow.
        num_right: How many of them the model will confirm.
    """

    tokens: list[int]
    drafts: list[int] = field(default_factory=list)
    num_right: int = 0


@dataclass
class ForwardEntry:
    """One request's part of a forward.

    Attributes:
        start: Position of the first token computed; with a lane the last one possible, until
            ``settle``.
        num_tokens: Tokens computed.
        tokens: Prompt tokens of that range, or the cell of the one token fed back.
        tables: Pages of the request per layer group, ordinal order, covering the range;
            -1 where a sliding window has none.
        wants_sample: Whether the last token's output is sampled.
        first: Whether everything before ``start`` was loaded or matched, not computed
            by an earlier forward of this request.
        memo: The model's own memory of the request.
        lane: Where token and position of a request with drafts are found, or None.
        place: Which of them: 0 for the last token, then the drafts.
        state: The model's working values of this forward.
        output: What ``sample`` turns into a token.
    """

    start: int
    num_tokens: int
    tokens: Sequence[int] | TokenCell
    tables: tuple[tuple[int, ...], ...]
    wants_sample: bool
    first: bool
    memo: Any
    lane: TokenLane | None = None
    place: int = 0
    state: Any = None
    output: Any = None

    def settle(self) -> None:
        """Take token and position from the lane; on X, before anything else asks for them."""
        if self.lane is not None:
            known = self.lane.tokens
            self.start = len(known) - 1 + self.place
            self.tokens = [self.lane.drafts[self.place - 1] if self.place else known[-1]]

    def token_ids(self) -> Sequence[int]:
        """The token ids computed; only to be asked on X."""
        if isinstance(self.tokens, TokenCell):
            return [self.tokens.get()]
        return self.tokens


@dataclass(frozen=True)
class LayerPages:
    """Where one layer's KV lies, in whatever memory.

    Attributes:
        group: Layer group, whose page ids it takes.
        parts: ``kv_factor`` tensors ``[num_pages, elements]``, rows contiguous, possibly
            strided; row i belongs to page i.
    """

    group: int
    parts: tuple[Any, ...]


def v1_layers(pool: Any) -> list[LayerPages]:
    """The layers of a V1 pool tensor: one group.

    Args:
        pool: As ``PoolShape`` says.
    """
    _, num_layers, kv_factor, _ = pool.shape
    return [
        LayerPages(0, tuple(pool[:, layer, part] for part in range(kv_factor)))
        for layer in range(num_layers)
    ]


@dataclass(frozen=True)
class PoolShape:
    """Shape and element type of a V1 pool (host contract §7).

    Attributes:
        shape: ``[num_blocks, num_layers, kv_factor, kv_heads * tokens_per_block * head_dim]``.
        dtype_name: torch name of the element type.
    """

    shape: tuple[int, int, int, int]
    dtype_name: str


class ForwardModel(Protocol):
    """A model whose KV lives in the host's pool."""

    @property
    def num_layers(self) -> int:
        """Decoder layers, each with one pair of layer hooks."""

    @property
    def max_seq_len(self) -> int:
        """Longest sequence in tokens."""

    def pool_shape(self, num_blocks: int) -> PoolShape:
        """Shape of a pool of ``num_blocks`` pages."""

    @property
    def windows(self) -> tuple[int, ...]:
        """Attention window of each layer in tokens, 0 for full attention."""

    def bind_layers(self, layers: Sequence[LayerPages]) -> None:
        """Keep KV there from now on; one entry per layer, shaped as ``pool_shape`` says."""

    def new_memo(self, prompt: Sequence[int]) -> Any:
        """Begin the model's memory of one request."""

    def begin(self, entries: Sequence[ForwardEntry]) -> None:
        """Embed the tokens of a batch. Runs on X."""

    def layer(self, index: int, entries: Sequence[ForwardEntry]) -> None:
        """Run one decoder layer over a batch. Runs on X."""

    def end(self, entries: Sequence[ForwardEntry]) -> None:
        """Make each entry's output. Runs on X."""

    def sample(self, entry: ForwardEntry) -> tuple[int, Any]:
        """The greedy token of an entry and its logits, or None. Runs on M."""
