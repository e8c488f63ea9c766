from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from adapter.conformance.host.engine import HostEngine  # noqa: E402
from adapter.conformance.host.llm_args import KvCacheConfig, LlmArgs  # noqa: E402
from adapter.conformance.host.managers import (  # noqa: E402
    V1Manager,
    V2Manager,
    make_manager,
    tokens_per_block,
)
from adapter.conformance.host.options import HostOptions  # noqa: E402
from adapter.conformance.host.payload import PayloadModel  # noqa: E402
from adapter.conformance.host.scheduling import BatchScheduler  # noqa: E402
from adapter.conformance.host.v2.layout import KvCacheLayout  # noqa: E402
from adapter.conformance.host.v2.scheduling import V2Scheduler  # noqa: E402
from adapter.conformance.host.weights import LATENT, TINY, ModelConfig, write_model_dir  # noqa: E402
from adapter.pages import find_pool  # noqa: E402

pytestmark = pytest.mark.torch

MODEL = PayloadModel(16, num_layers=3, windows=(0, 32, 0))
ARGS = LlmArgs("none", KvCacheConfig(16))
V2 = HostOptions(epoch="E3", layout="v2")


def test_the_first_manager_has_one_group_whatever_the_windows() -> None:
    made = make_manager(MODEL, 5, ARGS, HostOptions())
    assert isinstance(made, V1Manager)
    assert (made.cache.num_groups, made.num_pages, made.num_tokens) == (1, 5, 80)
    assert made.memory().registered.shape == (5, 3, 2, 16)
    assert isinstance(made.scheduler(port=None, device=_Device()), BatchScheduler)  # type: ignore[arg-type]
    made.check_integrity()


def test_the_second_manager_has_a_group_per_window() -> None:
    made = make_manager(MODEL, 5, ARGS, V2)
    assert isinstance(made, V2Manager)
    assert (made.cache.num_groups, made.num_pages, made.num_tokens) == (2, 10, 80)
    layout = made.memory().registered
    assert isinstance(layout, KvCacheLayout)
    assert [group.window_size for group in layout.groups] == [None, 32]
    assert isinstance(made.scheduler(port=None, device=_Device()), V2Scheduler)  # type: ignore[arg-type]
    made.check_integrity()


class _Device:
    """Only its page copies are asked for here."""

    def copy_page(self, source: int, target: int) -> None: ...


@pytest.mark.parametrize("layout", ["v1", "v2"])
@pytest.mark.parametrize("private", [False, True])
def test_the_memory_is_private_where_the_options_say_so(layout: Any, private: bool) -> None:
    options = HostOptions(epoch="E3", layout=layout, private_pool=private)
    memory = make_manager(MODEL, 5, ARGS, options).memory()
    address = memory.layers[0].parts[0].data_ptr()
    assert (find_pool(address, 1) is None) == private


def test_the_arguments_block_size_is_not_authoritative() -> None:
    assert tokens_per_block(ARGS, HostOptions()) == 16
    assert tokens_per_block(ARGS, HostOptions(tokens_per_block=64)) == 64


@pytest.mark.parametrize(
    ("config", "dtype", "size", "shape", "element"),
    [
        (TINY, "auto", None, (6, 3, 2, 2 * 16 * 16), torch.float32),
        (TINY, "fp8", None, (6, 3, 2, 2 * 16 * 16), torch.float8_e4m3fn),
        (TINY, "bfloat16", 64, (6, 3, 2, 2 * 64 * 16), torch.bfloat16),
        (LATENT, "auto", None, (6, 3, 1, 16 * 24), torch.float32),
        (LATENT, "fp8", 128, (6, 3, 1, 128 * 24), torch.float8_e4m3fn),
    ],
)
def test_engines_of_every_v1_pool_answer_the_same_however_they_cache(
    tmp_path: Path,
    config: ModelConfig,
    dtype: str,
    size: int | None,
    shape: tuple[int, ...],
    element: Any,
) -> None:
    folder = write_model_dir(tmp_path, config)
    prompt = [(7 * i) % 251 for i in range(150)]
    results = []
    for reuse in (False, True):
        cache = KvCacheConfig(16, enable_block_reuse=reuse, dtype=dtype)
        arguments = LlmArgs(folder, cache, max_num_tokens=128)
        with HostEngine(
            arguments, 6 if size else 12, options=HostOptions(tokens_per_block=size)
        ) as host:
            assert host.pool.shape[1:] == shape[1:]
            assert host.pool.dtype is element
            results += [host.submit(prompt, 4).result(60) for _ in range(2)]
    assert results[-1].num_device_tokens >= 128
    for result in results[1:]:
        assert result.tokens == results[0].tokens
        assert torch.equal(torch.stack(result.logits), torch.stack(results[0].logits))
