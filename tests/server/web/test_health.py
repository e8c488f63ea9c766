"""Whether the server lives and is ready: each thing that breaks is seen, and named (B53)."""

from __future__ import annotations

import msgspec
import pytest

from protocol.messages import StatusReply
from protocol.status import TIER_SILENT_S
from server.cli import overview
from server.web.health import CHECKS, alive, ready
from server.web.watch import View
from tests.server.web.answers import COPIER, SERVER, TIER, silent, status, view

GOOD = {"extents": 3, "tier_disk_up": 1}


def failed(told: View) -> list[str]:
    return [f"{check.name}: {check.text}" for check in ready(told) if not check.is_good]


def test_a_healthy_server_lives_and_is_ready() -> None:
    told = view(GOOD, status())
    assert [check.is_good for check in alive(told)] == [True]
    assert failed(told) == []
    assert {check.name for check in ready(told)} == set(CHECKS) - {"draining"}


@pytest.mark.parametrize("told", [silent(), View()])
def test_one_that_does_not_answer_is_neither(told: View) -> None:
    assert [check.is_good for check in alive(told)] == [False]
    assert len(failed(told)) == 1
    assert "does not answer" in failed(told)[0]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"copiers": (msgspec.structs.replace(COPIER, state="down"),)}, "copiers: host: down"),
        ({"copiers": (msgspec.structs.replace(COPIER, state="starting"),)}, "host: starting"),
        (
            {"copiers": (msgspec.structs.replace(COPIER, silent_s=2.0),)},
            "copiers: host: copier not answering for 2 s",
        ),
        ({"tiers": (msgspec.structs.replace(TIER, state="down"),)}, "tiers: disk: down"),
        (
            {"tiers": (msgspec.structs.replace(TIER, state="down", why="no folder /x"),)},
            "tiers: disk: down: no folder /x",
        ),
        ({"tiers": (msgspec.structs.replace(TIER, state="breaker open"),)}, "disk: breaker open"),
        ({"server": msgspec.structs.replace(SERVER, draining=True)}, "draining: the server is"),
    ],
)
def test_what_breaks_is_named(changes: dict[str, object], word: str) -> None:
    told: StatusReply = status(**changes)
    (why,) = failed(view(GOOD, told))
    assert word in why
    assert all(check.is_good for check in alive(view(GOOD, told))), "a restart would not help"


def test_a_tiers_work_that_does_not_come_to_an_end_is_named() -> None:
    def after(silent_s: float) -> list[str]:
        told = status(tiers=(msgspec.structs.replace(TIER, silent_s=silent_s),))
        assert bool(failed(view(GOOD, told))) == bool(overview.reasons(told, GOOD)), "status, too"
        return failed(view(GOOD, told))

    assert after(TIER_SILENT_S - 0.1) == []
    (why,) = after(TIER_SILENT_S)
    assert why == "tiers: disk: up, and nothing has come to an end for 7 s"


def test_what_a_tier_warns_of_is_said_and_is_no_reason_to_fail() -> None:
    warned = status(tiers=(msgspec.structs.replace(TIER, warning="it is full"),))
    assert failed(view(GOOD, warned)) == []
    texts = [check.text for check in ready(view(GOOD, warned)) if check.name == "tiers"]
    assert texts == ["disk: up: it is full"]


def test_a_copier_that_is_at_work_for_a_moment_is_well() -> None:
    busy = msgspec.structs.replace(COPIER, jobs=3, silent_s=0.4)
    assert failed(view(GOOD, status(copiers=(busy,)))) == []


def test_a_copier_of_a_device_may_end_when_its_engines_are_gone() -> None:
    gone = msgspec.structs.replace(COPIER, name="GPU-1", state="ending")
    assert failed(view(GOOD, status(copiers=(COPIER, gone)))) == []
    host = msgspec.structs.replace(COPIER, state="ending")
    assert len(failed(view(GOOD, status(copiers=(host,))))) == 1


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"extents_failed": 2}, "arena: no extent could be made"),
        ({"extents": 1, "complaint_socket_removed": 1}, "sockets: a socket's file was removed"),
    ],
)
def test_what_the_counters_tell(values: dict[str, int], word: str) -> None:
    (why,) = failed(view(values, status()))
    assert why.startswith(word)


def test_extents_that_failed_while_others_serve_are_no_reason() -> None:
    assert failed(view({"extents_failed": 2, "extents": 1}, status())) == []


def test_checks_can_be_left_out_but_for_the_loop() -> None:
    broken = status(tiers=(msgspec.structs.replace(TIER, state="down"),))
    assert all(check.is_good for check in ready(view(GOOD, broken), ("tiers",)))
    assert not all(check.is_good for check in ready(silent(), ("loop",)))


def test_a_server_that_does_not_know_status_is_judged_by_its_counters() -> None:
    assert failed(view({"extents": 1, "tier_disk_up": 0, "tier_s3_up": 1})) == ["tiers: disk: down"]
