"""/metrics: every figure once, with its type, its labels and its value, read back by a parser."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from protocol.errors import ErrorCode
from protocol.messages import Op
from protocol.quotas import MAX_QUOTAS
from protocol.status import COPIER_SILENT_S, ENGINE_STATES, NUM_BUCKETS
from server.cli import overview
from server.core.tiers.misses import Miss
from server.web.exposition import MAX_ROWS, MISS_REASONS, exposed
from server.web.watch import View
from tests.server.web.answers import (
    COPIER,
    ENGINE,
    NAMESPACE,
    QUOTA,
    TIER,
    answer,
    latency,
    silent,
    status,
    view,
)

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(told: View) -> Samples:
    """Every sample by name and labels; none may be there twice."""
    kind, content = exposed(told, "text/plain")
    assert kind.startswith("text/plain; version=")
    found: Samples = {}
    for family in text_string_to_metric_families(content.decode()):
        assert family.documentation, family.name
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def by(labels: Iterable[tuple[str, str]] = ()) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels))


def test_counters_and_gauges_have_their_types() -> None:
    content = exposed(view({"requests": 3, "chunks": 4}, status()), "")[1].decode()
    assert "# TYPE kvkeep_requests_total counter\n" in content
    assert "kvkeep_requests_total 3.0\n" in content
    assert "# TYPE kvkeep_chunks gauge\n" in content
    assert "kvkeep_chunks 4.0\n" in content
    assert "# TYPE kvkeep_request_seconds histogram\n" in content


def test_openmetrics_is_spoken_to_who_asks_for_it() -> None:
    accept = "application/openmetrics-text; version=1.0.0"
    kind, content = exposed(view({"requests": 3}, status()), accept)
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    assert content.endswith(b"# EOF\n")
    assert b"# TYPE kvkeep_requests counter\n" in content


def test_labels_take_figures_together() -> None:
    values = {"tier_disk_get_us": 2_500_000, "tier_s3_get_us": 500_000, "error_busy": 2}
    values |= {"complaint_peer_dropped": 1, "copier_pid_GPU-1": 77}
    found = samples(view(values, status()))
    assert found["kvkeep_tier_get_seconds_total", by([("tier", "disk")])] == 2.5
    assert found["kvkeep_tier_get_seconds_total", by([("tier", "s3")])] == 0.5
    assert found["kvkeep_errors_total", by([("code", "busy")])] == 2
    assert found["kvkeep_complaints_total", by([("kind", "peer_dropped")])] == 1
    assert found["kvkeep_copier_pid", by([("device", "GPU-1")])] == 77


def test_what_has_not_happened_yet_is_0() -> None:
    found = samples(view({}, status()))
    assert found["kvkeep_internal_errors_total", ()] == 0
    assert found["kvkeep_tier_corrupt_total", by([("tier", "disk")])] == 0
    for place in ("l1", "disk"):
        assert found["kvkeep_hit_tokens_total", by([("tier", place)])] == 0
    codes = {key[1][0][1] for key in found if key[0] == "kvkeep_errors_total"}
    assert codes == {code.name.lower() for code in ErrorCode}
    assert {reason.value for reason in Miss} == set(MISS_REASONS)
    for kind in ("socket_removed", "porter_wedged", "web_lost"):
        assert found["kvkeep_complaints_total", by([("kind", kind)])] == 0
    assert ("kvkeep_chunks", ()) not in found, "a gauge that was not told is unknown, not 0"


def test_a_server_that_does_not_answer_has_no_figures() -> None:
    assert samples(silent()) == {("kvkeep_up", ()): 0.0}
    assert samples(View()) == {("kvkeep_up", ()): 0.0}


def test_the_age_of_what_is_told() -> None:
    told = answer({"requests": 1}, status(), at_s=time.monotonic() - 0.25)
    found = samples(View(told, told))
    assert found["kvkeep_up", ()] == 1
    assert 0.25 <= found["kvkeep_answer_age_seconds", ()] < 5
    assert found["kvkeep_answer_seconds", ()] == pytest.approx(0.002)


def test_a_histogram_is_cumulative_and_in_seconds() -> None:
    told = status(latency={"STORE": latency(sum_us=1_500_000, b0=3, b9=2, b17=1)})
    found = samples(view({}, told))
    bucket = "kvkeep_request_seconds_bucket"
    assert found[bucket, by([("op", "STORE"), ("le", "0.0001")])] == 3
    assert found[bucket, by([("op", "STORE"), ("le", "0.1")])] == 5
    assert found[bucket, by([("op", "STORE"), ("le", "30.0")])] == 5
    assert found[bucket, by([("op", "STORE"), ("le", "+Inf")])] == 6
    assert found["kvkeep_request_seconds_count", by([("op", "STORE")])] == 6
    assert found["kvkeep_request_seconds_sum", by([("op", "STORE")])] == 1.5


def test_a_histogram_is_there_before_its_first_event() -> None:
    """So that ``rate`` sees it: with every operation and every bucket, as later ones have them."""
    first = samples(view({}, status(latency={})))
    one_of_each = {op.name: latency(b3=1) for op in Op}
    later = samples(view({}, status(latency=one_of_each)))
    of = "kvkeep_request_seconds"
    buckets = {key for key in first if key[0].startswith(of)}
    assert buckets == {key for key in later if key[0].startswith(of)}
    assert len(buckets) == len(Op) * (NUM_BUCKETS + 2)
    assert {first[key] for key in buckets} == {0.0}


def test_what_is_told_from_the_start_stays_small() -> None:
    content = exposed(view({}, status(latency={})), "")[1]
    assert len(content) < 64 * 1024


def test_an_operation_of_a_later_server_has_its_histogram() -> None:
    found = samples(view({}, status(latency={"OF_TOMORROW": latency(b0=3)})))
    assert found["kvkeep_request_seconds_count", by([("op", "OF_TOMORROW")])] == 3
    assert found["kvkeep_request_seconds_count", by([("op", "LOOKUP")])] == 0


def test_engines_by_state_and_each_with_its_idle_time() -> None:
    operator = msgspec.structs.replace(ENGINE, state="operator", pid=8, client="kvkeep web")
    found = samples(view({}, status(engines=(ENGINE, operator))))
    counts = {state: found["kvkeep_engines", by([("state", state)])] for state in ENGINE_STATES}
    assert counts == {**dict.fromkeys(ENGINE_STATES, 0), "serving": 1, "operator": 1}
    who = by([("engine", "69" * 6), ("client", ENGINE.client), ("pid", "7")])
    assert found["kvkeep_engine_up", who] == 1
    assert found["kvkeep_engine_idle_seconds", who] == 0.5
    assert found["kvkeep_engine_quarantined_bytes", who] == 4096
    assert found["kvkeep_engine_requested_chunks_total", who] == 10
    assert found["kvkeep_engine_hit_chunks_total", who] == 6
    assert len([key for key in found if key[0] == "kvkeep_engine_up"]) == 1, "no operators"


def test_namespaces_by_short_fingerprint_and_model() -> None:
    found = samples(view({}, status()))
    which = by([("namespace", "6e" * 6), ("model", "some/model")])
    assert found["kvkeep_namespace_bytes", which] == 1 << 20
    assert found["kvkeep_namespace_chunk_tokens", which] == 32
    assert found["kvkeep_namespace_idle_seconds", which] == 1.5


def test_a_crowd_has_a_bounded_number_of_series_and_the_rest_is_counted() -> None:
    engines = tuple(msgspec.structs.replace(ENGINE, pid=number) for number in range(200))
    spaces = tuple(
        msgspec.structs.replace(NAMESPACE, fingerprint=number.to_bytes(16, "big"))
        for number in range(1 << 40, (1 << 40) + 100)
    )
    told = status(engines=engines, engines_more=5, namespaces=spaces, namespaces_more=7)
    found = samples(view({}, told))
    assert len([key for key in found if key[0] == "kvkeep_engine_up"]) == MAX_ROWS
    assert found["kvkeep_engines_unlisted", ()] == 200 - MAX_ROWS + 5
    listed = len([key for key in found if key[0] == "kvkeep_namespace_bytes"])
    assert found["kvkeep_namespaces_unlisted", ()] == 100 - listed + 7


def test_a_name_with_quotes_and_line_ends_stays_one_label() -> None:
    odd = msgspec.structs.replace(ENGINE, client='a"b\\c\nd')
    found = samples(view({}, status(engines=(odd,))))
    who = by([("engine", "69" * 6), ("client", 'a"b\\c\nd'), ("pid", "7")])
    assert found["kvkeep_engine_up", who] == 1


def test_a_figure_of_a_later_server_is_left_out() -> None:
    names = {name for name, _ in samples(view({"of_tomorrow": 1}, status()))}
    assert not [name for name in names if "tomorrow" in name]


def test_tiers_that_hang_or_warn() -> None:
    found = samples(view({}, status()))
    disk = by([("tier", "disk")])
    assert (found["kvkeep_tier_silent_seconds", disk], found["kvkeep_tier_warned", disk]) == (0, 0)
    told = status(tiers=(msgspec.structs.replace(TIER, silent_s=8.5, warning="full"),))
    found = samples(view({}, told))
    assert found["kvkeep_tier_silent_seconds", disk] == 8.5
    assert found["kvkeep_tier_warned", disk] == 1


def test_copiers() -> None:
    found = samples(view({}, status()))
    assert found["kvkeep_copier_up", by([("copier", "host")])] == 1
    assert found["kvkeep_copier_restarts_total", by([("copier", "host")])] == 0


@pytest.mark.parametrize(
    "change", [{"state": "down"}, {"state": "starting"}, {"silent_s": COPIER_SILENT_S}]
)
def test_a_copier_of_which_status_says_that_nothing_is_saved_is_not_up(
    change: dict[str, Any],
) -> None:
    told = status(copiers=(msgspec.structs.replace(COPIER, **change),))
    assert overview.reasons(told, {}), "the command says so"
    assert samples(view({}, told))["kvkeep_copier_up", by([("copier", "host")])] == 0


def test_quotas_of_tenants_whom_no_label_names_in_full() -> None:
    latest = answer(told=status(), quotas=(QUOTA,))
    found = samples(View(latest, latest))
    which = by([("kind", "salt"), ("tenant", "74" * 6), ("tier", "l1")])
    assert found["kvkeep_quota_held_bytes", which] == 60
    assert found["kvkeep_quota_floor_bytes", which] == 100
    assert found["kvkeep_quota_limit_bytes", which] == 0


def test_quotas_of_lower_tiers_are_series_of_their_own_in_order() -> None:
    """As many as there may be; beginnings that happen to be the same are one series, not two."""
    rows = [
        msgspec.structs.replace(
            QUOTA, tenant=number.to_bytes(6, "big") + bytes(10), tier=tier, held_bytes=number
        )
        for number in range(MAX_QUOTAS // 2, 0, -1)
        for tier in ("disk", "")
    ]
    twin = msgspec.structs.replace(rows[0], tenant=rows[0].tenant[:6] + b"t" * 10)
    latest = answer(told=status(), quotas=(*rows, twin))
    found = samples(View(latest, latest))
    series = [key[1] for key in found if key[0] == "kvkeep_quota_held_bytes"]
    assert len(series) == MAX_QUOTAS
    assert series == sorted(series)
    for tier in ("disk", "l1"):
        which = by([("kind", "salt"), ("tenant", "000000000007"), ("tier", tier)])
        assert found["kvkeep_quota_held_bytes", which] == 7
        assert found["kvkeep_quota_floor_bytes", which] == 100
