"""``kvkeep retire``: what nobody uses goes, what is used, pinned or young stays."""

from __future__ import annotations

import time

import msgspec
import pytest

from protocol.messages import Done, Unregister
from server.cli.retire import unused
from tests.server.cli.cached import FIRST, Cached
from tests.server.cli.told import SPACE
from tests.wire.process import wait_until

replace = msgspec.structs.replace
OLD = replace(SPACE, sessions=0, pinned_chunks=0, idle_s=100.0)


@pytest.mark.parametrize(
    ("space", "is_old"),
    [
        (OLD, True),
        (replace(OLD, idle_s=99.0), False),
        (replace(OLD, sessions=1), False),
        (replace(OLD, pinned_chunks=1), False),
    ],
)
def test_which_are_old(space: object, is_old: bool) -> None:
    assert isinstance(space, type(SPACE))
    assert unused([space], 100) == [space] * is_old


def test_a_namespace_goes_when_its_engine_is_gone_and_its_time_is_over(holding: Cached) -> None:
    assert holding.told("retire", "--unused-for", "1", "--yes")["namespaces"] == []
    holding.told("pin", "--tokens", holding.file(FIRST))
    engine = holding.engine
    engine.wire.call(Unregister(session=engine.session), Done)
    time.sleep(1.0)
    assert holding.told("retire", "--unused-for", "1", "--yes")["namespaces"] == []  # pinned
    holding.told("unpin", "--tokens", holding.file(FIRST))

    def shown() -> list[str]:
        found = holding.told("retire", "--unused-for", "1", "--dry-run")["namespaces"]
        return [one["fingerprint"] for one in found]

    assert wait_until(lambda: shown() == [holding.name], 5.0, 0.2)
    [one] = holding.told("retire", "--unused-for", "1", "--yes")["namespaces"]
    assert (one["name"], one["cleared"], one["tiers_pending"]) == ("test/model", 7, 0)
    # As long as launch --namespace-ttl may be.
    assert holding.told("retire", "--unused-for", "366d", "--yes")["namespaces"] == []
    text = holding.run("retire", "--unused-for", "1", "--yes")
    assert (text.exit_code, text.output) == (0, "no namespace is unused for so long\n")


def test_nothing_goes_by_a_slip(holding: Cached) -> None:
    for arguments, said in (
        ([], "--yes or --dry-run, since nobody can be asked here"),
        (["--unused-for", "1w", "--yes"], "unused-for='1w'"),
        (["--unused-for", "0", "--yes"], "unused-for='0'"),
        (["--unused-for", "367d", "--yes"], "366d at most"),
    ):
        refused = holding.run("retire", *arguments)
        assert refused.exit_code == 2
        assert said in refused.output
        assert refused.output.count("\n") == 1
