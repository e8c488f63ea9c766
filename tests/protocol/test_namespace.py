"""Fingerprints: golden, by the documented formula, and different for each difference (B02)."""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import codec, limits
from protocol.errors import ErrorCode, RequestError
from protocol.namespace import LayerGroup, Namespace, fingerprint
from tests.protocol import strategies

BASE = Namespace(
    model_id="example/model@1",
    config_digest=b"\x11" * 32,
    weights_digest=b"\x22" * 32,
    host_version="1.0.0",
    kv_dtype="float32",
    attention_backend="TRTLLM",
    kv_layout="NHD",
    tokens_per_block=16,
    groups=(LayerGroup(layers=(0, 1), page_bytes=4096),),
)
RICH = Namespace(
    model_id="example/model@1",
    config_digest=b"",
    weights_digest=b"\x22" * 32,
    weights_epoch="2",
    host_version="1.0.0",
    kv_dtype="fp8",
    quantization="fp8",
    attention_backend="TRTLLM",
    kv_layout="HND",
    overrides={"rope": "yarn", "a": "b"},
    tokens_per_block=32,
    chunk_blocks=2,
    num_ranks=2,
    groups=(
        LayerGroup(layers=(0, 2), page_bytes=8192),
        LayerGroup(layers=(1,), page_bytes=4096, window_tokens=128, replicated=True),
    ),
)


def field(tag: int, value: bytes) -> bytes:
    return bytes([tag]) + struct.pack("<I", len(value)) + value


def by_formula(ns: Namespace) -> str:
    texts = ["kvkeep namespace 1", ns.model_id, ns.weights_epoch, ns.host_version, ns.kv_dtype]
    texts += [ns.quantization, ns.attention_backend, ns.kv_layout]
    blob = b"".join(field(0, text.encode()) for text in texts)
    blob += field(1, ns.config_digest) + field(1, ns.weights_digest)
    for name in sorted(ns.overrides, key=str.encode):
        blob += field(2, name.encode()) + field(2, ns.overrides[name].encode())
    for number in (1, ns.tokens_per_block, ns.chunk_blocks, ns.num_ranks, len(ns.groups)):
        blob += field(3, number.to_bytes(8, "little"))
    for group in ns.groups:
        head = (group.page_bytes, group.window_tokens, int(group.replicated))
        blob += field(4, b"".join(number.to_bytes(8, "little") for number in head))
        blob += field(5, b"".join(layer.to_bytes(4, "little") for layer in group.layers))
    return sha256(blob).hexdigest()[:32]


@pytest.mark.parametrize(
    ("namespace", "literal"),
    [(BASE, "4ba1e7535e50637dd92ad41a5a7333cf"), (RICH, "ea06d3e21919277e07663e5b92f50533")],
)
def test_fingerprints_are_golden(namespace: Namespace, literal: str) -> None:
    assert fingerprint(namespace).hex() == literal
    assert by_formula(namespace) == literal


def test_the_order_of_overrides_does_not_matter() -> None:
    turned = msgspec.structs.replace(RICH, overrides={"a": "b", "rope": "yarn"})
    assert fingerprint(turned) == fingerprint(RICH)


def test_neighbouring_fields_do_not_run_into_each_other() -> None:
    one = msgspec.structs.replace(BASE, overrides={"a": "bc"})
    other = msgspec.structs.replace(BASE, overrides={"ab": "c"})
    shifted = msgspec.structs.replace(BASE, config_digest=b"\x11" * 31)
    moved = msgspec.structs.replace(shifted, weights_digest=b"\x11" + b"\x22" * 32)
    assert len({fingerprint(ns) for ns in (BASE, one, other, shifted, moved)}) == 5


@pytest.mark.parametrize("name", [one.name for one in strategies.fields(Namespace)])
@given(data=st.data())
def test_every_field_takes_part(name: str, data: st.DataObject) -> None:
    kind = {one.name: one.type for one in strategies.fields(Namespace)}[name]
    drawn: Any = data.draw(strategies.from_type(kind))
    changed = msgspec.structs.replace(BASE, **{name: drawn})
    assert (fingerprint(changed) == fingerprint(BASE)) == (changed == BASE)


@pytest.mark.parametrize("name", [one.name for one in strategies.fields(LayerGroup)])
@given(data=st.data())
def test_every_field_of_a_group_takes_part(name: str, data: st.DataObject) -> None:
    kind = {one.name: one.type for one in strategies.fields(LayerGroup)}[name]
    group = msgspec.structs.replace(BASE.groups[0], **{name: data.draw(strategies.from_type(kind))})
    changed = msgspec.structs.replace(BASE, groups=(group,))
    assert (fingerprint(changed) == fingerprint(BASE)) == (changed == BASE)


@given(strategies.values(Namespace), strategies.values(Namespace))
def test_equal_namespaces_and_only_they_have_equal_fingerprints(
    one: Namespace, other: Namespace
) -> None:
    assert (fingerprint(one) == fingerprint(other)) == (one == other)
    assert fingerprint(one).hex() == by_formula(one)


@given(strategies.values(Namespace))
def test_shards_are_numbered_group_by_group(namespace: Namespace) -> None:
    seen = []
    for group, layers in enumerate(namespace.groups):
        ranks = [0] if layers.replicated else range(namespace.num_ranks)
        for rank in ranks:
            shard = namespace.shard(group, rank)
            seen.append(shard)
            assert namespace.group_of(shard) == group
            expected = namespace.chunk_blocks * layers.page_bytes
            assert namespace.slot_payload_bytes(shard) == expected
    assert seen == list(range(namespace.num_shards))
    assert namespace.num_readers == namespace.num_ranks


def test_a_replicated_group_is_one_shard_for_every_rank() -> None:
    assert RICH.num_shards == 3
    assert RICH.shards_of_rank(0) == (0, 2)
    assert RICH.shards_of_rank(1) == (1, 2)


@pytest.mark.parametrize(("group", "rank"), [(-1, 0), (2, 0), (0, 2), (0, -1)])
def test_shards_that_are_not_there(group: int, rank: int) -> None:
    with pytest.raises(RequestError) as caught:
        RICH.shard(group, rank)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize("shard", [-1, 3])
def test_groups_of_shards_that_are_not_there(shard: int) -> None:
    with pytest.raises(RequestError, match=r"0\.\.2"):
        RICH.group_of(shard)


def test_more_shards_than_a_message_can_name_are_refused() -> None:
    group = LayerGroup(layers=(0,), page_bytes=1)
    replace = {"num_ranks": limits.MAX_READERS, "groups": (group,) * 4}
    edge = msgspec.structs.replace(BASE, **replace)
    assert edge.num_shards == limits.MAX_SHARDS
    plain = msgspec.to_builtins(edge, builtin_types=(bytes,))
    plain["groups"] = [*plain["groups"], plain["groups"][0]]
    with pytest.raises(RequestError, match="1280 shards") as caught:
        codec.struct_from_plain(plain, Namespace)
    assert caught.value.code is ErrorCode.MALFORMED
