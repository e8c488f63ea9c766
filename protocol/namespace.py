"""Namespace and fingerprint: everything but tokens and scope that determines KV bytes.

Purpose: two engines share chunks exactly when their namespaces are equal; a change of model,
weights, dtype, layout or host version is another namespace and therefore a miss (B02, P09).
Must not know: ranks as identity (a rank is a shard field of slots), addresses. Runs in: every
process.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import Annotated

import msgspec
from msgspec import Meta

from protocol import limits
from protocol.errors import ErrorCode, RequestError
from protocol.ids import ID_BYTES, Fingerprint, ShardIndex
from protocol.keys import tagged

FORMAT_VERSION = 1

Text = Annotated[str, Meta(max_length=limits.MAX_TEXT_CHARS)]
Digest = Annotated[bytes, Meta(max_length=64)]
LayerIndex = Annotated[int, Meta(ge=0, le=limits.MAX_U32)]


class LayerGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Layers that share one page table.

    Attributes:
        layers: the model's layer numbers, in pool order.
        page_bytes: bytes of one block of this group on one rank.
        window_tokens: attention window, or 0 for full attention.
        replicated: every rank holds the same bytes (MLA), so one shard serves all readers.
    """

    layers: Annotated[tuple[LayerIndex, ...], Meta(min_length=1, max_length=limits.MAX_LAYERS)]
    page_bytes: Annotated[int, Meta(ge=1, le=limits.MAX_PAGE_BYTES)]
    window_tokens: Annotated[int, Meta(ge=0, le=limits.MAX_U32)] = 0
    replicated: bool = False


class Namespace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Identity of the KV bytes of one model as one kind of engine lays them out.

    Attributes:
        model_id: name and revision as the operator gave them.
        config_digest: digest of the model's config file.
        weights_digest: digest of its weight index.
        weights_epoch: the operator's own number for "same files, other weights".
        host_version: version of the inference engine.
        kv_dtype: element type of the pool as the pool says it.
        quantization: quantisation that changes KV, or empty.
        attention_backend: as the engine names it.
        kv_layout: order of the axes inside a page (NHD and HND have equal sizes).
        overrides: further settings that change KV, sorted by name.
        tokens_per_block: tokens in one block.
        chunk_blocks: blocks stored under one key.
        num_ranks: ranks that split the model's KV heads.
        groups: layer groups, in the engine's order.
    """

    model_id: Annotated[str, Meta(min_length=1, max_length=limits.MAX_TEXT_CHARS)]
    config_digest: Digest
    weights_digest: Digest
    weights_epoch: Text = ""
    host_version: Text
    kv_dtype: Text
    quantization: Text = ""
    attention_backend: Text
    kv_layout: Text
    overrides: Annotated[dict[Text, Text], Meta(max_length=limits.MAX_OVERRIDES)] = {}
    tokens_per_block: Annotated[int, Meta(ge=1, le=limits.MAX_TOKENS_PER_BLOCK)]
    chunk_blocks: Annotated[int, Meta(ge=1, le=limits.MAX_CHUNK_BLOCKS)] = 1
    num_ranks: Annotated[int, Meta(ge=1, le=limits.MAX_READERS)] = 1
    groups: Annotated[tuple[LayerGroup, ...], Meta(min_length=1, max_length=limits.MAX_GROUPS)]

    def __post_init__(self) -> None:
        """Refuses more shards than a message can name; a decoder reports it as MALFORMED."""
        if self.num_shards > limits.MAX_SHARDS:
            raise ValueError(
                f"{len(self.groups)} groups on {self.num_ranks} ranks make {self.num_shards} "
                f"shards, at most {limits.MAX_SHARDS} are possible"
            )

    @property
    def num_shards(self) -> int:
        """Parts of one chunk, over all groups and ranks."""
        return sum(1 if group.replicated else self.num_ranks for group in self.groups)

    @property
    def chunk_tokens(self) -> int:
        """Tokens of a chunk."""
        return self.tokens_per_block * self.chunk_blocks

    @property
    def num_readers(self) -> int:
        """Processes that read a leased chunk: one per rank."""
        return self.num_ranks

    def shard(self, group: int, rank: int) -> ShardIndex:
        """Shard number of a layer group on a rank.

        Args:
            group: index into ``groups``.
            rank: 0 <= rank < num_ranks; ignored for a replicated group.

        Returns:
            Shards are numbered group by group, ranks ascending within each.

        Raises:
            RequestError: INVALID_ARGUMENT when either is out of range.
        """
        if not (0 <= group < len(self.groups) and 0 <= rank < self.num_ranks):
            raise RequestError(
                ErrorCode.INVALID_ARGUMENT,
                f"group {group} rank {rank} is not within {len(self.groups)} groups "
                f"and {self.num_ranks} ranks",
            )
        before = sum(1 if g.replicated else self.num_ranks for g in self.groups[:group])
        return ShardIndex(before if self.groups[group].replicated else before + rank)

    def group_of(self, shard: int) -> int:
        """Layer group that a shard belongs to.

        Args:
            shard: 0 <= shard < num_shards.

        Returns:
            Index into ``groups``.

        Raises:
            RequestError: INVALID_ARGUMENT when there is no such shard.
        """
        upto = 0
        for index, group in enumerate(self.groups):
            upto += 1 if group.replicated else self.num_ranks
            if 0 <= shard < upto:
                return index
        raise RequestError(
            ErrorCode.INVALID_ARGUMENT, f"shard {shard} is not within 0..{self.num_shards - 1}"
        )

    def shards_of_rank(self, rank: int) -> tuple[ShardIndex, ...]:
        """The shard of each layer group that one rank reads, in group order."""
        return tuple(self.shard(group, rank) for group in range(len(self.groups)))

    def slot_payload_bytes(self, shard: int) -> int:
        """Bytes of one shard of one chunk: ``chunk_blocks`` pages."""
        return self.chunk_blocks * self.groups[self.group_of(shard)].page_bytes


def fingerprint(namespace: Namespace) -> Fingerprint:
    """Digest of a namespace: SHA-256 over its tagged fields in the order of docs/protocol.md.

    Args:
        namespace: validated.

    Returns:
        16 bytes; equal for equal namespaces only.
    """
    texts = (
        "kvkeep namespace 1",
        namespace.model_id,
        namespace.weights_epoch,
        namespace.host_version,
        namespace.kv_dtype,
        namespace.quantization,
        namespace.attention_backend,
        namespace.kv_layout,
    )
    parts = [tagged(0, text.encode("utf-8", "surrogatepass")) for text in texts]
    parts += [tagged(1, namespace.config_digest), tagged(1, namespace.weights_digest)]
    for name, value in sorted(namespace.overrides.items()):
        parts += [tagged(2, part.encode("utf-8", "surrogatepass")) for part in (name, value)]
    numbers = (
        FORMAT_VERSION,
        namespace.tokens_per_block,
        namespace.chunk_blocks,
        namespace.num_ranks,
        len(namespace.groups),
    )
    parts += [tagged(3, struct.pack("<Q", number)) for number in numbers]
    for group in namespace.groups:
        head = (group.page_bytes, group.window_tokens, int(group.replicated))
        parts.append(tagged(4, struct.pack("<3Q", *head)))
        parts.append(tagged(5, struct.pack(f"<{len(group.layers)}I", *group.layers)))
    return Fingerprint(sha256(b"".join(parts)).digest()[:ID_BYTES])
