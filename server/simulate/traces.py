"""Trace files as prompts: Mooncake's lines and sessions of coding agents.

Purpose: read them, merge them by time, and give every block the number of its whole prefix, so
that equal numbers mean equal KV. Whatever is wrong is one line that names file and place. Must not
know: caches. Runs in: the process of the command line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocol.errors import ConfigError, ErrorCode

MOONCAKE_BLOCK_TOKENS = 512
"""What a hash id stands for in Mooncake's published traces; their lines do not say."""

MAX_TOKENS = 1 << 24
"""More in one prompt is a mistake in the file."""

_MAX_NUMBER = 10**15

_LEADING_BLOCKS = 2
"""Blocks by which prompts of a trace without sessions are told apart: the first is often a system
prompt that all share."""


def wrong(message: str) -> ConfigError:
    """The error for a trace that cannot be used: names file and place."""
    return ConfigError(ErrorCode.INVALID_CONFIG, message)


@dataclass(frozen=True)
class Prompt:
    """One request.

    Attributes:
        at_s: arrival, seconds from the start.
        session: number of the conversation it belongs to.
        tokens: length of the prompt.
        blocks: for each block the number of the prefix that ends with it; the last block may be
            partly filled.
    """

    at_s: float
    session: int
    tokens: int
    blocks: tuple[int, ...]


@dataclass
class Trace:
    """All prompts, in order of arrival.

    Attributes:
        block_tokens: tokens a block.
        prompts: by time; of one moment, in the order of the files.
        num_blocks: distinct blocks; their numbers are 0 and up.
        num_sessions: distinct sessions, likewise.
        num_files: how many files were read.
    """

    block_tokens: int
    prompts: list[Prompt]
    num_blocks: int
    num_sessions: int
    num_files: int

    @property
    def seconds(self) -> float:
        """From the first arrival to the last."""
        return self.prompts[-1].at_s - self.prompts[0].at_s


@dataclass
class _Reading:
    """What was read so far."""

    given_tokens: int | None
    block_tokens: int = 0
    first_file: Path = field(default_factory=Path)
    prompts: list[Prompt] = field(default_factory=list)
    blocks: dict[tuple[int, int, int], int] = field(default_factory=dict)
    sessions: dict[tuple[int, ...], int] = field(default_factory=dict)

    def settle(self, path: Path, block_tokens: int) -> None:
        """Notes how many tokens a block of a file has."""
        if self.given_tokens not in (None, block_tokens):
            raise wrong(
                f"{path}: its blocks have {block_tokens} tokens, "
                f"and --block-tokens says {self.given_tokens}"
            )
        if self.block_tokens not in (0, block_tokens):
            raise wrong(
                f"{path}: its blocks have {block_tokens} tokens, those of {self.first_file} "
                f"have {self.block_tokens}; replay one kind at a time"
            )
        if not self.block_tokens:
            self.block_tokens, self.first_file = block_tokens, path

    def add(
        self, scope: int, session: tuple[int, ...], at_s: float, tokens: int, ids: list[int]
    ) -> None:
        """Takes one request; ``scope`` is the file in which its ids have meaning."""
        numbers, parent, blocks = self.blocks, -1, []
        for one in ids:
            # An id alone would do if every trace kept its word; a prefix is what a server hashes.
            parent = numbers.setdefault((scope, parent, one), len(numbers))
            blocks.append(parent)
        number = self.sessions.setdefault(session, len(self.sessions))
        self.prompts.append(Prompt(at_s, number, tokens, tuple(blocks)))


def read(paths: Sequence[Path], block_tokens: int | None = None) -> Trace:
    """Reads traces.

    Args:
        paths: files, or folders of them.
        block_tokens: tokens a hash id stands for; for Mooncake's files 512 unless given.

    Returns:
        All of them, merged by time.

    Raises:
        ConfigError: one line with the file, and the line or request in it.
    """
    reading, files = _Reading(block_tokens), _files(paths)
    for scope, path in enumerate(files):
        if path.suffix == ".jsonl":
            _read_mooncake(path, scope, reading)
        else:
            _read_session(path, scope, reading)
    if not reading.prompts:
        raise wrong(f"{files[0]}: no request in it")
    prompts = sorted(reading.prompts, key=lambda prompt: prompt.at_s)
    return Trace(
        reading.block_tokens, prompts, len(reading.blocks), len(reading.sessions), len(files)
    )


