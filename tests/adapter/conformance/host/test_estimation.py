import pytest

pytest.importorskip("torch")

from tests.adapter.conformance.host.lifecycles import WAIT_S, engine, names_of, prompt

pytestmark = pytest.mark.torch


def test_memory_is_estimated_without_the_connector() -> None:
    with engine(estimate_kv=True) as host:
        assert len(host.submit(prompt(10), 2).result(WAIT_S).tokens) == 2
    names = names_of(host)
    callable_at = names.index("register_forward_pass_callable")
    assert names[callable_at + 1 : callable_at + 4] == [
        "forward_callable",  # of the estimation
        "forward_callable",  # of the warm-up
        "register_kv_caches",
    ]
