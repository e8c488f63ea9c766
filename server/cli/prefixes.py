"""Namespaces and prefixes as people name them on the command line.

Purpose: a namespace by its fingerprint, by the beginning of that, or by its model's name; prefixes
by a file of tokens, or by keys. Must not know: what is done with them. Runs in: the process of the
command line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from server.cli.salts import salt_options

if TYPE_CHECKING:
    from protocol.errors import ConfigError
    from protocol.status import NamespaceStatus

FINGERPRINT_DIGITS = 32
MIN_DIGITS = 4
_SHOWN_NAMES = 5


@dataclass(frozen=True)
class Chunks:
    """How the engines of a namespace cut prompts into chunks.

    Attributes:
        tokens_per_block: of the engines.
        chunk_blocks: blocks under one key.
    """

    tokens_per_block: int
    chunk_blocks: int

    @property
    def tokens(self) -> int:
        """Tokens of one chunk."""
        return self.tokens_per_block * self.chunk_blocks


@dataclass(frozen=True)
class Wanted:
    """What was typed to name prefixes.

    Attributes:
        tokens_file: a file with a JSON list of token ids on each line, or None.
        keys: chunk keys, 32 hex digits each, from the prefix's start on.
        tokens_per_block: as typed, or None for what the server says.
        chunk_blocks: likewise.
        salt: of the prompts, or None.
    """

    tokens_file: str | None = None
    keys: tuple[str, ...] = ()
    tokens_per_block: int | None = None
    chunk_blocks: int | None = None
    salt: str | None = None

    @property
    def is_any(self) -> bool:
        """Whether any prefix is named."""
        return self.tokens_file is not None or bool(self.keys)


def namespace_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--namespace``, as ``namespace``."""
    return click.option(
        "--namespace",
        metavar="NAME",
        help="A namespace: the 32 hex digits of its fingerprint, its first 4 or more, or the "
        "model's name, where only one has that.  kvkeep inspect lists them.",
    )(command)


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Those that name prefixes.

    Args:
        command: takes the fields of ``Wanted`` by name.
    """
    for one in (
        salt_options("The prompts' cache salt, if they have one."),
        click.option(
            "--chunk-blocks",
            metavar="N",
            type=click.IntRange(1, 256),
            help="Likewise: blocks stored under one key.",
        ),
        click.option(
            "--tokens-per-block",
            metavar="N",
            type=click.IntRange(1, 1 << 16),
            help="Of the engines that use the namespace.  [default: as the server says]",
        ),
        click.option(
            "--key",
            "keys",
            metavar="HEX",
            multiple=True,
            help="Instead of --tokens: the key of a chunk, 32 hex digits; once for each chunk of "
            "one prefix, from its start on.",
        ),
        click.option(
            "--tokens",
            "tokens_file",
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False),
            help="Prompts: a file with a JSON list of token ids on each line.",
        ),
    ):
        command = one(command)
    return command


def find(known: Sequence[NamespaceStatus], name: str | None) -> NamespaceStatus | None:
    """The namespace that somebody means.

    Args:
        known: those the server tells of.
        name: as typed; None for the only one.

    Returns:
        It, or None where a whole fingerprint was typed that the server does not tell of.

    Raises:
        ConfigError: INVALID_CONFIG; it says which there are.
    """
    from server.sizes import invalid

    if name is None:
        if len(known) == 1:
            return known[0]
        there = f"there are {len(known)}: {_names(known)}" if known else "there is none"
        raise _wanting(f"say which namespace is meant, --namespace NAME; {there}")
    text = name.lower()
    is_hex = all(letter in "0123456789abcdef" for letter in text)
    if is_hex and MIN_DIGITS <= len(text) <= FINGERPRINT_DIGITS:
        found = [one for one in known if one.fingerprint.hex().startswith(text)]
        if not found and len(text) == FINGERPRINT_DIGITS:
            return None
    else:
        found = []
    found = found or [one for one in known if one.name == name]
    if len(found) == 1:
        return found[0]
    which = "exactly one" if found else "one that is there"
    raise invalid("namespace", name, f"{which}: {_names(found or known) or 'there is none'}")


def _wanting(line: str) -> ConfigError:
    from protocol.errors import ConfigError, ErrorCode

    return ConfigError(ErrorCode.INVALID_CONFIG, line)


def _names(known: Sequence[NamespaceStatus]) -> str:
    shown = [f"{one.fingerprint.hex()} ({one.name})" for one in known[:_SHOWN_NAMES]]
    return ", ".join(shown) + (", ..." if len(known) > _SHOWN_NAMES else "")


@dataclass(frozen=True)
class Resolved:
    """What somebody means.

    Attributes:
        fingerprint: of the namespace.
        prefixes: for each, the keys of its chunks, 16 bytes each.
        chunk_tokens: tokens of a chunk, 0 where nobody knows.
    """

    fingerprint: bytes
    prefixes: list[bytes]
    chunk_tokens: int


def resolve(known: Sequence[NamespaceStatus], namespace: str | None, wanted: Wanted) -> Resolved:
    """What somebody means, with what the server says of its namespaces.

    Args:
        known: those the server tells of.
        namespace: as typed, or None for the only one.
        wanted: as typed.

    Raises:
        ConfigError: INVALID_CONFIG: no such namespace, or no such prefixes.
    """
    found = find(known, namespace)
    fingerprint = found.fingerprint if found is not None else bytes.fromhex(namespace or "")
    if wanted.tokens_file is not None:
        chunks = chunks_of(wanted, found)
        return Resolved(fingerprint, read(wanted, chunks), chunks.tokens)
    tokens = found.chunk_tokens if found is not None else 0
    return Resolved(fingerprint, read(wanted, None), tokens)


def chunks_of(wanted: Wanted, known: NamespaceStatus | None) -> Chunks:
    """How prompts are cut into chunks: as typed, else as the server says.

    Args:
        wanted: as typed.
        known: the namespace, if the server tells of it.

    Raises:
        ConfigError: INVALID_CONFIG, where neither says.
    """
    from server.sizes import invalid

    blocks = wanted.chunk_blocks or (known.chunk_blocks if known else 1)
    tokens = wanted.tokens_per_block
    if tokens is None and known is not None:
        tokens = known.chunk_tokens // known.chunk_blocks
    if tokens is None:
        valid = "--tokens-per-block with it, since the server does not know this namespace"
        raise invalid("tokens", wanted.tokens_file or "", valid)
    return Chunks(tokens, blocks)


def read(wanted: Wanted, chunks: Chunks | None) -> list[bytes]:
    """The keys of each prefix.

    Args:
        wanted: as typed.
        chunks: how prompts are cut; needed for a file of tokens.

    Returns:
        For each prefix the keys of its chunks, 16 bytes each; those of less than a chunk are not
        there.

    Raises:
        ConfigError: INVALID_CONFIG: both tokens and keys, neither, or something that is none.
    """
    from server import prompts
    from server.sizes import invalid

    if wanted.keys and wanted.tokens_file is not None:
        raise invalid("tokens", wanted.tokens_file, "either --tokens or --key")
    if wanted.tokens_file is not None:
        assert chunks is not None
        path, salt = wanted.tokens_file, wanted.salt
        found = prompts.read_keys(path, chunks.tokens_per_block, chunks.chunk_blocks, salt)
        if not found:
            raise invalid("tokens", path, f"a prompt of {chunks.tokens} tokens, one chunk, or more")
        return found
    if not wanted.keys:
        raise _wanting("say which prompts are meant: --tokens FILE, or --key HEX")
    return [b"".join(map(_key, wanted.keys))]


def _key(text: str) -> bytes:
    from server.sizes import invalid

    try:
        if len(text) == FINGERPRINT_DIGITS:
            return bytes.fromhex(text)
    except ValueError:
        pass
    raise invalid("key", text, "the 32 hex digits of a chunk's key")
