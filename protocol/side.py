"""Packets of the unix side socket (SOCK_SEQPACKET): who is there, and descriptors.

Purpose: the side socket names the peer by its credentials, hands out the token for ZMQ, and is
the only way for descriptors. One MessagePack map with a ``type`` per packet, at most one
descriptor on it. Must not know: sockets. Runs in: every process.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from protocol import codec, limits
from protocol.ids import ID_BYTES
from protocol.layout import Bytes16, PoolBytes
from protocol.messages import Count, Id63, Version
from protocol.namespace import Text


class SideHello(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag="hello",
    tag_field="type",
):
    """First packet of a client.

    Attributes:
        major: protocol version.
        minor: protocol version.
        instance: the engine this process belongs to.
    """

    major: Version
    minor: Version
    instance: Bytes16


class Welcome(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag="welcome",
    tag_field="type",
):
    """Answer to SideHello.

    Attributes:
        token: for HELLO on up to 8 ZMQ connections while this side connection lives.
        epoch: the server's incarnation.
        arena: its arena.
        endpoint: the ZMQ endpoint to connect to.
    """

    token: Bytes16
    epoch: Bytes16
    arena: Bytes16
    endpoint: Text


class PoolOffer(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag="pool",
    tag_field="type",
):
    """Passes one sealed memfd to the server; the packet carries its descriptor.

    Attributes:
        pool: id that REGISTER_KV_CACHE will name.
        size_bytes: length of the file.
    """

    pool: Bytes16
    size_bytes: PoolBytes


class PoolAccepted(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag="pool_accepted",
    tag_field="type",
):
    """The server holds the descriptor; it may be registered now."""

    pool: Bytes16


class Drained(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag="drained",
    tag_field="type",
):
    """This process reads nothing more of what a former incarnation of the server gave it.

    Attributes:
        epoch: that incarnation.
        token: from its Welcome, or empty; tells the process where its number does not.
    """

    epoch: Bytes16
    token: Annotated[bytes, Meta(max_length=ID_BYTES)] = b""


class ExtentGiven(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag="extent",
    tag_field="type",
):
    """Passes one extent to a reader; the packet carries a read-only descriptor.

    Attributes:
        session: whose extent this is.
        extent: its id.
        shard: which shard it holds.
        num_slots: slots in it.
        slot_bytes: distance of slots.
        payload_bytes: used bytes of a slot.
        data_offset_bytes: where slot 0 begins.
        file_bytes: length of the file.
    """

    session: Id63
    extent: Count
    shard: Annotated[int, Meta(ge=0, lt=limits.MAX_SHARDS)]
    num_slots: Annotated[int, Meta(ge=1, le=limits.MAX_U32)]
    slot_bytes: Annotated[int, Meta(ge=1, le=limits.MAX_U63)]
    payload_bytes: Annotated[int, Meta(ge=1, le=limits.MAX_U63)]
    data_offset_bytes: Annotated[int, Meta(ge=1, le=limits.MAX_U63)]
    file_bytes: Annotated[int, Meta(ge=1, le=limits.MAX_U63)]


class ExtentTaken(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag="extent_taken",
    tag_field="type",
):
    """The extent is gone; the reader unmaps it and says so with MAPPED(unmapped).

    Attributes:
        session: whose extent it was.
        extent: its id.
    """

    session: Id63
    extent: Count


class SideError(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag="error",
    tag_field="type",
):
    """Why the server refuses; it may close the connection after this.

    Attributes:
        code: number of docs/protocol.md.
        message: one line for a person.
        pool: the pool it is about, or empty.
    """

    code: Count
    message: Text
    pool: Annotated[bytes, Meta(max_length=ID_BYTES)] = b""


FromClient = SideHello | PoolOffer | Drained
FromServer = Welcome | PoolAccepted | ExtentGiven | ExtentTaken | SideError


def pack(packet: FromClient | FromServer) -> bytes:
    """One packet.

    Args:
        packet: any side packet.

    Returns:
        bytes, at most MAX_SIDE_BYTES.
    """
    return codec.bytes_from_struct(packet)


def unpack_from_client(data: bytes) -> FromClient:
    """Reads a packet of a client.

    Args:
        data: one packet.

    Returns:
        The typed packet.

    Raises:
        RequestError: TOO_LARGE or MALFORMED.
    """
    plain = codec.plain_from_bytes(data, limits.MAX_SIDE_BYTES)
    return codec.struct_from_plain(plain, FromClient)  # type: ignore[arg-type]


def unpack_from_server(data: bytes) -> FromServer:
    """Reads a packet of the server.

    Args:
        data: one packet.

    Returns:
        The typed packet.

    Raises:
        RequestError: TOO_LARGE or MALFORMED.
    """
    plain = codec.plain_from_bytes(data, limits.MAX_SIDE_BYTES)
    return codec.struct_from_plain(plain, FromServer)  # type: ignore[arg-type]
