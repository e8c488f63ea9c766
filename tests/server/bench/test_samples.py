import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.bench.samples import latency, transfer


def seconds(
    store: list[float], copyto: list[float], memmove: list[float]
) -> dict[str, list[float]]:
    return {"store": store, "store_copyto": copyto, "store_memmove": memmove}


def test_ratio_is_against_the_faster_plain_copy_round_by_round() -> None:
    # The machine slows down by half in the last round; the ratio does not move.
    found = transfer(seconds([2.0, 2.0, 4.0], [3.0, 3.0, 6.0], [1.0, 1.0, 2.0]), "store", 10**9)
    assert found.memcpy_method == "memmove"
    assert found.ratio == pytest.approx(0.5)
    assert found.gbps == pytest.approx(0.5)
    assert found.memcpy_gbps == pytest.approx(1.0)


@given(
    rounds=st.lists(
        st.tuples(*[st.floats(0.01, 10.0)] * 3, st.floats(0.1, 10.0)), min_size=1, max_size=20
    )
)
def test_ratio_does_not_see_a_drift_that_hits_a_whole_round(
    rounds: list[tuple[float, float, float, float]],
) -> None:
    plain = transfer(seconds(*[[r[at] for r in rounds] for at in range(3)]), "store", 1)
    drifted = [[r[at] * r[3] for r in rounds] for at in range(3)]
    again = transfer(seconds(*drifted), "store", 1)
    if again.memcpy_method == plain.memcpy_method:
        assert math.isclose(again.ratio, plain.ratio, rel_tol=1e-9)


def test_one_round_is_enough_and_none_is_not() -> None:
    assert transfer(seconds([1.0], [1.0], [2.0]), "store", 1).ratio_low == 1.0
    with pytest.raises(ValueError, match="every round"):
        transfer(seconds([], [], []), "store", 1)


def test_a_method_that_lacks_rounds_is_refused() -> None:
    with pytest.raises(ValueError, match="every round"):
        transfer(seconds([1.0, 1.0], [1.0], [1.0, 1.0]), "store", 1)


def test_percentiles() -> None:
    found = latency([float(n) for n in range(1, 102)])
    assert (found.p50_ms, found.p99_ms, found.count) == (51.0, 100.0, 101)
    with pytest.raises(ValueError, match="two samples"):
        latency([1.0])
