"""The whole host with a real model: a connector that works is proved right, a wrong one wrong."""

import gc
import itertools
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from adapter.conformance.host.engine import HostEngine  # noqa: E402
from adapter.conformance.host.errors import ExecutorDiedError  # noqa: E402
from adapter.conformance.host.hardware import WorkStream  # noqa: E402
from adapter.conformance.host.llm_args import LlmArgs  # noqa: E402
from adapter.conformance.host.options import HostOptions  # noqa: E402
from adapter.conformance.host.payload import PayloadModel  # noqa: E402
from adapter.conformance.host.requests import HostResult  # noqa: E402
from adapter.conformance.host.tokenizer import encode  # noqa: E402
from adapter.conformance.host.weights import TINY, WIDE, write_model_dir  # noqa: E402
from tests.adapter.conformance.host.connectors import (  # noqa: E402
    STORES,
    cache_config,
    connector_config,
)
from tests.adapter.conformance.host.ondevice import pool_bytes  # noqa: E402

pytestmark = pytest.mark.torch

WAIT_S = 60.0
# As deployed (host contract §9 rule 2): a match inside a page would make the connector decline.
ALIGNED = cache_config(8, enable_partial_reuse=False)
ALIGNED_32 = cache_config(32, enable_partial_reuse=False)
COUNTER = itertools.count()
TEXTS = [
    "A cache that outlives the engine must never be wrong. ",
    "A cache that outlives the engine must never be in the way. ",
    "Only then may it be fast; and pages tell no lies about tokens.",
]


@pytest.fixture(scope="module")
def model_dirs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    return [
        write_model_dir(folder / str(i), replace(config, max_position_embeddings=192))
        for i, config in enumerate((TINY, WIDE))
    ]


def prompts() -> list[list[int]]:
    return [encode(TEXTS[0]), encode(TEXTS[1]), encode(TEXTS[0] + TEXTS[2])]


def args(model: Path, url: str | None = None, cache: Any = None, **changes: Any) -> LlmArgs:
    return LlmArgs(
        model,
        kv_cache_config=cache or cache_config(8),
        kv_connector_config=connector_config("Dict", url) if url else None,
        **changes,
    )


def ask(host: HostEngine, *, at_once: bool = False, num: int = 6) -> list[HostResult]:
    if at_once:
        handles = [host.submit(tokens, num) for tokens in prompts()]
        return [handle.result(WAIT_S) for handle in handles]
    return [host.submit(tokens, num).result(WAIT_S) for tokens in prompts()]


def same(left: list[HostResult], right: list[HostResult]) -> bool:
    assert all(len(a.logits) == len(b.logits) == 6 for a, b in zip(left, right, strict=True))
    return all(
        a.tokens == b.tokens and torch.equal(torch.stack(a.logits), torch.stack(b.logits))
        for a, b in zip(left, right, strict=True)
    )


@pytest.fixture(scope="module")
def reference(model_dirs: list[Path]) -> list[HostResult]:
    """What the model says without any cache, one request at a time."""
    cache = cache_config(8, enable_block_reuse=False)
    with HostEngine(args(model_dirs[0], cache=cache), 24) as host:
        return ask(host)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("budget", [8, 24, 256])
def test_batching_chunking_and_own_reuse_change_no_bit(
    model_dirs: list[Path], reference: list[HostResult], budget: int, overlap: bool
) -> None:
    arguments = args(model_dirs[0], max_num_tokens=budget, disable_overlap_scheduler=not overlap)
    with HostEngine(arguments, 64) as host:
        assert same(ask(host, at_once=True), reference)
        again = ask(host)
        assert same(again, reference)
        assert all(result.num_device_tokens > 40 for result in again)
        host.allocator.check_integrity()


@pytest.mark.parametrize("flags", ["", "async", "keep", "async-keep"])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_right_connector_gives_equal_logits_in_another_engine(
    model_dirs: list[Path], reference: list[HostResult], flags: str, overlap: bool
) -> None:
    url = f"dict://{flags}-{next(COUNTER)}"
    options = HostOptions(overlap=overlap)
    chunked = args(model_dirs[0], url, max_num_tokens=24)
    with HostEngine(chunked, 40, options=options) as first:
        assert same(ask(first, at_once=True), reference)
    # A pool of one prompt: nothing of its own can help the second engine.
    arguments = args(model_dirs[0], url, ALIGNED, max_num_tokens=64)
    with HostEngine(arguments, 16, options=options) as second:
        results = ask(second)
        assert same(results, reference)
        for tokens, result in zip(prompts(), results, strict=True):
            taken = result.num_loaded_tokens + result.num_device_tokens
            assert taken >= (len(tokens) - 1) // 8 * 8
        assert sum(result.num_loaded_tokens for result in results) > 100
        assert second.stats().num_saving_pages == 0 or "keep" in flags


