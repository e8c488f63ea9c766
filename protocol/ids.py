"""Names for the plain integers and byte strings that travel on the wire.

Purpose: one distinct type per kind of identifier, so that a type checker catches a lease passed
where a chunk key belongs. Must not know: sockets, files, clocks. Runs in: every process.
"""

from __future__ import annotations

from typing import NewType

#: Length of every random or digest-based identifier on the wire, in bytes.
ID_BYTES = 16

InstanceId = NewType("InstanceId", bytes)
"""16 random bytes naming one engine; all of its ranks share it."""

Epoch = NewType("Epoch", bytes)
"""16 random bytes naming one incarnation of the server."""

ArenaId = NewType("ArenaId", bytes)
"""16 random bytes naming one arena directory; survives the server's restarts."""

Token = NewType("Token", bytes)
"""16 random bytes that tie ZMQ connections to the process behind one side connection."""

LeaseId = NewType("LeaseId", bytes)
"""16 random bytes: the right to read the chunks that one LOOKUP matched."""

PoolId = NewType("PoolId", bytes)
"""16 random bytes chosen by the engine for one piece of memory it passes over the side socket."""

ChunkKey = NewType("ChunkKey", bytes)
"""The 16 published bytes of a chunk's prefix hash."""

Fingerprint = NewType("Fingerprint", bytes)
"""16 bytes: digest of a namespace."""

SessionId = NewType("SessionId", int)
"""A registered KV cache (one rank of one instance) within one server epoch; 1 and up."""

RequestKey = NewType("RequestKey", int)
"""Chosen by the scheduler, unique among the live requests of its instance."""

StoreId = NewType("StoreId", int)
"""Chosen by the worker, never reused within its session."""

ExtentId = NewType("ExtentId", int)
"""Index of one extent file, never reused within one arena directory; 1 and up."""

ShardIndex = NewType("ShardIndex", int)
"""(layer group, rank) flattened: ``group * ranks + rank``; replicated groups have one rank."""

Generation = NewType("Generation", int)
"""Value of the arena-wide counter at the moment a slot was published; 1 and up, 0 means void."""

Nanoseconds = NewType("Nanoseconds", int)
"""A reading of the server's monotonic clock."""
