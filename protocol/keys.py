"""Prefix hashes: what a block of tokens is called.

Purpose: ``h0 = H(tagged fields of the reuse scope)``, then one SHA-256 step per block over the
parent's 32 bytes, the block's int32 tokens and the media that begin in it; 16 bytes of each
digest are published. No process seed enters, so every process derives the same keys (B03).
Must not know: namespaces (they separate models), sockets. Runs in: the engine's executor thread.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from protocol.errors import ErrorCode, RequestError
from protocol.ids import ID_BYTES, ChunkKey, InstanceId

STATE_BYTES = 32
_SCOPE_TAG = b"kvkeep scope 1"
_TENANT_TAG = b"kvkeep tenant 1"

# Field tags of the reuse scope; a tag keeps its meaning for ever.
_TAG_FORMAT = 0
_TAG_SALT_TEXT = 1
_TAG_SALT_NUMBER = 2
_TAG_LORA_DIGEST = 3
_TAG_LORA_LOCAL = 4
_TAG_INSTANCE = 5
_TAG_MEDIA = 16


def tagged(tag: int, value: bytes) -> bytes:
    """One unambiguous field: tag (1 byte), length (u32 LE), value.

    Args:
        tag: 0..255, meaning of the field.
        value: its bytes.

    Returns:
        The encoded field; concatenations of such fields have one reading only.
    """
    return struct.pack("<BI", tag, len(value)) + value


@dataclass(frozen=True)
class ReuseScope:
    """What, besides tokens, two requests must share to share KV.

    Attributes:
        cache_salt: the tenant's salt: text, a number (older hosts), or None.
        lora_digest: content digest of the LoRA adapter, when the configuration knows it.
        lora_local_id: the engine's own number for an adapter without a digest; shared with
            nobody, so ``instance`` is required beside it (P09).
        instance: the engine whose private content this is, or None for shared content.
    """

    cache_salt: str | int | None = None
    lora_digest: bytes | None = None
    lora_local_id: int | None = None
    instance: InstanceId | None = None

    def __post_init__(self) -> None:
        """Refuses what has no unambiguous bytes, and an adapter number tied to no engine."""
        for number in (self.cache_salt, self.lora_local_id):
            if number is not None and not isinstance(number, str | int):
                raise RequestError(
                    ErrorCode.INVALID_ARGUMENT,
                    f"a salt is text or an integer, an adapter number an integer: not {number!r}",
                )
        if self.lora_local_id is not None and self.instance is None:
            raise RequestError(
                ErrorCode.INVALID_ARGUMENT,
                "a LoRA adapter without a content digest needs the instance in its scope",
            )

    def seed(self) -> bytes:
        """``h0`` of the chain.

        Returns:
            32 bytes.
        """
        fields = [tagged(_TAG_FORMAT, _SCOPE_TAG), _salt_field(self.cache_salt)]
        if self.lora_digest is not None:
            fields.append(tagged(_TAG_LORA_DIGEST, self.lora_digest))
        if self.lora_local_id is not None:
            fields.append(tagged(_TAG_LORA_LOCAL, str(int(self.lora_local_id)).encode()))
        if self.instance is not None:
            fields.append(tagged(_TAG_INSTANCE, self.instance))
        return sha256(b"".join(fields)).digest()

    def tenant(self) -> bytes:
        """What a quota knows the salt by.

        Returns:
            16 bytes that tell the salt to nobody who cannot guess it; empty without a salt.
        """
        if self.cache_salt is None:
            return b""
        named = tagged(_TAG_FORMAT, _TENANT_TAG) + _salt_field(self.cache_salt)
        return sha256(named).digest()[:ID_BYTES]


def _salt_field(salt: str | int | None) -> bytes:
    if isinstance(salt, str):
        return tagged(_TAG_SALT_TEXT, salt.encode("utf-8", "surrogatepass"))
    return b"" if salt is None else tagged(_TAG_SALT_NUMBER, str(int(salt)).encode())


@dataclass(frozen=True)
class MediaItem:
    """One image, clip or sound in a prompt.

    Attributes:
        first_token: position of its first placeholder token in the request.
        digest: digest of its content.
    """

    first_token: int
    digest: bytes


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Tokens as int32 little-endian.

    Args:
        tokens: ids, each in int32.

    Returns:
        bytes[4 * len(tokens)].

    Raises:
        RequestError: INVALID_ARGUMENT for a value that is no int32.
    """
    try:
        return struct.pack(f"<{len(tokens)}i", *tokens)
    except struct.error as error:
        raise RequestError(
            ErrorCode.INVALID_ARGUMENT, f"token ids must be integers in int32: {error}"
        ) from error


