"""Encrypted values: whoever can write a tier cannot have a wrong one taken for right."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.core.tiers.parts import Status
from server.tiers import encryption, values
from server.tiers.encryption import decrypt, encrypt
from server.tiers.interface import HEADER_BYTES, Name, Part
from server.tiers.keyfile import Key, Keys, read_keys
from tests.server.tiers.test_keyfile import FIRST, SECOND, written

PAYLOAD_BYTES = 1000
NAME = Name(bytes(range(16)), bytes(range(16, 32)), 3)
PARENT = bytes(range(32, 48))
OLD = Key("old", b"", bytes.fromhex(FIRST), b"old-----")
NEW = Key("new", b"", bytes.fromhex(SECOND), b"new-----")
KEYS = Keys([OLD, NEW])


def part(name: Name = NAME, payload_bytes: int = PAYLOAD_BYTES) -> Part:
    header, room = bytearray(HEADER_BYTES), bytearray(4096)
    room[:payload_bytes] = bytes(i % 251 for i in range(payload_bytes))
    return Part(name, memoryview(header), memoryview(room), payload_bytes, 0)


PLAIN = bytes(part().payload)


def encrypted(key: Key = NEW, payload_bytes: int = PAYLOAD_BYTES) -> tuple[bytes, bytes]:
    """Header and value as a tier has them."""
    one, data = part(payload_bytes=payload_bytes), bytearray(payload_bytes)
    before = bytes(one.room)
    encrypt(one, PARENT, key, memoryview(data))
    assert one.room == before, "engines read it meanwhile"
    return bytes(one.header), bytes(data)


HEADER, DATA = encrypted()


def opened(
    header: bytes = HEADER,
    data: bytes = DATA,
    name: Name = NAME,
    parent: bytes = PARENT,
    keys: Keys = KEYS,
) -> tuple[Status, bytes]:
    one = Part(name, memoryview(bytearray(header)), memoryview(bytearray(len(data))), len(data), 0)
    return decrypt(one, parent, keys, memoryview(data)), bytes(one.payload)


def resealed(header: bytes) -> bytes:
    """With the hash that makes it sound: who changes a header can write that, too."""
    return header[:120] + values.digest(header[:120]).to_bytes(8, "little")


def test_it_comes_back_bit_by_bit() -> None:
    assert opened() == (Status.OK, PLAIN)
    assert opened(*encrypted(OLD)) == (Status.OK, PLAIN), "older keys still read"
    assert opened(*encrypted(payload_bytes=0)) == (Status.OK, b"")


def test_in_steps_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "STEP_BYTES", 96)
    assert opened(*encrypted()) == (Status.OK, PLAIN)
    assert opened() == (Status.OK, PLAIN)


def test_neither_the_value_nor_a_hash_of_it_is_below() -> None:
    told = values.read(HEADER)
    assert told is not None
    assert told == (values.ENCRYPTED, NAME, PARENT, PAYLOAD_BYTES, 0)
    assert not any(PLAIN[at : at + 8] in DATA for at in range(0, PAYLOAD_BYTES, 8))
    assert values.digest(PLAIN).to_bytes(8, "little") not in HEADER


def test_no_nonce_comes_again() -> None:
    begin = values.ZEROS_AT + 8
    nonces = {encrypted()[0][begin : begin + 12] for _ in range(200)}
    assert len(nonces) == 200


@given(st.integers(0, HEADER_BYTES + PAYLOAD_BYTES - 1), st.integers(1, 255), st.booleans())
def test_any_changed_byte_is_noticed(at: int, change: int, is_resealed: bool) -> None:
    whole = bytearray(HEADER + DATA)
    whole[at] ^= change
    header, data = bytes(whole[:HEADER_BYTES]), bytes(whole[HEADER_BYTES:])
    if is_resealed and at < 120:
        header = resealed(header)
    status, _ = opened(header, data)
    if 116 <= at < 120 and is_resealed:
        assert status == Status.OK, "spare bytes that say nothing"
    else:
        assert status in (Status.CORRUPT, Status.LOCKED, Status.ABSENT)


@pytest.mark.parametrize(
    "name",
    [
        NAME._replace(fingerprint=bytes(16)),
        NAME._replace(key=bytes(16)),
        NAME._replace(shard=2),
    ],
)
def test_a_value_put_under_another_name_is_not_taken(name: Name) -> None:
    assert opened(name=name)[0] == Status.CORRUPT
    forged = part(name)
    more = HEADER[values.ZEROS_AT : 120]
    values.write(forged, PARENT, values.ENCRYPTED, 0, more)
    assert opened(bytes(forged.header), name=name)[0] == Status.CORRUPT


def test_nor_one_behind_another_chain_or_of_another_length() -> None:
    assert opened(parent=bytes(16))[0] == Status.CORRUPT
    forged = part()
    values.write(forged, bytes(16), values.ENCRYPTED, 0, HEADER[values.ZEROS_AT : 120])
    assert opened(bytes(forged.header), parent=bytes(16))[0] == Status.CORRUPT
    assert opened(data=DATA[:-1])[0] == Status.CORRUPT
    shorter = part(payload_bytes=PAYLOAD_BYTES - 1)
    values.write(shorter, PARENT, values.ENCRYPTED, 0, HEADER[values.ZEROS_AT : 120])
    assert opened(bytes(shorter.header), DATA[:-1])[0] == Status.CORRUPT


def test_two_values_do_not_make_a_third() -> None:
    header, data = encrypted()
    assert opened(header, DATA)[0] == opened(HEADER, data)[0] == Status.CORRUPT


def test_a_key_that_is_not_there_or_is_another_namespaces_or_another() -> None:
    assert opened(keys=Keys([OLD]))[0] == Status.LOCKED
    theirs = dataclasses.replace(NEW, space=bytes(16))
    assert opened(keys=Keys([theirs]))[0] == Status.LOCKED
    wrong = dataclasses.replace(NEW, secret=bytes(32))
    assert opened(keys=Keys([wrong]))[0] == Status.CORRUPT


def test_a_value_that_is_not_encrypted_is_not_taken() -> None:
    plain = part()
    values.seal(plain, PARENT)
    assert opened(bytes(plain.header), PLAIN)[0] == Status.LOCKED
    values.write(plain, PARENT, 3, 0, b"")
    assert opened(bytes(plain.header), PLAIN)[0] == Status.ABSENT
    assert opened(bytes(HEADER_BYTES))[0] == Status.CORRUPT


def test_who_has_no_keys_takes_no_encrypted_one(tmp_path: Path) -> None:
    key = read_keys(written(tmp_path, f"a = {FIRST}")).writing(NAME.fingerprint)
    assert key is not None
    header, data = encrypted(key)
    one = Part(NAME, memoryview(bytearray(header)), memoryview(bytearray(data)), len(data), 0)
    assert values.check(one, PARENT) == Status.LOCKED
    assert values.parent_of(header, NAME) == PARENT, "lists are made without keys"