def _files(paths: Sequence[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.suffix in (".json", ".jsonl"))
            if not inside:
                raise wrong(f"{path}: no .jsonl or .json file in this folder")
            files += inside
        elif not path.exists():
            raise wrong(f"{path}: no such file")
        elif path.suffix not in (".json", ".jsonl"):
            raise wrong(f"{path}: neither .jsonl (Mooncake) nor .json (a session)")
        else:
            files.append(path)
    return files


# --- Mooncake: one request a line -----------------------------------------------------------------


def _read_mooncake(path: Path, scope: int, reading: _Reading) -> None:
    block_tokens = reading.given_tokens or MOONCAKE_BLOCK_TOKENS
    reading.settle(path, block_tokens)
    for number, line in _lines(path):
        place = f"{path}:{number}"
        row = _object(line, place)
        at_s = _number(row, "timestamp", place) / 1000
        tokens = _tokens(row, "input_length", place)
        ids = _ids(row, place)
        if len(ids) != -(-tokens // block_tokens):
            raise wrong(
                f"{place}: {len(ids)} hash_ids for {tokens} tokens; blocks of "
                f"{block_tokens} tokens make {-(-tokens // block_tokens)}"
            )
        reading.add(scope, (scope, *ids[:_LEADING_BLOCKS]), at_s, tokens, ids)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    text = line.decode().strip()
                except UnicodeDecodeError:
                    raise wrong(f"{path}:{number}: not UTF-8") from None
                if text:
                    yield number, text
    except OSError as error:
        raise wrong(f"{path}: {error.strerror}") from None


# --- sessions of coding agents: one file each -----------------------------------------------------


def _read_session(path: Path, scope: int, reading: _Reading) -> None:
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise wrong(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise wrong(f"{path}: not UTF-8") from None
    whole = _object(text, str(path))
    block_tokens = _tokens(whole, "block_size", str(path))
    reading.settle(path, block_tokens)
    requests = whole.get("requests")
    if not isinstance(requests, list):
        raise wrong(f"{path}: 'requests' is no list")
    for number, row in enumerate(requests, 1):
        place = f"{path}: request {number}"
        if not isinstance(row, dict):
            raise wrong(f"{place}: no JSON object")
        at_s, tokens, ids = _number(row, "t", place), _tokens(row, "in", place), _ids(row, place)
        if len(ids) != tokens // block_tokens:
            raise wrong(
                f"{place}: {len(ids)} hash_ids for {tokens} tokens; full blocks of "
                f"{block_tokens} tokens make {tokens // block_tokens}"
            )
        reading.add(scope, (scope,), at_s, tokens, ids)


# --- values ---------------------------------------------------------------------------------------


def _object(text: str, place: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} " if error.lineno > 1 else ""
        raise wrong(f"{place}: {where}column {error.colno}: {error.msg}") from None
    except (RecursionError, ValueError):
        raise wrong(f"{place}: JSON that is too deep or holds too long a number") from None
    if not isinstance(value, dict):
        raise wrong(f"{place}: no JSON object")
    return value


def _number(row: dict[str, Any], key: str, place: str) -> float:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(f"{place}: '{key}' is no number")
    if not 0 <= value <= _MAX_NUMBER:  # NaN and infinity are neither
        raise wrong(f"{place}: '{key}' is {str(value)[:40]}; valid: 0 to {_MAX_NUMBER}")
    return float(value)


def _tokens(row: dict[str, Any], key: str, place: str) -> int:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(f"{place}: '{key}' is no whole number")
    if not 1 <= value <= MAX_TOKENS:
        raise wrong(f"{place}: '{key}' is {str(value)[:40]}; valid: 1 to {MAX_TOKENS}")
    return value


def _ids(row: dict[str, Any], place: str) -> list[int]:
    ids = row.get("hash_ids")
    if not isinstance(ids, list) or any(type(one) is not int for one in ids):
        raise wrong(f"{place}: 'hash_ids' is no list of whole numbers")
    return ids
