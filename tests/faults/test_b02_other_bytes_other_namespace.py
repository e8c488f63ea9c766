"""B02: whatever changes KV bytes under one model name is another namespace, and a miss."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol.errors import ErrorCode, ReplyError
from protocol.namespace import LayerGroup, Namespace, fingerprint
from tests.adapter.enginerig import EngineRig, write_model
from tests.adapter.hostlike import Args, tokens
from tests.faults.bystander import engaged, fill
from tests.wire.client import Engine, make_keys, make_namespace
from tests.wire.process import ServerProcess

FULL = 20
BASE = make_namespace(model="b02/model")
GROUP = BASE.groups[0]
CHANGED: dict[str, Any] = {
    "model_id": "b02/model2",
    "config_digest": b"d" * 32,
    "weights_digest": b"x" * 32,
    "weights_epoch": "2",
    "host_version": "1.1",
    "kv_dtype": "fp8",
    "quantization": "fp8",
    "attention_backend": "FLASHINFER",
    "kv_layout": "HND",
    "overrides": {"rope_scaling": "2"},
    "tokens_per_block": 64,
    "chunk_blocks": 2,
    "num_ranks": 2,
    "groups": (msgspec.structs.replace(GROUP, page_bytes=8192),),
}
GROUP_CHANGED: dict[str, Any] = {
    "layers": (0, 2),
    "page_bytes": 8192,
    "window_tokens": 4096,
    "replicated": True,
}


def test_every_field_is_tried() -> None:
    assert set(CHANGED) == {field.name for field in msgspec.structs.fields(Namespace)}
    assert set(GROUP_CHANGED) == {field.name for field in msgspec.structs.fields(LayerGroup)}


def variants() -> list[Namespace]:
    whole = [msgspec.structs.replace(BASE, **{name: value}) for name, value in CHANGED.items()]
    groups = [msgspec.structs.replace(GROUP, **{n: v}) for n, v in GROUP_CHANGED.items()]
    return [*whole, *(msgspec.structs.replace(BASE, groups=(group,)) for group in groups)]


def test_the_fingerprint_follows_every_field() -> None:
    prints = {fingerprint(namespace) for namespace in variants()}
    assert fingerprint(BASE) not in prints
    assert len(prints) == len(variants()) - 1  # page_bytes is tried twice


def test_b02_over_the_wire_no_variant_sees_another_ones_chunks(server: ServerProcess) -> None:
    keys = make_keys(2, 8)
    with engaged(server, BASE) as first:
        fill(first, 1)
        assert first.save(keys, list(range(8))) == 8
        for namespace in variants():
            if namespace.num_ranks > 1 or namespace.groups[0].window_tokens:
                continue  # one rank alone holds no complete chunk; windows have tests of their own
            with engaged(server, namespace) as other:
                assert other.lookup(keys).ready == 0, namespace
        assert first.lookup(keys).ready == 8


@pytest.mark.parametrize("what", ["weights", "config", "epoch", "backend", "model name"])
def test_an_engine_with_other_bytes_misses_and_an_equal_one_hits(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    prompt = tokens(22, seed=len(what))
    model = write_model(tmp_path / "m", weights=what.encode() + b"revision 1" * 100)
    rigs = [EngineRig(server.url, model).register()]
    assert rigs[0].run_saved(prompt).offered == 0
    args, other = Args(), model
    if what == "weights":
        write_model(model, weights=b"revision 2" * 100)
    elif what == "config":
        path = model / "config.json"
        path.write_text(path.read_text().replace("}", ', "rope_theta": 5000}'))
    elif what == "epoch":
        monkeypatch.setenv("TRTLLM_KVKEEP_WEIGHTS_EPOCH", "rev2")
    elif what == "backend":
        args = replace(args, attn_backend="FLASHINFER")
    else:
        other = write_model(tmp_path / "other", weights=what.encode() + b"revision 1" * 100)
    rigs.append(EngineRig(server.url, other, args=args).register())
    assert rigs[1].run_saved(prompt).offered == 0
    assert rigs[1].run(prompt).offered == FULL
    assert rigs[0].run(prompt).offered == FULL
    for rig in rigs:
        rig.close()


def test_equal_namespaces_need_equal_pages(server: ServerProcess) -> None:
    """The size check: a pool whose pages are not what the namespace says is refused by name."""
    with Engine(server.url, server.side_path, BASE) as engine:
        engine.page_bytes, engine.num_pages = 8192, 128
        with pytest.raises(ReplyError) as caught:
            engine.register()
    assert caught.value.code == ErrorCode.PAGE_SIZE_MISMATCH
    assert caught.value.detail == {"pool_page_bytes": 8192, "namespace_page_bytes": 16_384}