@pytest.mark.parametrize("epoch", ["E1", "E2", "E3"])
@pytest.mark.parametrize("skip", [None, lambda iteration: iteration % 3 == 1])
def test_every_epoch_and_skipped_forwards(
    model_dirs: list[Path], reference: list[HostResult], epoch: Any, skip: Any
) -> None:
    url = f"dict://{next(COUNTER)}"
    options = HostOptions(epoch=epoch, skip_forward=skip)
    for num_blocks in (40, 16):
        with HostEngine(args(model_dirs[0], url, ALIGNED), num_blocks, options=options) as host:
            assert same(ask(host, at_once=True), reference)


@pytest.mark.parametrize("hold", [False, True])
def test_a_read_that_outlives_its_pages_takes_another_requests_bytes(
    model_dirs: list[Path], hold: bool
) -> None:
    """Fault B09: copies on a private stream are right only while the pages are held."""
    url = f"dict://{'keep' if hold else ''}-{next(COUNTER)}"
    gate = threading.Event()
    cache = cache_config(8, enable_block_reuse=False)
    with HostEngine(args(model_dirs[0], url, cache), 16) as host:
        worker, page_of = host.connector.worker, host.connector.worker.pages
        private = host.device.hardware.stream("private")

        def save_late(saves: list[tuple[int, bytes]], stream: WorkStream) -> None:
            private.wait_stream(stream)
            private.enqueue(lambda: gate.wait(WAIT_S))
            for block, key in saves:
                private.enqueue(lambda b=block, k=key: right.setdefault(k, page_of[b].tobytes()))  # type: ignore[misc]
            worker.last_save = private.record_event()

        right: dict[bytes, bytes] = {}
        worker.save = save_late
        host.submit(prompts()[0], 1).result(WAIT_S)
        worker.save = lambda saves, stream: None
        host.submit(encode(TEXTS[2]), 1).result(WAIT_S)  # LIFO: takes the pages just freed
        gate.set()
        private.synchronize(WAIT_S)
        private.close(WAIT_S)
    with HostEngine(args(model_dirs[0], f"{url}-on-m"), 16) as host:
        host.submit(prompts()[0], 1).result(WAIT_S)
    stored = STORES[f"{url}-on-m"]
    assert right.keys() == stored.keys()
    assert (right == stored) is hold


def test_generated_blocks_are_hits_too(model_dirs: list[Path]) -> None:
    url = f"dict://{next(COUNTER)}"
    with HostEngine(args(model_dirs[0], url), 24) as first:
        made = first.submit(prompts()[0], 24).result(WAIT_S)
    longer = prompts()[0] + made.tokens
    with HostEngine(args(model_dirs[0], url), 24) as second:
        got = second.submit(longer, 2).result(WAIT_S)
    assert got.num_loaded_tokens >= (len(longer) - 9) // 8 * 8


def test_one_wrong_byte_in_the_store_changes_the_logits(
    model_dirs: list[Path], reference: list[HostResult]
) -> None:
    url = f"dict://{next(COUNTER)}"
    with HostEngine(args(model_dirs[0], url), 40) as first:
        ask(first)
    for key, page in STORES[url].items():
        STORES[url][key] = page[:2] + bytes([page[2] ^ 0x55]) + page[3:]
    with HostEngine(args(model_dirs[0], url), 16) as second:
        assert not same(ask(second), reference)


def test_a_load_that_was_promised_and_not_made_shows_as_nan(model_dirs: list[Path]) -> None:
    url = f"dict://{next(COUNTER)}"
    with HostEngine(args(model_dirs[0], url), 40) as first:
        ask(first)
    with HostEngine(args(model_dirs[0], url), 16) as second:
        second.connector.worker.fill = lambda block, data: None
        results = ask(second)
    assert all(torch.isnan(result.logits[0]).any() for result in results)


def test_salts_are_apart(model_dirs: list[Path]) -> None:
    url = f"dict://{next(COUNTER)}"
    with HostEngine(args(model_dirs[0], url), 40) as host:
        tokens = prompts()[0]
        host.submit(tokens, 1, cache_salt="a").result(WAIT_S)
        other = host.submit(tokens, 1, cache_salt="b").result(WAIT_S)
        assert (other.num_device_tokens, other.num_loaded_tokens) == (0, 0)
        same_salt = host.submit(tokens, 1, cache_salt="a").result(WAIT_S)
        assert same_salt.num_device_tokens > 0


