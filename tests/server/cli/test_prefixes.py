"""Namespaces and prefixes as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from protocol.status import NamespaceStatus
from server.cli.prefixes import Chunks, Wanted, chunks_of, find, read, resolve
from tests.server.cli.cached import FIRST, SECOND, keys_of


def space(digits: str, name: str, chunk_tokens: int = 32, chunk_blocks: int = 1) -> NamespaceStatus:
    return NamespaceStatus(
        fingerprint=bytes.fromhex(digits.ljust(32, "0")),
        name=name,
        ranks=1,
        shards=1,
        chunk_tokens=chunk_tokens,
        chunk_blocks=chunk_blocks,
        sessions=0,
        chunks=1,
        bytes=1,
        pinned_chunks=0,
        idle_s=0.0,
    )


KNOWN = [space("abcd01", "m/a"), space("abcd02", "m/b"), space("ffff", "m/b"), space("0a", "cafe")]


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("abcd01", 0),
        ("ABCD02", 1),
        ("ffff", 2),
        ("m/a", 0),
        ("ffff".ljust(32, "0"), 2),
        ("cafe", 3),
    ],
)
def test_a_namespace_is_found_by_its_digits_or_its_model(name: str, at: int) -> None:
    assert find(KNOWN, name) is KNOWN[at]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("abcd", "exactly one: abcd01"),
        ("m/b", "exactly one: abcd02"),
        ("abc", "one that is there"),  # too short for digits
        ("m/c", "one that is there"),
        ("a" * 33, "one that is there"),
        ("", "one that is there"),
        (None, "say which namespace is meant, --namespace NAME; there are 4: abcd01"),
    ],
)
def test_what_is_not_one_is_refused_with_those_there_are(name: str | None, said: str) -> None:
    with pytest.raises(ConfigError, match="namespace") as caught:
        find(KNOWN, name)
    assert said in caught.value.message


def test_the_only_one_needs_no_name_and_a_whole_fingerprint_no_namespace() -> None:
    assert find(KNOWN[:1], None) is KNOWN[0]
    assert find(KNOWN, "1" * 32) is None
    with pytest.raises(ConfigError, match="there is none"):
        find([], "x")


def test_the_server_says_how_prompts_are_cut_unless_it_is_typed() -> None:
    wide = space("ab", "m", 128, 4)
    assert chunks_of(Wanted("f"), wide) == Chunks(32, 4)
    assert chunks_of(Wanted("f", tokens_per_block=16), wide) == Chunks(16, 4)
    assert chunks_of(Wanted("f", chunk_blocks=2), wide) == Chunks(32, 2)
    assert chunks_of(Wanted("f", tokens_per_block=16), None) == Chunks(16, 1)
    with pytest.raises(ConfigError, match="--tokens-per-block with it"):
        chunks_of(Wanted("f"), None)


def test_prompts_and_keys_are_read(tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in (FIRST, SECOND)))
    both = [b"".join(keys_of(FIRST)), b"".join(keys_of(SECOND))]
    assert read(Wanted(str(path)), Chunks(32, 1)) == both
    [first, _] = read(Wanted(str(path)), Chunks(32, 2))
    assert first == b"".join(keys_of(FIRST)[1:4:2])
    salted = read(Wanted(str(path), salt="x"), Chunks(32, 1))
    assert salted[0] == b"".join(keys_of(FIRST, "x"))
    keys = tuple(key.hex() for key in keys_of(SECOND))
    assert read(Wanted(keys=keys), None) == both[1:]
    found = resolve(KNOWN, "m/a", Wanted(str(path)))
    assert (found.fingerprint, found.prefixes) == (KNOWN[0].fingerprint, both)
    assert found.chunk_tokens == 32
    assert resolve(KNOWN, "1" * 32, Wanted(keys=keys)).chunk_tokens == 0


def test_what_names_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_text("[1, 2, 3]\n")
    with pytest.raises(ConfigError, match="a prompt of 32 tokens, one chunk, or more"):
        read(Wanted(str(path)), Chunks(32, 1))
    with pytest.raises(ConfigError, match="either --tokens or --key"):
        read(Wanted(str(path), ("00" * 16,)), Chunks(32, 1))
    with pytest.raises(ConfigError, match="--tokens FILE, or --key HEX"):
        read(Wanted(), None)
    for text in ("", "0" * 31, "g" * 32):
        with pytest.raises(ConfigError, match="32 hex digits"):
            read(Wanted(keys=(text,)), None)
