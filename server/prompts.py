"""From a file of prompts to the keys of their chunks, as an engine would name them.

Must not know: servers, command lines. Runs in: the thread of whoever asks, outside the server's
process.
"""

from __future__ import annotations

import json

from protocol import limits
from protocol.errors import RequestError
from protocol.ids import ID_BYTES
from protocol.keys import BlockHashChain, ReuseScope, chunk_key_blob
from server.sizes import invalid

MAX_PROMPTS = 100_000


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
        ConfigError: the file cannot be read, has too many lines, or one that is no list of ids.
    """
    found: list[bytes] = []
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if number > MAX_PROMPTS:
                    raise invalid("tokens", path, f"at most {MAX_PROMPTS} lines")
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


def _tokens(path: str, number: int, line: str) -> list[int]:
    try:
        tokens = json.loads(line)
    except (ValueError, RecursionError):
        tokens = None
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise invalid("tokens", path, f"a JSON list of token ids, in line {number}, too")
    return tokens
