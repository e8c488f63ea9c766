"""From a file of prompts to the keys of their chunks, as an engine would name them.

Must not know: servers, command lines. Runs in: the thread of whoever asks, outside the server's
process.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator

from protocol import limits
from protocol.errors import RequestError
from protocol.ids import ID_BYTES
from protocol.keys import BlockHashChain, ReuseScope, chunk_key_blob
from server.sizes import format_size, invalid

MAX_PROMPTS = 100_000
MAX_FILE_BYTES = 64 << 20
MAX_LINE_BYTES = 16 << 20
"""More than a prompt of a million tokens has."""


def read_keys(path: str, tokens_per_block: int, chunk_blocks: int, salt: str | None) -> list[bytes]:
    """Reads prompts.

    Args:
        path: of a file with a JSON list of token ids on each line; empty lines do not count.
        tokens_per_block: of the engines.
        chunk_blocks: blocks under one key.
        salt: the cache salt of all of them, or None.

    Returns:
        For each prompt with at least one whole chunk the keys of its chunks, 16 bytes each, as
        many as fit one message.

    Raises:
        ConfigError: the file cannot be read, is no regular file, is too long or has too many
            lines, one that is too long, or one that is no list of ids.
    """
    found: list[bytes] = []
    try:
        for number, line in enumerate(_lines(path), 1):
            if line.strip():
                chain = BlockHashChain.start(ReuseScope(cache_salt=salt), tokens_per_block)
                chain.extend(_tokens(path, number, line))
                keys = chunk_key_blob(bytes(chain.keys), chunk_blocks)
                found.append(keys[: limits.MAX_BLOCKS_PER_MESSAGE * ID_BYTES])
    except (OSError, UnicodeDecodeError) as error:
        raise invalid("tokens", path, f"a file of text that can be read: {error}") from None
    except RequestError as error:
        raise invalid("tokens", path, str(error)) from None
    return [keys for keys in found if keys]


def _lines(path: str) -> Iterator[str]:
    """The lines of a file, none of them read beyond what is allowed."""
    left = MAX_FILE_BYTES
    with open(path, "rb", opener=_open) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise invalid("tokens", path, "a regular file")
        for number in range(1, MAX_PROMPTS + 2):
            line = file.readline(MAX_LINE_BYTES + 1)
            if not line:
                return
            left -= len(line)
            if number > MAX_PROMPTS:
                raise invalid("tokens", path, f"at most {MAX_PROMPTS} lines")
            if len(line) > MAX_LINE_BYTES:
                valid = f"at most {format_size(MAX_LINE_BYTES)} in a line; line {number} has more"
                raise invalid("tokens", path, valid)
            if left < 0:
                raise invalid("tokens", path, f"at most {format_size(MAX_FILE_BYTES)} in all")
            yield line.decode("utf-8")


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe that nobody writes to is not waited for


def _tokens(path: str, number: int, line: str) -> list[int]:
    try:
        tokens = json.loads(line)
    except (ValueError, RecursionError):
        tokens = None
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise invalid(
            "tokens", path, f"a JSON list of token ids in each line; line {number} is none"
        )
    return tokens
