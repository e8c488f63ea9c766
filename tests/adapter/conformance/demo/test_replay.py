from typing import Any

import pytest

pytest.importorskip("torch")

from adapter.conformance.demo.expected import trace_blocks
from adapter.conformance.demo.replay import replay
from adapter.conformance.demo.trace import BLOCK_TOKENS, VOCAB_SIZE, read_trace
from adapter.conformance.host.engine import HostEngine
from adapter.conformance.host.errors import HostError
from adapter.conformance.host.llm_args import KvCacheConnectorConfig, LlmArgs
from adapter.conformance.host.payload import PayloadModel
from tests.adapter.conformance.host import connectors

pytestmark = pytest.mark.torch
NUM_REQUESTS = 30


def engine(url: str | None) -> tuple[HostEngine, PayloadModel]:
    payload = PayloadModel(BLOCK_TOKENS, vocab_size=VOCAB_SIZE)
    config: KvCacheConnectorConfig | None = None
    if url is not None:
        config = connectors.connector_config("Dict", url)
    args = LlmArgs(
        model="trace",
        kv_cache_config=connectors.cache_config(BLOCK_TOKENS, enable_partial_reuse=False),
        kv_connector_config=config,
        max_num_tokens=64 * BLOCK_TOKENS,
    )
    return HostEngine(args, 300, model=payload), payload


def run(host: HostEngine, payload: PayloadModel, number: int, said: list[int]) -> dict[str, Any]:
    return replay(host, payload, number, settle=lambda: host.forget_reuse(30), report=said.append)


def test_without_a_connector_nothing_hits() -> None:
    host, payload = engine(None)
    with host:
        counted = run(host, payload, NUM_REQUESTS, [])
    records = [(r.num_tokens, r.block_ids) for r in read_trace(NUM_REQUESTS)]
    assert counted["full_blocks"] == trace_blocks(records, BLOCK_TOKENS)[1]
    assert counted["hit_blocks"] == counted["device_blocks"] == counted["verified_blocks"] == 0


def test_a_perfect_connector_gives_the_expected_count_and_every_block_is_verified() -> None:
    reported: list[int] = []
    host, payload = engine("dict://replay")
    with host:
        counted = run(host, payload, NUM_REQUESTS, reported)
    records = [(r.num_tokens, r.block_ids) for r in read_trace(NUM_REQUESTS)]
    expected = trace_blocks(records, BLOCK_TOKENS)
    assert (counted["hit_blocks"], counted["full_blocks"]) == expected
    assert counted["verified_blocks"] == expected[0] > 0
    assert counted["device_blocks"] == 0
    assert len(counted["hits"]) == NUM_REQUESTS
    assert reported == [10, 20, 30]


def test_one_wrong_byte_ends_the_replay() -> None:
    host, payload = engine("dict://replay-wrong")
    with host:
        run(host, payload, 3, [])
        store = connectors.STORES["dict://replay-wrong"]
        for key, page in store.items():
            store[key] = bytes([page[0] ^ 1]) + page[1:]
        with pytest.raises(HostError) as caught:
            run(host, payload, 3, [])
    assert "does not hold block 0" in str(caught.value)