@dataclass
class BlockHashChain:
    """The chain of one request, extended as its tokens become known; nothing is hashed twice.

    Attributes:
        tokens_per_block: tokens in one block.
        state: 32 bytes of the last hashed block, or the scope's seed.
        keys: published keys so far, 16 bytes each, in order.
    """

    tokens_per_block: int
    state: bytes
    keys: bytearray = field(default_factory=bytearray)

    @classmethod
    def start(cls, scope: ReuseScope, tokens_per_block: int) -> BlockHashChain:
        """A chain without blocks.

        Args:
            scope: the request's reuse scope.
            tokens_per_block: 1 and up.

        Returns:
            The chain, at the scope's seed.

        Raises:
            RequestError: INVALID_ARGUMENT for a block without tokens.
        """
        if tokens_per_block < 1:
            raise RequestError(ErrorCode.INVALID_ARGUMENT, "a block has at least one token")
        return cls(tokens_per_block=tokens_per_block, state=scope.seed())

    @property
    def num_blocks(self) -> int:
        """Blocks hashed so far."""
        return len(self.keys) // ID_BYTES

    def key(self, block: int) -> ChunkKey:
        """Published key of one hashed block.

        Args:
            block: ordinal, 0 <= block < num_blocks.
        """
        return ChunkKey(bytes(self.keys[block * ID_BYTES : (block + 1) * ID_BYTES]))

    def key_blob(self, start: int, stop: int) -> bytes:
        """Published keys of blocks ``[start, stop)`` as one blob of 16 bytes each."""
        return bytes(self.keys[start * ID_BYTES : stop * ID_BYTES])

    def extend(self, tokens: Sequence[int], media: Sequence[MediaItem] = ()) -> int:
        """Hashes the full blocks of a request that are not hashed yet.

        Args:
            tokens: every token of the request known by now, from position 0; may be a list or
                an int32 numpy array (the latter is hashed without conversion).
            media: every media item of the request, in order.

        Returns:
            Number of blocks in the chain afterwards.

        Raises:
            RequestError: INVALID_ARGUMENT for a token that is no int32, or media before token 0.
        """
        done, size = self.num_blocks, self.tokens_per_block
        full = len(tokens) // size
        if full <= done:
            return done
        packed = _int32_bytes(tokens, done * size, full * size)
        self._hash(packed, done, full, _media_by_block(media, size))
        return full

    def _hash(self, packed: bytes, first: int, stop: int, media: Mapping[int, bytes]) -> None:
        step, state = self.tokens_per_block * 4, self.state
        published: list[bytes] = []
        append = published.append
        if media:
            for at, block in enumerate(range(first, stop)):
                part = packed[at * step : (at + 1) * step]
                state = sha256(state + part + media.get(block, b"")).digest()
                append(state[:ID_BYTES])
        else:  # the hot path: nothing but one slice, one join and one digest per block
            for at in range(0, (stop - first) * step, step):
                state = sha256(state + packed[at : at + step]).digest()
                append(state[:ID_BYTES])
        self.state = state
        self.keys += b"".join(published)


def _int32_bytes(tokens: Sequence[int], start: int, stop: int) -> bytes:
    dtype = getattr(tokens, "dtype", None)
    if dtype is not None and dtype.str == "<i4":
        part: bytes = tokens[start:stop].tobytes()  # type: ignore[attr-defined]
        return part
    return pack_tokens(tokens if start == 0 and stop == len(tokens) else tokens[start:stop])


def _media_by_block(media: Sequence[MediaItem], tokens_per_block: int) -> dict[int, bytes]:
    fields: dict[int, bytes] = {}
    for item in media:
        if item.first_token < 0:  # its digest would enter no block: another's KV could be served
            raise RequestError(
                ErrorCode.INVALID_ARGUMENT, f"media cannot begin at token {item.first_token}"
            )
        block, offset = divmod(item.first_token, tokens_per_block)
        value = struct.pack("<I", offset) + item.digest
        fields[block] = fields.get(block, b"") + tagged(_TAG_MEDIA, value)
    return fields


def chunk_key_blob(block_keys: bytes, chunk_blocks: int) -> bytes:
    """Keys of whole chunks: each chunk is called by its last block's key.

    Args:
        block_keys: 16 bytes per block, starting at a chunk boundary.
        chunk_blocks: blocks per chunk, 1 and up.

    Returns:
        16 bytes per whole chunk; a trailing part of a chunk is left out.
    """
    if chunk_blocks == 1:
        return block_keys
    stride = chunk_blocks * ID_BYTES
    last = stride - ID_BYTES
    return b"".join(
        block_keys[at + last : at + stride] for at in range(0, len(block_keys) - last, stride)
    )
