"""Engines that cannot be cached: each says so in one line, and serves as if there were no cache.

By the names in ``adapter.conformance.coverage.refused``, which docs/trtllm.md lists.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adapter.conformance.coverage.refused import REFUSED, Case
from tests.adapter.enginerig import PAGE_SHAPE, EngineRig, launched, write_model
from tests.adapter.hostlike import tokens
from tests.adapter.test_identity import CONFIG, FakeTensor
from tests.adapter.test_layouts import Layout, make
from tests.wire.process import ServerProcess

PREFIX = "kvkeep: this engine runs uncached: "
RANK = "TRTLLM_CONFORMANCE_RANK"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with launched() as process:
        yield process


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Whatever any part of kvkeep warned of."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.split(".")[0] == "kvkeep" and record.levelno >= logging.WARNING
    ]


def argument(**changes: Any) -> Callable[[EngineRig], None]:
    def change(rig: EngineRig) -> None:
        for name, value in changes.items():
            setattr(rig.args, name, value)

    return change


def cache_argument(**changes: Any) -> Callable[[EngineRig], None]:
    def change(rig: EngineRig) -> None:
        rig.args.kv_cache_config = dataclasses.replace(rig.args.kv_cache_config, **changes)

    return change


def pool_of(array: Callable[[EngineRig], Any], **more: Any) -> Callable[[EngineRig], None]:
    def change(rig: EngineRig) -> None:
        rig.tensor = FakeTensor(array(rig), **more)

    return change


def of_bytes(rig: EngineRig) -> Any:
    # 128 bytes where 4 tokens of 16 elements are configured: two values in each.
    return rig.pool.view.view(np.int8).reshape(-1, *PAGE_SHAPE[:2], 128)


def one_layer(rig: EngineRig) -> Any:
    return rig.pool.view.view(np.float32).reshape(-1, 1, 2, 64)


def odd_rows(rig: EngineRig) -> Any:
    return rig.pool.view.view(np.float32).reshape(-1, *PAGE_SHAPE[:2], 2)


def files(change: Callable[[Path], Any]) -> Callable[[EngineRig], None]:
    return lambda rig: change(Path(rig.args.model))


def layout(spoil: Callable[[Layout], None]) -> Callable[[EngineRig], None]:
    def change(rig: EngineRig) -> None:
        made = make(rig.pool.address)
        spoil(made)
        take = rig.worker.register_kv_cache_layout
        setattr(rig.worker, "register_kv_caches", lambda _: take(made))  # noqa: B010 - an object's

    return change


def shared_layers(made: Layout) -> None:
    made.groups[0].layer_ids = [0, 1]


def unlike_blocks(made: Layout) -> None:
    made.groups[0].tokens_per_block = 8


def overlapping_regions(made: Layout) -> None:
    keys, values = made.groups[1].regions
    values.base, values.stride = keys.base + 16, keys.stride


def odd_layout(made: Layout) -> None:
    made.groups[0].window_size = 0.5


def both_seen(made: Layout) -> None:
    """All layers of the model are there, without a word of scales."""


def four_bits(rig: EngineRig) -> None:
    cache_argument(dtype="nvfp4")(rig)
    layout(both_seen)(rig)


def overlapping_parts(made: Layout) -> None:
    made.groups[1].regions[0].size = made.groups[1].regions[0].stride + 16


BUILT: dict[str, Callable[[EngineRig], None]] = {
    "reuse_off": cache_argument(enable_block_reuse=False),
    "nvfp4": cache_argument(dtype="nvfp4"),
    "packed_values": pool_of(of_bytes),
    "several_pools": pool_of(one_layer),
    "odd_pages": pool_of(odd_rows),
    "out_of_reach": pool_of(lambda rig: rig.tensor.array.copy(), device="cuda"),
    "shared_layers": layout(shared_layers),
    "unlike_blocks": layout(unlike_blocks),
    "overlapping_parts": layout(overlapping_parts),
    "overlapping_regions": layout(overlapping_regions),
    "odd_layout": layout(odd_layout),
    "nvfp4_unseen": four_bits,
    "host_tier": cache_argument(host_cache_size=1 << 30),
    "disk_tier": cache_argument(disk_cache_size=1 << 30),
    "short_window": cache_argument(max_attention_window=[8]),
    "draft_model": argument(speculative_config=SimpleNamespace(decoding_type="DraftTarget")),
    "pipeline": argument(pipeline_parallel_size=2),
    "context_parallel": argument(context_parallel_size=2),
    "beams": argument(max_beam_width=4),
    "other_nodes": argument(tensor_parallel_size=8, gpus_per_node=4),
    "odd_rank": argument(),
    "recurrent_layers": files(
        lambda model: (model / "config.json").write_text(
            json.dumps({**CONFIG, "layer_types": ["attention", "mamba"]})
        )
    ),
    "unknown_weights": files(lambda model: (model / "model.safetensors").unlink()),
}
"""What makes each case of an engine that could be cached."""


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_refused(
    case: Case,
    server: ServerProcess,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if case.name == "odd_rank":
        monkeypatch.setenv(RANK, "2")
    rig = EngineRig(server.url, write_model(tmp_path / "model"))
    try:
        BUILT[case.name](rig)
        with caplog.at_level(logging.INFO):
            rig.register()
            for seed in (1, 1, 2):  # the second of them could have hit
                outcome = rig.run(tokens(22, seed))
                assert (outcome.offered, outcome.kept) == (0, False)
        (said,) = warnings_of(caplog)
        assert said.startswith(PREFIX + case.line)
        assert "\n" not in said
        assert rig.worker.link is None
    finally:
        rig.close()


def test_the_same_engine_unchanged_is_cached(
    server: ServerProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the cases would say nothing of what they change."""
    rig = EngineRig(server.url, write_model(tmp_path / "model"))
    try:
        rig.register()
        rig.run_saved(tokens(22))
        assert any(rig.run(tokens(22)).offered == 20 for _ in range(20))
        assert warnings_of(caplog) == []
    finally:
        rig.close()


def test_every_case_is_built() -> None:
    assert list(BUILT) == [case.name for case in REFUSED]


@pytest.mark.torch
@pytest.mark.parametrize("name", ["reuse_off", "recurrent_layers"])
def test_the_host_serves_on(
    name: str, server: ServerProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Cases that a host's own checks let through, with a model: equal logits."""
    pytest.importorskip("torch")
    from adapter.conformance.host.engine import HostEngine
    from adapter.conformance.host.weights import TINY, write_model_dir
    from tests.e2e.torchhost import BLOCK, engine, llm_args, prompt, same

    model = write_model_dir(tmp_path / "model", TINY)
    text = prompt(3 * BLOCK + 1)
    with engine(model, None) as host:
        expected = host.submit(text, 4).result(60)
    args = llm_args(model, server.url)
    if name == "reuse_off":
        cache = dataclasses.replace(args.kv_cache_config, enable_block_reuse=False)
        args = dataclasses.replace(args, kv_cache_config=cache)
    else:
        path = model / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"layer_types": ["mamba"]}))
    case = next(case for case in REFUSED if case.name == name)
    with HostEngine(args, 64) as host:
        for _ in range(2):
            result = host.submit(text, 4).result(60)
            assert same(result, expected)
            assert result.num_loaded_tokens == 0
            host.forget_reuse(60)
        host.connector.worker.shutdown()
    (said,) = warnings_of(caplog)
    assert said.startswith(PREFIX + case.line)
