"""Every bound that the wire format promises, by name.

Purpose: a decoder refuses anything beyond these before it allocates for it, and both sides can
size their buffers. A value is raised only with a new minor version. Must not know: sockets.
Runs in: every process.
"""

from __future__ import annotations

from typing import Final

MAX_FRAME_BYTES: Final = 1 << 20
"""Longest ZMQ frame. 16,384 hashes and page ids need 320 KiB; a RETRIEVE reply 512 KiB."""

MAX_BLOCKS_PER_MESSAGE: Final = 16_384
"""Most chunks or pages named in one message (0.5 M tokens of 32-token blocks)."""

MAX_SLOTS_PER_REPLY: Final = 32_768
"""Most slot descriptors in one RETRIEVE reply: chunks times shards."""

MAX_CONTAINERS: Final = 4096
"""Most arrays and maps in one frame, so that a frame of a million tiny ones costs little."""

MAX_SIDE_BYTES: Final = 4096
"""Longest packet on the side socket."""

MAX_FDS_PER_PACKET: Final = 1
"""Descriptors that may ride on one side packet."""

MAX_TEXT_CHARS: Final = 512
"""Longest text field: model ids, versions, error messages."""

MAX_TRACEPARENT_CHARS: Final = 55
"""Length of a W3C traceparent of version 00."""

MAX_DETAIL_FIELDS: Final = 16
"""Most named facts in one error."""

MAX_CAPABILITIES: Final = 32
MAX_OVERRIDES: Final = 64
MAX_GROUPS: Final = 64
MAX_LAYERS: Final = 1024
MAX_REGIONS: Final = 2048
MAX_SHARDS: Final = 1024
MAX_READERS: Final = 256
MAX_PAGES: Final = (1 << 31) - 1
"""Page ids are int32 on the wire; -1 means "no page" in the host and never travels."""

MAX_TOKENS_PER_BLOCK: Final = 1 << 16
MAX_CHUNK_BLOCKS: Final = 256
MAX_PAGE_BYTES: Final = 1 << 30
MAX_POOL_BYTES: Final = 1 << 44
MAX_EXTENTS_PER_MESSAGE: Final = 4096
MAX_LIVE_REQUESTS: Final = 8192
"""Most request keys in one HEARTBEAT, and most requests with leases of one instance."""

MAX_CONNECTIONS_PER_TOKEN: Final = 8
"""ZMQ connections one process may open: scheduler, worker, keeper and spares while reconnecting."""

MAX_OUTSTANDING_REQUESTS: Final = 64
"""Requests of one ZMQ connection that may await their reply; one more is answered BUSY."""

MAX_STORES_PER_SESSION: Final = 256
"""STOREs of one session that are copying or await COMMIT; one more is answered BUSY."""

MAX_WAIT_MS: Final = 60_000
"""Longest wait a client may ask of QUERY_PREFETCH_STATUS and of EVENTS."""

MAX_STATUS_ROWS: Final = 256
"""Most rows in one list of a STATUS reply; how many more there are is told beside it."""

MAX_STATUS_CHARS: Final = 128
"""Longest text in a row of a STATUS reply, so that all rows fit one frame."""

MAX_STATUS_NAMES: Final = 16
"""Most namespaces in one row of an engine: it may register so often."""

MAX_TTL_S: Final = 30 * 24 * 3600
MAX_U32: Final = (1 << 32) - 1
MAX_U63: Final = (1 << 63) - 1
"""Largest integer field: 64-bit values stay clear of the sign bit for languages without u64."""
