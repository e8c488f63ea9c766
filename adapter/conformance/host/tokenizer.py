"""A byte-level tokenizer: one token per UTF-8 byte, and a few specials.

Must not know: the model. Pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

NUM_BYTES: Final = 256
BOS_ID: Final = 256
EOS_ID: Final = 257
PAD_ID: Final = 258
VOCAB_SIZE: Final = 260
"""Bytes, three specials, one spare to make it a multiple of four."""


def encode(text: str, *, add_bos: bool = True) -> list[int]:
    """Turn text into token ids.

    Args:
        text: Any text.
        add_bos: Whether to begin with the begin-of-text token.

    Returns:
        Token ids, each below ``VOCAB_SIZE``.
    """
    return ([BOS_ID] if add_bos else []) + list(text.encode("utf-8"))


def decode(tokens: Iterable[int]) -> str:
    """Turn token ids back into text; specials vanish, broken UTF-8 is replaced.

    Args:
        tokens: Token ids.

    Returns:
        The text.
    """
    return bytes(token for token in tokens if token < NUM_BYTES).decode("utf-8", errors="replace")