def test_two_models_have_unequal_pages_and_other_logits(model_dirs: list[Path]) -> None:
    pages, outputs = [], []
    for model in model_dirs:
        with HostEngine(args(model), 24) as host:
            outputs.append(host.submit(prompts()[0], 1).result(WAIT_S).logits[0])
            num_bytes = pool_bytes(host.pool.data_ptr())
            assert num_bytes is not None
            pages.append(num_bytes // 24)
    assert pages[1] == 2 * pages[0]
    assert not torch.equal(outputs[0], outputs[1])


def test_trace_shaped_requests_run_on_the_payload_model_with_every_page_checked() -> None:
    url = f"dict://{next(COUNTER)}"
    requests = [[i % 3] * 64 + [i % 5] * 64 + [i] * 40 for i in range(30)]
    verified, results = 0, []
    for _ in range(2):
        model = PayloadModel(32)
        config = args(Path("none"), url, ALIGNED_32, max_num_tokens=1 << 12)
        with HostEngine(config, 6, model=model) as host:
            results = [host.submit(tokens, 1).result(WAIT_S) for tokens in requests]
        verified += model.num_verified_pages
    assert all(r.num_loaded_tokens + r.num_device_tokens == 160 for r in results)
    assert verified > 150
    for key, page in STORES[url].items():
        STORES[url][key] = page[:-1] + bytes([page[-1] ^ 1])
    config = args(Path("none"), url, ALIGNED_32, max_num_tokens=1 << 12)
    with HostEngine(config, 6, model=PayloadModel(32)) as host:
        handle = host.submit(requests[0], 1)
        with pytest.raises(ExecutorDiedError, match="does not hold"):
            handle.result(WAIT_S)


def test_reuse_is_forgotten_once_nothing_runs_and_all_is_saved(model_dirs: list[Path]) -> None:
    url = f"dict://keep-{next(COUNTER)}"
    with HostEngine(args(model_dirs[0], url, ALIGNED), 40) as host:
        handle = host.submit(prompts()[0], 6)
        num_pages = host.forget_reuse(WAIT_S)
        assert handle.done()
        assert num_pages == -(-(len(prompts()[0]) + 5) // 8)
        assert host.stats().num_saving_pages == 0
        again = host.submit(prompts()[0], 6).result(WAIT_S)
        assert again.num_device_tokens == 0
        assert again.num_loaded_tokens == (len(prompts()[0]) - 1) // 8 * 8
        assert same([again], [handle.result(0)])
        host.allocator.check_integrity()


def test_forgetting_waits_no_longer_than_asked_and_not_for_a_dead_executor() -> None:
    host = HostEngine(args(Path("none"), "dict://forget"), 8, model=PayloadModel(8))
    host.connector.worker.get_finished = lambda saved, loading: ([], [])
    host.connector.scheduler.keep = True
    host.submit([1] * 20, 1).result(WAIT_S)
    with pytest.raises(TimeoutError, match="held for saves: 3"):
        host.forget_reuse(0.05)
    host.shutdown()
    with pytest.raises(ExecutorDiedError, match="stopped"):
        host.forget_reuse(WAIT_S)


def test_the_pool_goes_with_the_engine() -> None:
    host = HostEngine(args(Path("none"), "dict://pool"), 8, model=PayloadModel(8))
    address = host.pool.data_ptr()
    host.submit([1] * 20, 1).result(WAIT_S)
    host.shutdown()
    assert pool_bytes(address) is not None
    del host
    gc.collect()
    assert pool_bytes(address) is None


def test_requests_that_could_never_run_are_refused() -> None:
    with HostEngine(args(Path("none")), 4, model=PayloadModel(8, max_seq_len=100)) as host:
        for tokens, num_new, message in (
            ([], 1, "needs a prompt"),
            ([1], 0, "max_new_tokens"),
            ([1] * 99, 2, "the model holds 100"),
            ([1] * 40, 1, "the pool has 4"),
        ):
            with pytest.raises(ValueError, match=message):
                host.submit(tokens, num_new)
        assert len(host.submit([1] * 32, 1).result(WAIT_S).tokens) == 1


def test_a_failed_bring_up_leaves_no_thread() -> None:
    arguments = args(Path("none"), "dict://broken")
    arguments = replace(
        arguments,
        kv_connector_config=replace(
            connector_config("Dict", "dict://broken"), connector_worker_class="Absent"
        ),
    )
    with pytest.raises(AttributeError, match="Absent"):
        HostEngine(arguments, 8, model=PayloadModel(8))
    assert not {t.name for t in threading.enumerate()} & {"stream-M", "stream-X", "executor"}
