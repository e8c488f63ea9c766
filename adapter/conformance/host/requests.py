"""A request in three shapes: the client's handle, the host's state, the connector's view.

The view has exactly the attributes the C++ base object has in the V1 query (host
contract §3), no more, and is a fresh object at each call: a connector must go by
``request_id``, never by identity.

Must not know: the allocator, the connector, torch. State belongs to the
executor's thread; handles may be used from any.
"""

from __future__ import annotations

import enum
import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from adapter.conformance.host.errors import HostError
from adapter.conformance.host.forward import TokenCell


@dataclass(frozen=True)
class Multimodal:
    """Media of a request, as the host carries them.

    Attributes:
        hashes: Eight int32 values per item, or None when the host has no digests.
        positions: First token of each item.
        lengths: Tokens of each item.
    """

    hashes: tuple[tuple[int, ...], ...] | None
    positions: tuple[int, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class RequestParams:
    """What a client asks for.

    Attributes:
        prompt: Token ids, at least one.
        max_new_tokens: Tokens to generate at most, at least one.
        stop_ids: Generation ends with the first of these, which is kept.
        context_only: Its KV goes to another engine: one token, then it is finished (§6).
        generation_only: Its KV comes from another engine; no connector is asked.
        retention_priority: Of its pages, with a retention config; None without.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    stop_ids: frozenset[int] = frozenset()
    cache_salt: str | None = None
    lora_task_id: int | None = None
    multimodal: Multimodal | None = None
    context_only: bool = False
    generation_only: bool = False
    retention_priority: int | None = None

    def reuse_scope(self) -> tuple[object, ...]:
        """What the host's own reuse tree keeps apart besides tokens."""
        return (self.cache_salt, self.lora_task_id, self.multimodal)


@dataclass(frozen=True)
class HostResult:
    """How a request ended well.

    Attributes:
        tokens: Generated token ids.
        logits: Per generated token the model's logits, if captured.
        num_device_tokens: Prompt tokens matched in the host's own pool.
        num_loaded_tokens: Prompt tokens taken from the connector.
        num_computed_tokens: Prompt tokens computed.
        finish_reason: ``"length"`` or ``"stop"``.
    """

    tokens: list[int]
    logits: list[Any]
    num_device_tokens: int
    num_loaded_tokens: int
    num_computed_tokens: int
    finish_reason: str


class RequestHandle:
    """A client's grip on a submitted request; thread-safe."""

    def __init__(self, request_id: int) -> None:
        """Make a handle of a request that has not ended."""
        self.request_id = request_id
        self._done = threading.Event()
        self._result: HostResult | None = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether the request has ended, well or not."""
        return self._done.is_set()

    def result(self, timeout_s: float | None = None) -> HostResult:
        """Wait for the end.

        Args:
            timeout_s: Longest wait in seconds.

        Raises:
            TimeoutError: If the request has not ended by then.
            HostError: If it failed, was cancelled, or the executor died.
        """
        if not self._done.wait(timeout_s):
            raise TimeoutError(f"request {self.request_id} did not end within {timeout_s} s")
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise HostError(f"request {self.request_id} ended without a result")
        return self._result

    def resolve(self, result: HostResult) -> None:
        """End well; the first end counts."""
        if not self._done.is_set():
            self._result = result
            self._done.set()

    def fail(self, error: BaseException) -> None:
        """End with an error; the first end counts."""
        if not self._done.is_set():
            self._error = error
            self._done.set()


class Phase(enum.Enum):
    """Where a request is in its life."""

    WAITING = enum.auto()
    CONTEXT = enum.auto()
    LOADING = enum.auto()
    GENERATION = enum.auto()
    ENDED = enum.auto()


@dataclass(eq=False)
class HostRequest:
    """The executor's state of one request.

    Attributes:
        tokens: Tokens the host knows: the prompt, then samples it has waited for.
        tables: Page ids per layer group in ordinal order, -1 for no page; empty before
            allocation and after release.
        context_len: Known tokens to compute as context: the prompt, and after a replay also
            what was generated before it.
        attempt: Allocations that died so far; samples of an earlier one do not count.
        cursor: Prompt tokens computed, loaded or matched so far.
        honoured: Tokens honoured from the connector in this iteration.
        matched_by_connector: V2's honoured count as the connector sees it, None before.
        num_issued: Samples queued so far, known or not; of drafts only the accepted ones.
        num_drafts: Tokens that the device proposes behind the last sample queued.
        num_unverified: Drafts fed to forwards whose samples were not waited for.
        last_cell: Where the last queued sample goes.
        saving: Whether ``request_finished`` answered True and saving is not done.
        forwards_seen: Whether a forward of it was launched.
    """

    request_id: int
    params: RequestParams
    handle: RequestHandle
    memo: Any
    phase: Phase = Phase.WAITING
    tokens: list[int] = field(default_factory=list)
    tables: list[list[int]] = field(default_factory=list)
    context_len: int = -1
    attempt: int = 0
    cursor: int = 0
    honoured: int = 0
    matched_by_connector: int | None = None
    num_issued: int = 0
    num_drafts: int = 0
    num_unverified: int = 0
    last_cell: TokenCell | None = None
    saving: bool = False
    forwards_seen: bool = False
    num_device_tokens: int = 0
    num_loaded_tokens: int = 0
    logits: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        """A first attempt computes the prompt."""
        if self.context_len < 0:
            self.context_len = self.prompt_len

    @property
    def blocks(self) -> list[int]:
        """Page ids of the first (V1: the only) layer group."""
        return self.tables[0] if self.tables else []

    @blocks.setter
    def blocks(self, blocks: list[int]) -> None:
        self.tables = [blocks]

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""
        return len(self.params.prompt)

    @property
    def generated(self) -> list[int]:
        """Known generated tokens."""
        return self.tokens[self.prompt_len :]

    def blocks_needed(self, tokens_per_block: int, headroom: int = 0) -> int:
        """Pages to completion: the last generated token is never computed.

        Args:
            tokens_per_block: Tokens a page holds.
            headroom: Tokens that may be computed beyond it all the same.
        """
        num_tokens = self.prompt_len + self.params.max_new_tokens - 1 + headroom
        return -(-num_tokens // tokens_per_block)

    @property
    def num_computable(self) -> int:
        """Tokens whose KV the forwards launched so far may have written, drafts included."""
        return self.prompt_len + self.num_issued + self.num_unverified - 1


class LlmRequestView:
    """The request as a connector sees it.

    Args:
        request: The host's state; tokens are copied at each ``get_tokens``.
        salt_as_id: Whether this host version has ``cache_salt_id`` (an integer)
            in place of ``cache_salt`` (host contract §1).
        v2: Whether it is the V2 manager's: ``is_generation_only_request`` is a method, and
            the honoured count is set before the page callback (§5).
    """

    def __init__(self, request: HostRequest, *, salt_as_id: bool, v2: bool = False) -> None:
        params, media = request.params, request.params.multimodal
        self._tokens = request.tokens
        self.request_id = request.request_id
        self.lora_task_id = params.lora_task_id
        if salt_as_id:
            self.cache_salt_id = salt_id(params.cache_salt)
        else:
            self.cache_salt = params.cache_salt
        self.multimodal_hashes = _lists(media.hashes) if media and media.hashes else None
        self.multimodal_positions = list(media.positions) if media else None
        self.multimodal_lengths = list(media.lengths) if media else None
        only = params.generation_only
        self.is_generation_only_request: Any = (lambda: only) if v2 else only
        if v2 and request.matched_by_connector is not None:
            self.py_num_connector_matched_tokens = request.matched_by_connector
        self.kv_cache_retention_config = params.retention_priority

    def get_tokens(self, beam: int) -> list[int]:
        """All tokens the host knows, copied.

        Raises:
            IndexError: For any beam but 0.
        """
        if beam != 0:
            raise IndexError(f"beam {beam} of a request with one beam")
        return list(self._tokens)


def _lists(items: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(item) for item in items]


def salt_id(salt: str | None) -> int | None:
    """The integer salt of early hosts; None when unsalted."""
    if salt is None:
        return None
    return int.from_bytes(hashlib.sha256(salt.encode()).digest()[:8], "little") >> 1
