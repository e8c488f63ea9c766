"""The whole host with the second manager and a real model: equal bits whatever happens to pages."""

import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from adapter.conformance.host.engine import HostEngine  # noqa: E402
from adapter.conformance.host.llm_args import (  # noqa: E402
    KvCacheConfig,
    KvCacheConnectorConfig,
    LlmArgs,
)
from adapter.conformance.host.options import HostOptions  # noqa: E402
from adapter.conformance.host.payload import PayloadModel  # noqa: E402
from adapter.conformance.host.requests import HostResult  # noqa: E402
from adapter.conformance.host.v2.layout import group_layers  # noqa: E402
from adapter.conformance.host.v2.scheduling import V2Scheduler  # noqa: E402
from adapter.conformance.host.weights import (  # noqa: E402
    LATENT,
    SLIDING,
    TINY,
    ModelConfig,
    write_model_dir,
)
from tests.adapter.conformance.host.v2.groupdict import (  # noqa: E402
    NUM_HONOURED,
    STORES,
    WINDOWS,
)

pytestmark = pytest.mark.torch

WAIT_S = 60.0
SIZE = 16
NUM_NEW = 5
COUNTER = itertools.count()
MODELS: dict[str, tuple[ModelConfig, str]] = {
    "full": (TINY, "auto"),
    "sliding": (replace(SLIDING, layer_windows=(0, 20, 0, 37)), "auto"),
    "latent-fp8": (replace(LATENT, layer_windows=(24, 0, 0)), "fp8"),
    "windows-only": (replace(TINY, layer_windows=(20, 20, 40), num_hidden_layers=3), "auto"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name, (config, _) in MODELS.items():
        write_model_dir(root / name, replace(config, max_position_embeddings=192))
    return root


def make(
    folder: Path, name: str, pages: int = 40, url: str | None = None, **options: Any
) -> HostEngine:
    config, dtype = MODELS[name]
    cache = KvCacheConfig(SIZE, enable_partial_reuse=False, dtype=dtype)
    connector = None
    if url is not None:
        WINDOWS[url] = tuple(window for window, _ in group_layers(config.windows))
        module = "tests.adapter.conformance.host.v2.groupdict"
        connector = KvCacheConnectorConfig(
            None, module, "GroupScheduler", "GroupWorker", server_url=url
        )
    budget = options.pop("max_num_tokens", 256)
    arguments = LlmArgs(folder / name, cache, connector, max_num_tokens=budget)
    made = HostOptions(**{"epoch": "E3", "layout": "v2"} | options)
    return HostEngine(arguments, pages, options=made)


def prompts(seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    stem = [draw.randrange(256) for _ in range(90)]
    cuts = [90, 48, 64, 31, 80]
    return [
        stem[:cut] + [draw.randrange(256) for _ in range(i * 7 + 3)] for i, cut in enumerate(cuts)
    ]


def ask(host: HostEngine, *, at_once: bool = False, num: int = NUM_NEW) -> list[HostResult]:
    if at_once:
        handles = [host.submit(tokens, num) for tokens in prompts()]
        return [handle.result(WAIT_S) for handle in handles]
    return [host.submit(tokens, num).result(WAIT_S) for tokens in prompts()]


def same(left: list[HostResult], right: list[HostResult]) -> bool:
    return all(
        a.tokens == b.tokens and torch.equal(torch.stack(a.logits), torch.stack(b.logits))
        for a, b in zip(left, right, strict=True)
    )


@pytest.fixture(scope="module")
def references(folder: Path) -> dict[str, list[HostResult]]:
    """What each model says on the first manager without reuse, one request at a time."""
    made = {}
    for name, (_, dtype) in MODELS.items():
        cache = KvCacheConfig(SIZE, enable_block_reuse=False, dtype=dtype)
        with HostEngine(LlmArgs(folder / name, cache), 24) as host:
            made[name] = ask(host)
    return made


def assert_replayed(host: HostEngine) -> None:
    scheduler = host._executor._parts.scheduler
    assert isinstance(scheduler, V2Scheduler)
    assert scheduler.num_resets > 0


def url(*flags: str) -> str:
    return f"groups://{'-'.join(flags)}{next(COUNTER)}"


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("budget", [16, 40, 256])
def test_chunks_windows_and_own_reuse_change_no_bit(
    folder: Path, references: Any, name: str, budget: int, overlap: bool
) -> None:
    with make(folder, name, max_num_tokens=budget, overlap=overlap) as host:
        assert same(ask(host, at_once=True), references[name])
        again = ask(host)
        assert same(again, references[name])
        assert all(result.num_device_tokens >= 16 for result in again)
        host.allocator.check_integrity()
        assert host.stats().num_available_blocks == host.num_pages


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("style", ["joined", "apart"])
@pytest.mark.parametrize("flags", ["", "async"])
@pytest.mark.parametrize("epoch", ["E3", "E4"])
def test_a_right_connector_gives_equal_logits_in_another_engine(
    folder: Path, references: Any, name: str, style: str, flags: str, epoch: str
) -> None:
    place = url(flags)
    options: dict[str, Any] = {
        "epoch": epoch,
        "regions": style,
        "private_pool": style == "apart",
    }
    with make(folder, name, url=place, max_num_tokens=40, **options) as host:
        assert same(ask(host), references[name])
    assert STORES[place]
    with make(folder, name, url=place, max_num_tokens=40, **options) as host:
        results = ask(host, at_once=True)
        assert same(results, references[name])
        assert sum(result.num_loaded_tokens for result in results) > 60
        assert host.stats().num_available_blocks == host.num_pages
        host.allocator.check_integrity()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("epoch", ["E3", "E4"])
def test_destroyed_requests_replay_to_the_same_bits(
    folder: Path, name: str, overlap: bool, epoch: str
) -> None:
    with make(folder, name) as host:
        expected = ask(host, num=40)
    place = url()
    with make(folder, name, 12, place, overlap=overlap, epoch=epoch, max_num_tokens=64) as host:
        assert same(ask(host, at_once=True, num=40), expected)
        assert same(ask(host, at_once=True, num=40), expected)
        assert_replayed(host)
        assert host.stats().num_available_blocks == host.num_pages
        host.allocator.check_integrity()


def test_offers_are_honoured_in_part_when_pages_are_short(folder: Path) -> None:
    place, draw = url(), random.Random(5)
    asked = [[draw.randrange(256) for _ in range(count)] for count in (93, 60)]
    with make(folder, "full", url=place) as host:
        expected = [host.submit(tokens, NUM_NEW).result(WAIT_S) for tokens in asked]
    with make(folder, "full", 8, place, max_num_tokens=33) as host:
        handles = [host.submit(tokens, NUM_NEW) for tokens in asked]
        assert same([handle.result(WAIT_S) for handle in handles], expected)
    assert NUM_HONOURED[place][:2] == [(80, 80), (48, 16)]


def test_a_flipped_byte_in_the_store_is_noticed(folder: Path, references: Any) -> None:
    """The control: what is loaded is what is used."""
    place = url()
    with make(folder, "sliding", url=place) as host:
        ask(host)
    keys = [key for key in STORES[place] if key[1] == 1]
    for key in keys:
        data = bytearray(STORES[place][key])
        data[2] ^= 0x40
        STORES[place][key] = bytes(data)
    with make(folder, "sliding", url=place) as host:
        assert not same(ask(host), references["sliding"])


@pytest.mark.parametrize("tokens_per_block", [16, 32, 64, 128])
def test_the_arguments_block_size_may_be_another(folder: Path, tokens_per_block: int) -> None:
    with make(folder, "full", tokens_per_block=tokens_per_block) as host:
        assert host.pool.tokens_per_block == tokens_per_block
        assert host.pool.groups[0].regions[0].size == 3 * 2 * 2 * 16 * 4 * tokens_per_block
        assert len(ask(host)) == 5


@pytest.mark.parametrize("flags", ["", "async"])
def test_payload_of_groups_is_checked_block_by_block(flags: str) -> None:
    place = url(flags)
    WINDOWS[place] = (0, 24)
    module = "tests.adapter.conformance.host.v2.groupdict"
    connector = KvCacheConnectorConfig(None, module, "GroupScheduler", "GroupWorker", place)
    cache = KvCacheConfig(SIZE, enable_partial_reuse=False)
    arguments = LlmArgs(Path("none"), cache, connector, max_num_tokens=48)
    options = HostOptions(epoch="E3", layout="v2", regions="apart")
    for again in (False, True):
        model = PayloadModel(SIZE, num_layers=3, windows=(24, 0, 24))
        with HostEngine(arguments, 24, model=model, options=options) as host:
            results = ask(host, at_once=True)
        assert (sum(result.num_loaded_tokens for result in results) > 0) == again
        # At first only what one request finds of another's, if that was computed in time.
        assert model.num_verified_pages > 0 or not again


def test_without_chunked_prefill_a_request_fits_into_one_forward(folder: Path) -> None:
    arguments = LlmArgs(folder / "full", KvCacheConfig(SIZE), max_num_tokens=64)
    whole = replace(arguments, enable_chunked_prefill=False)
    options = HostOptions(epoch="E3", layout="v2")
    prompt = list(range(1, 62))
    with HostEngine(whole, 24, options=options) as host:
        with pytest.raises(ValueError, match="66 tokens without chunked prefill"):
            host.submit(prompt, 5)
        alone = host.submit(prompt, 4).result(WAIT_S)
    with HostEngine(arguments, 24, options=options) as host:
        assert host.submit(prompt, 4).result(WAIT_S).tokens == alone.tokens
