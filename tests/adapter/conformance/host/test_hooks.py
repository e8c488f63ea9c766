import time

import pytest

from adapter.conformance.host.hooks import NUM_BUCKETS, HookRecorder, HookStats


def test_buckets_are_powers_of_two_of_microseconds() -> None:
    stats = HookStats()
    for duration_ns in (0, 999, 1_000, 1_999, 2_000, 4_000_000, 10**15):
        stats.add(duration_ns)
    expected = [0] * NUM_BUCKETS
    expected[0], expected[1], expected[11], expected[-1] = 4, 1, 1, 1
    assert stats.buckets == expected
    assert (stats.num_calls, stats.max_ns) == (7, 10**15)


def test_calls_with_a_load_are_apart() -> None:
    recorder = HookRecorder()
    with recorder.timed("start_load_kv"):
        pass
    with recorder.timed("start_load_kv", with_load=True):
        pass
    with pytest.raises(KeyError), recorder.timed("get_finished"):
        raise KeyError("the time counts also when the hook raises")
    assert recorder.num_calls("start_load_kv") == 2
    assert recorder.num_calls("get_finished") == 1
    assert recorder.longest(with_load=True)[0] == "start_load_kv"
    rows = recorder.as_rows()
    assert len(rows) == 3
    assert rows[0]["max_us"] == max(float(str(row["max_us"])) for row in rows)


def test_bring_up_is_recorded_and_never_the_longest() -> None:
    recorder = HookRecorder()
    with recorder.timed("get_finished"):
        pass
    with recorder.timed("wait_for_initialization"):
        time.sleep(0.005)  # a bring-up that takes long; nothing is waited for
    assert recorder.longest()[0] == "get_finished"
    assert [row["bring_up"] for row in recorder.as_rows()] == [True, False]


def test_nothing_recorded_has_no_longest() -> None:
    assert HookRecorder().longest() == ("", 0)
