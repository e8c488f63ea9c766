from pathlib import Path

import numpy as np
import pytest

from adapter.conformance.loadgen.engine import Engine, LoadgenError, hash_tokens
from adapter.conformance.loadgen.orders import Join
from protocol.messages import Commit, Done, Ping
from tests.adapter.conformance.loadgen.conftest import NUM_PAGES, PAGE_BYTES


def test_join_registers_a_pool_of_the_size_ordered(engine: Engine) -> None:
    assert engine.pool.num_bytes == NUM_PAGES * PAGE_BYTES
    assert engine.scratch.nbytes == engine.pool.num_bytes
    assert engine.joined.namespace.groups[0].page_bytes == PAGE_BYTES
    assert isinstance(engine.ask(Ping()), Done)


def test_a_refusal_is_told(engine: Engine) -> None:
    with pytest.raises(LoadgenError, match="COMMIT: UNKNOWN_STORE"):
        engine.ask(Commit(session=engine.joined.session, store=12345, count=0))


def test_nobody_to_join(short_dir: Path) -> None:
    order = Join(
        url=f"ipc://{short_dir}/s", model_id="m", page_bytes=4096, num_pages=4, timeout_s=0.2
    )
    with pytest.raises(LoadgenError, match=r"not registered within 0\.2 s"):
        Engine.join(order)


def test_prompts_share_no_page_while_pages_last(engine: Engine) -> None:
    prompts = engine.prompts(NUM_PAGES // 8, 8, np.random.default_rng(1))
    pages = np.concatenate([prompt.pages for prompt in prompts])
    assert sorted(pages.tolist()) == list(range(NUM_PAGES))
    assert len({prompt.keys for prompt in prompts}) == len(prompts)
    assert len({prompt.number for prompt in prompts}) == len(prompts)
    more = engine.prompts(3, NUM_PAGES // 2, np.random.default_rng(1))
    assert all(len(set(prompt.pages.tolist())) == NUM_PAGES // 2 for prompt in more)


def test_a_list_and_an_array_hash_alike() -> None:
    tokens = np.arange(96, dtype=np.int32)
    assert hash_tokens(tokens) == hash_tokens(tokens.tolist())
    assert len(hash_tokens(tokens)) == 3 * 16
