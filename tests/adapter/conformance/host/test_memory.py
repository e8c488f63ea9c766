import pytest

torch = pytest.importorskip("torch")

from adapter.conformance.host.memory import v1_memory  # noqa: E402
from adapter.conformance.host.payload import PayloadModel  # noqa: E402
from adapter.pages import find_pool  # noqa: E402

pytestmark = pytest.mark.torch

MODEL = PayloadModel(4, num_layers=3, bytes_per_token=2)


@pytest.mark.parametrize("private", [False, True])
def test_private_memory_is_no_shared_pool(private: bool) -> None:
    memory = v1_memory(MODEL, 6, private=private)
    pool = memory.registered
    assert pool.shape == (6, 3, 2, 8)
    assert (find_pool(pool.data_ptr(), pool.numel()) is None) == private


def test_layers_and_groups_are_views_of_one_pool() -> None:
    memory = v1_memory(MODEL, 6, private=True)
    memory.groups[0].fill(range(6), 7)
    memory.groups[0].fill([2, 4], 9)
    assert [int(page[0, 0, 0]) for page in memory.registered] == [7, 7, 9, 7, 9, 7]
    memory.layers[1].parts[1][2].fill_(1)
    memory.groups[0].copy(2, 5)
    assert torch.equal(memory.registered[5], memory.registered[2])
    assert (memory.registered[5] == 1).sum() == 8
