"""Values that are encrypted, and authenticated together with what they are, by AES-256-GCM.

Purpose: who can read or write a tier learns no value and cannot have a wrong one taken for right.
Each value is encrypted under a key of its own, which follows from a key of the file and the value's
name, with 96 random bits as the nonce; its header's first 100 bytes are authenticated with it. Must
not know: tiers, where buffers come from. Runs in: the porter's worker threads; newer releases of
the library let the interpreter go meanwhile.

Where headers of version 1 have 40 zeros (``server.tiers.values``): ``id of the key 8, nonce 12, tag
16, zeros 4``.
"""

from __future__ import annotations

import os
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import GCM

from server.core.tiers.parts import Status
from server.tiers import values
from server.tiers.interface import Part
from server.tiers.keyfile import ID_BYTES, Key, Keys

NONCE_BYTES, TAG_BYTES = 12, 16
STEP_BYTES = 1 << 20
"""Encrypted at once: where the library keeps the interpreter, other threads get it in between."""

_MORE = struct.Struct(f"<{ID_BYTES}s{NONCE_BYTES}s{TAG_BYTES}s")
_TAG_AT = values.ZEROS_AT + ID_BYTES + NONCE_BYTES


def encrypt(part: Part, parent: bytes, key: Key, into: memoryview) -> None:
    """Encrypts a part that is about to be put, and writes its header.

    Args:
        part: its payload does not change meanwhile.
        parent: 16 bytes, the key of the chunk before; zeros for the first of a chain.
        key: that writes its namespace's values.
        into: takes the value, as long as the payload and apart from it.
    """
    nonce = os.urandom(NONCE_BYTES)
    # The tag is known last, and not part of what it authenticates.
    values.write(part, parent, values.ENCRYPTED, 0, _MORE.pack(key.id, nonce, bytes(TAG_BYTES)))
    cipher = Cipher(AES256(key.of_value(part.name)), GCM(nonce)).encryptor()
    cipher.authenticate_additional_data(bytes(part.header[:_TAG_AT]))
    for at in range(0, part.payload_bytes, STEP_BYTES):
        cipher.update_into(part.payload[at : at + STEP_BYTES], into[at : at + STEP_BYTES])
    cipher.finalize()
    values.write(part, parent, values.ENCRYPTED, 0, _MORE.pack(key.id, nonce, cipher.tag))


def decrypt(part: Part, parent: bytes, keys: Keys, data: memoryview) -> Status:
    """Decrypts what a tier filled in, and compares it with what was asked for.

    Args:
        part: its header was filled by the tier; its payload is what this writes, and may be
            anything unless the answer is OK.
        parent: 16 bytes, as for ``encrypt``.
        keys: that may have been used.
        data: what the tier has of the value, as long as the payload and apart from it.

    Returns:
        OK; LOCKED when the key is none of those for its namespace, or the value is not encrypted;
        ABSENT when it is a sound header of another version; else CORRUPT, also when it is a sound
        value of another name, parent or length.
    """
    told = values.read(part.header)
    if told is None:
        return Status.CORRUPT
    if told.version != values.ENCRYPTED:
        return Status.LOCKED if told.version == values.VERSION else Status.ABSENT
    asked = (part.name, parent, part.payload_bytes)
    if (told.name, told.parent, told.payload_bytes) != asked:
        return Status.CORRUPT
    key_id, nonce, tag = _MORE.unpack_from(part.header, values.ZEROS_AT)
    key = keys.reading(part.name.fingerprint, key_id)
    if key is None:
        return Status.LOCKED
    cipher = Cipher(AES256(key.of_value(part.name)), GCM(nonce, tag)).decryptor()
    cipher.authenticate_additional_data(bytes(part.header[:_TAG_AT]))
    for at in range(0, part.payload_bytes, STEP_BYTES):
        cipher.update_into(data[at : at + STEP_BYTES], part.payload[at : at + STEP_BYTES])
    try:
        cipher.finalize()
    except InvalidTag:
        return Status.CORRUPT
    return Status.OK
