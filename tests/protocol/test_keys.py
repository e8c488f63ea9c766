"""Golden vectors, the documented formula, and what must never collide (B01, B03, P09)."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from protocol import keys
from protocol.errors import ErrorCode, RequestError
from protocol.ids import InstanceId
from protocol.keys import BlockHashChain, MediaItem, ReuseScope

INSTANCE = InstanceId(bytes(range(16)))


def field(tag: int, value: bytes) -> bytes:
    """The documented form, written a second time."""
    return bytes([tag]) + struct.pack("<I", len(value)) + value


def seed_by_formula(*fields: tuple[int, bytes]) -> bytes:
    parts = [field(0, b"kvkeep scope 1"), *(field(*one) for one in fields)]
    return sha256(b"".join(parts)).digest()


def keys_by_formula(
    seed: bytes, size: int, tokens: list[int], media: list[tuple[int, bytes]]
) -> list[bytes]:
    state, published = seed, []
    for first in range(0, len(tokens) - size + 1, size):
        text = b"".join(struct.pack("<i", token) for token in tokens[first : first + size])
        for at, digest in media:
            if first <= at < first + size:
                text += field(16, struct.pack("<I", at - first) + digest)
        state = sha256(state + text).digest()
        published.append(state[:16])
    return published


def chain(
    scope: ReuseScope, size: int, tokens: Any, media: list[MediaItem] | None = None
) -> list[str]:
    one = BlockHashChain.start(scope, size)
    one.extend(tokens, media or [])
    return [one.key(block).hex() for block in range(one.num_blocks)]


SEEDS = [
    (ReuseScope(), [], "3843416db55cb42494d48a6e7bc5782a9f8cd4b3e906685423d2d06f9c092642"),
    (
        ReuseScope(cache_salt="tenant"),
        [(1, b"tenant")],
        "9117f3abdf80220950da11991999e9fe6af9ef610d7bf0f3fe0c9add4f701aec",
    ),
    (
        ReuseScope(cache_salt=""),
        [(1, b"")],
        "387956a9142a51c48067d73299d7f41e1d0bdf92082225ae4899eb1e2891a0ad",
    ),
    (
        ReuseScope(cache_salt="7"),
        [(1, b"7")],
        "f801f9fed7a9bc2aa70c7e8a1e007983e5b40ad6fb23deb50a690b5dc0001bd9",
    ),
    (
        ReuseScope(cache_salt=7),
        [(2, b"7")],
        "628ad7905a3681e4b33b6497708c537e5dde2893b28e0d5a083a66a10969693f",
    ),
    (
        ReuseScope(cache_salt="a", lora_digest=b"bc"),
        [(1, b"a"), (3, b"bc")],
        "2eb938d8dceb1046c501c0fad8fb546cbaa0e21ffd5980eae242b633edabd960",
    ),
    (
        ReuseScope(lora_digest=bytes(range(32))),
        [(3, bytes(range(32)))],
        "c57ea1c081f81c5b629c87f1ad5c3fb71b5895e05497bf9fe4b51a58c6f9c408",
    ),
    (
        ReuseScope(lora_local_id=3, instance=INSTANCE),
        [(4, b"3"), (5, INSTANCE)],
        "56fef0741569e42843e462421451774aef3de85ae064cd11f053b243ca2bf227",
    ),
    (
        ReuseScope(instance=INSTANCE),
        [(5, INSTANCE)],
        "5efdc68a553a3026d761f2fc655d4bc735c952ea95aba93c3c7e35ebfab51183",
    ),
]

MEDIA = [(0, b"\xaa" * 32), (15, b"\xbb" * 32), (16, b"\xcc" * 32)]
CHAINS: list[tuple[ReuseScope, int, list[int], list[tuple[int, bytes]], list[str]]] = [
    (
        ReuseScope(),
        16,
        list(range(40)),
        [],
        ["c568aa369d74f8a39cae3c3f0fc50663", "2d4d0c33084dc6041aa1f65dd4ea3e02"],
    ),
    (
        ReuseScope(),
        32,
        list(range(70)),
        [],
        ["9cebabee248875707a5cab55391c3b6c", "e66d2ad0d66ee632db29a6f8e9885bff"],
    ),
    (
        ReuseScope(),
        16,
        [-1, -(2**31), 2**31 - 1] + [0] * 13,
        [],
        ["1bbdb4021e68ac8727214df8d53c1e37"],
    ),
    (
        ReuseScope(cache_salt="tenant"),
        16,
        list(range(40)),
        [],
        ["48edf8ef7dac8fe06496906a606677bd", "4967dffeff1724cae6ca950a1f113d8c"],
    ),
    (
        ReuseScope(),
        16,
        list(range(48)),
        MEDIA,
        [
            "bc268338a39d31d1356e7fa975ef08e2",
            "9de05afed83e00986c5a2ad12aacf1f6",
            "e785ceae4c9b22f6900f7dd09cd06004",
        ],
    ),
]


@pytest.mark.parametrize(("scope", "fields", "literal"), SEEDS)
def test_seeds_are_golden(scope: ReuseScope, fields: list[tuple[int, bytes]], literal: str) -> None:
    assert scope.seed().hex() == literal
    assert seed_by_formula(*fields).hex() == literal


@pytest.mark.parametrize(("scope", "size", "tokens", "media", "literal"), CHAINS)
def test_chains_are_golden(
    scope: ReuseScope,
    size: int,
    tokens: list[int],
    media: list[tuple[int, bytes]],
    literal: list[str],
) -> None:
    assert chain(scope, size, tokens, [MediaItem(*one) for one in media]) == literal
    formula = keys_by_formula(scope.seed(), size, tokens, media)
    assert [key.hex() for key in formula] == literal


def test_processes_with_other_hash_seeds_derive_the_same_keys(root: Path) -> None:
    """B03: the random seed of a process takes no part."""
    program = (
        "from protocol.keys import BlockHashChain, ReuseScope\n"
        "one = BlockHashChain.start(ReuseScope(cache_salt='tenant'), 16)\n"
        "one.extend(list(range(40)))\n"
        "print(hash('tenant'), one.key_blob(0, 2).hex())\n"
    )
    own_hashes = set()
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        own_hash, blob = done.stdout.split()
        own_hashes.add(own_hash)
        assert blob == "".join(CHAINS[3][4])
    assert len(own_hashes) == 2, "the two processes did not differ in their hash seed"


def test_lora_adapters_salts_and_engines_are_apart() -> None:
    """B01 and P09, by example."""
    scopes = [scope for scope, _, _ in SEEDS]
    scopes += [
        ReuseScope(cache_salt="ab", lora_digest=b"c"),
        ReuseScope(cache_salt="abc"),
        ReuseScope(lora_digest=b"abc"),
        ReuseScope(lora_digest=b""),
        ReuseScope(lora_local_id=4, instance=INSTANCE),
        ReuseScope(lora_local_id=3, instance=InstanceId(bytes(16))),
        ReuseScope(cache_salt=-7),
    ]
    assert len({scope.seed() for scope in scopes}) == len(scopes)


salts = st.none() | st.text(max_size=4) | st.integers(-3, 3)
digests = st.none() | st.binary(max_size=4)
instances = st.sampled_from((INSTANCE, InstanceId(bytes(16))))
scopes = st.builds(ReuseScope, salts, digests, st.none(), st.none() | instances) | st.builds(
    ReuseScope, salts, digests, st.integers(0, 3), instances
)


@given(scopes, scopes)
def test_distinct_scopes_have_distinct_seeds(one: ReuseScope, other: ReuseScope) -> None:
    assert (one.seed() == other.seed()) == (one == other)


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=6)), max_size=5))
def test_tagged_fields_have_one_reading(written: list[tuple[int, bytes]]) -> None:
    blob = b"".join(keys.tagged(tag, value) for tag, value in written)
    read, at = [], 0
    while at < len(blob):
        length = int.from_bytes(blob[at + 1 : at + 5], "little")
        read.append((blob[at], blob[at + 5 : at + 5 + length]))
        at += 5 + length
    assert read == written


tokens = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=40)


@given(tokens, st.integers(1, 7), st.lists(st.integers(0, 40), max_size=4), st.data())
def test_any_split_gives_the_chain_of_one_go(
    prompt: list[int], size: int, cuts: list[int], data: st.DataObject
) -> None:
    places = data.draw(st.lists(st.integers(0, 39), max_size=3))
    media = [MediaItem(at, bytes([at])) for at in sorted(places)]
    whole, parts = (BlockHashChain.start(ReuseScope(), size) for _ in range(2))
    assert whole.extend(prompt, media) == len(prompt) // size
    for cut in [*sorted(cuts), len(prompt)]:
        assert parts.extend(prompt[:cut], media) == min(cut, len(prompt)) // size
    assert (parts.keys, parts.state) == (whole.keys, whole.state)
    formula = keys_by_formula(
        ReuseScope().seed(), size, prompt, [(item.first_token, item.digest) for item in media]
    )
    assert whole.key_blob(0, whole.num_blocks) == b"".join(formula)


@given(tokens, st.integers(1, 7))
def test_lists_and_arrays_hash_alike(prompt: list[int], size: int) -> None:
    expected = chain(ReuseScope(), size, prompt)
    array = np.array(prompt, dtype=np.int64)
    assert chain(ReuseScope(), size, array.astype("<i4")) == expected
    assert chain(ReuseScope(), size, array.astype(">i4")) == expected
    assert chain(ReuseScope(), size, array) == expected
    assert chain(ReuseScope(), size, np.repeat(array.astype("<i4"), 2)[::2]) == expected
    assert chain(ReuseScope(), size, tuple(prompt)) == expected


@given(tokens, tokens, st.integers(1, 5))
def test_keys_agree_exactly_as_far_as_the_tokens_do(
    one: list[int], other: list[int], size: int
) -> None:
    assume(len(one) >= size and len(other) >= size)
    blocks = min(len(one), len(other)) // size
    shared = 0
    while shared < blocks and (
        one[shared * size : (shared + 1) * size] == other[shared * size : (shared + 1) * size]
    ):
        shared += 1
    pairs = list(
        zip(chain(ReuseScope(), size, one), chain(ReuseScope(), size, other), strict=False)
    )
    assert [first == second for first, second in pairs] == [n < shared for n in range(len(pairs))]


def test_media_change_the_keys_from_their_first_block_on() -> None:
    plain = chain(ReuseScope(), 16, list(range(64)))
    media = chain(ReuseScope(), 16, list(range(64)), [MediaItem(17, b"d")])
    moved = chain(ReuseScope(), 16, list(range(64)), [MediaItem(18, b"d")])
    assert media[0] == plain[0] == moved[0]
    assert len({tuple(k[1:]) for k in (plain, media, moved)}) == 3
    assert not set(plain[1:]) & set(media[1:])


@pytest.mark.parametrize("bad", [2**31, -(2**31) - 1, 2**70, 1.5, "7", None, b"7"])
def test_tokens_must_be_int32(bad: Any) -> None:
    one = BlockHashChain.start(ReuseScope(), 2)
    with pytest.raises(RequestError, match="int32") as caught:
        one.extend([1, 2, 3, bad])
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT
    assert one.num_blocks == 0


def test_what_has_no_clear_bytes_is_refused() -> None:
    with pytest.raises(RequestError, match="instance"):
        ReuseScope(lora_local_id=1)
    with pytest.raises(RequestError, match="text or an integer"):
        ReuseScope(cache_salt=1.5)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="one token"):
        BlockHashChain.start(ReuseScope(), 0)
    with pytest.raises(RequestError, match="cannot begin"):
        BlockHashChain.start(ReuseScope(), 2).extend([1, 2], [MediaItem(-1, b"x")])


def test_a_lone_surrogate_in_a_salt_is_a_salt_like_any_other() -> None:
    seeds = {ReuseScope(cache_salt=salt).seed() for salt in ("\ud800", "\udfff", "?", "")}
    assert len(seeds) == 4


def test_a_chunk_is_called_by_its_last_block() -> None:
    blocks = [bytes([n]) * 16 for n in range(7)]
    blob = b"".join(blocks)
    assert keys.chunk_key_blob(blob, 1) == blob
    assert keys.chunk_key_blob(blob, 2) == blocks[1] + blocks[3] + blocks[5]
    assert keys.chunk_key_blob(blob, 7) == blocks[6]
    assert keys.chunk_key_blob(blob, 8) == b""


@given(st.integers(0, 30), st.integers(1, 8))
def test_chunk_keys_leave_out_the_rest(num_blocks: int, chunk_blocks: int) -> None:
    blob = bytes(range(num_blocks)) * 16
    blob = b"".join(bytes([n]) * 16 for n in range(num_blocks))
    chunks = keys.chunk_key_blob(blob, chunk_blocks)
    assert len(chunks) == num_blocks // chunk_blocks * 16
    firsts = [chunks[at] for at in range(0, len(chunks), 16)]
    assert firsts == list(range(chunk_blocks - 1, num_blocks, chunk_blocks))


def test_one_key_by_its_ordinal() -> None:
    one = BlockHashChain.start(ReuseScope(), 16)
    one.extend(list(range(40)))
    assert one.key(1).hex() == CHAINS[0][4][1]
    assert one.key_blob(1, 2) == one.key(1)
    assert one.key_blob(0, 9).hex() == "".join(CHAINS[0][4])
