"""The quotas that operators set, one file in the arena's folder: the next server has them again.

Purpose: written whole whenever one changes, read once at the start. A file that cannot be read
stands for no quotas, and is told. Must not know: what a quota means. Runs in: the arena's thread;
``read`` in the main thread, at start.
"""

from __future__ import annotations

import os
from typing import Annotated

import msgspec
from msgspec import Meta

from protocol import codec, limits
from protocol.errors import KvkeepError
from protocol.quotas import MAX_QUOTAS, QuotaChange
from server.shell.namespacefiles import read_whole, write_whole

NAME = "quotas"


class Book(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the file says.

    Attributes:
        quotas: all that are set.
    """

    quotas: Annotated[tuple[QuotaChange, ...], Meta(max_length=MAX_QUOTAS)]


def keep(directory: str, quotas: tuple[QuotaChange, ...]) -> None:
    """Writes the file anew; without quotas there is none.

    Args:
        directory: the arena's.
        quotas: all that are set.

    Raises:
        OSError: it cannot be written; the former one is still there then.
    """
    path = f"{directory}/{NAME}"
    if quotas:
        write_whole(path, codec.bytes_from_struct(Book(quotas=quotas)))
        return
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def read(directory: str) -> tuple[tuple[QuotaChange, ...], str]:
    """Reads what a predecessor had set.

    Args:
        directory: the arena's.

    Returns:
        The quotas; and why there are none though there is a file, or empty.
    """
    try:
        data = read_whole(f"{directory}/{NAME}", limits.MAX_FRAME_BYTES)
        return codec.struct_from_plain(codec.plain_from_bytes(data), Book).quotas, ""
    except FileNotFoundError:
        return (), ""
    except (OSError, KvkeepError) as error:
        return (), f"{directory}/{NAME} cannot be read, quotas are to be set again: {error}"
