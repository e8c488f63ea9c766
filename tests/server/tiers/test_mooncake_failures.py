"""The Mooncake tier while its cluster is hurt: every call ends soon, and it recovers unaided."""

import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from server.core.tiers.parts import Status
from server.porter.engines import open_tier
from server.tiers.interface import Name, Tier, TierError
from server.tierspec import parse
from tests.stores.mooncake import CLIENT_TTL_S, Cluster, Slots, cluster, until
from tests.stores.parts import FINGERPRINT, key
from tests.stores.valkey import required

OK, ABSENT, CORRUPT, NO_ROOM, ERROR, *_ = Status
CALL_LIMIT_S = 6.0
"""Of a call of one thread; the library's own limits are 2 s a transfer, and 3 + 1 s a request."""

CROWD_LIMIT_S = 12.0
NUMBERS = range(32)
_T = TypeVar("_T")


@pytest.fixture(scope="module", autouse=True)
def _packages() -> None:
    required("mooncake")


@contextmanager
def hurt(folder: Path, options: str = "") -> Iterator[tuple[Cluster, Tier, Slots]]:
    """A cluster of two nodes, with values in it."""
    with cluster(folder, nodes=2) as servers:
        tier = open_tier(parse(f"mooncake://{servers.address}{options}"))
        slots = Slots(tier, len(NUMBERS))
        assert slots.put(*NUMBERS) == [OK] * len(NUMBERS)
        try:
            yield servers, tier, slots
        finally:
            tier.close()


def timed(what: str, call: Callable[[], _T], limit_s: float = CALL_LIMIT_S) -> _T:
    begun = time.monotonic()
    result = call()
    took = time.monotonic() - begun
    shown = (
        {status.name: result.count(status) for status in Status if status in result}
        if isinstance(result, list) and not any(isinstance(one, bool) for one in result)
        else result
    )
    print(f"{what}: {took:.2f} s, {shown}")
    assert took < limit_s
    return result


def names() -> list[Name]:
    return [Name(FINGERPRINT, key(number), 0) for number in NUMBERS]


def each(slots: Slots) -> list[Status]:
    """Gets every value by itself, so that none is left out behind another's failure."""
    return [slots.get(number)[0] for number in NUMBERS]


def unanswered(tier: Tier) -> bool:
    with pytest.raises(TierError, match=r"the master does not answer \(code -90"):
        tier.batch_exists(names())
    return True


def test_a_node_is_killed(tmp_path: Path) -> None:
    with hurt(tmp_path) as (servers, tier, slots):
        servers.nodes[0].kill()
        begun = time.monotonic()
        assert ERROR in timed("get", lambda: slots.get(*NUMBERS))
        assert set(timed("put", lambda: slots.put(*range(100, 108)))) <= {OK, ERROR}
        servers.wait_for_nodes(1)
        print(f"the master gave the node up after {time.monotonic() - begun:.1f} s")
        left = timed("get", lambda: slots.get(*NUMBERS))
        assert set(left) == {OK, ABSENT}
        assert tier.batch_exists(names()) == [status is OK for status in left]
        assert timed("put", lambda: slots.put(*NUMBERS)) == [OK] * len(NUMBERS)
        assert timed("get", lambda: slots.get(*NUMBERS)) == [OK] * len(NUMBERS)
        servers.nodes[0].start()
        servers.wait_for_nodes(2)
        more = range(200, 232)
        until(lambda: slots.put(*more) == [OK] * len(more), 10)
        assert timed("get", lambda: slots.get(*more)) == [OK] * len(more)
        assert tier.health().ok


def test_a_node_is_killed_whose_values_have_copies(tmp_path: Path) -> None:
    with hurt(tmp_path, "?replicas=2") as (servers, _, slots):
        servers.nodes[1].kill()
        found = timed("get, before the master knows", lambda: each(slots), 4 * CALL_LIMIT_S)
        assert set(found) <= {OK, ERROR}
        servers.wait_for_nodes(1)
        assert timed("get", lambda: slots.get(*NUMBERS)) == [OK] * len(NUMBERS)


@pytest.mark.slow
def test_a_node_stands_still_and_goes_on(tmp_path: Path) -> None:
    with hurt(tmp_path) as (servers, tier, slots):
        servers.nodes[0].stop()
        try:
            assert ERROR in timed("get", lambda: slots.get(*NUMBERS))
            assert set(timed("put", lambda: slots.put(*range(100, 108)))) <= {OK, ERROR}
            slots.memory[:] = 0
        finally:
            servers.nodes[0].go_on()
        time.sleep(1.5)
        assert not np.any(slots.memory), "what was given up wrote into memory"
        begun = time.monotonic()
        until(lambda: slots.put(*range(200, 232)) == [OK] * 32, 4 * CLIENT_TTL_S)
        print(f"whole again {time.monotonic() - begun:.1f} s after it went on")
        assert timed("get", lambda: slots.get(*range(200, 232))) == [OK] * 32
        assert set(timed("get", lambda: slots.get(*NUMBERS))) <= {OK, ABSENT}
        assert tier.health().ok


def test_a_node_stands_still_for_longer_than_its_term(tmp_path: Path) -> None:
    with hurt(tmp_path) as (servers, _, slots):
        servers.nodes[0].stop()
        try:
            begun = time.monotonic()
            servers.wait_for_nodes(1)
            print(f"the master gave the node up after {time.monotonic() - begun:.1f} s")
            assert set(timed("get", lambda: slots.get(*NUMBERS))) == {OK, ABSENT}
            assert timed("put", lambda: slots.put(*NUMBERS)) == [OK] * len(NUMBERS)
        finally:
            servers.nodes[0].go_on()
        servers.wait_for_nodes(2)
        assert timed("get", lambda: slots.get(*NUMBERS)) == [OK] * len(NUMBERS)
        until(lambda: slots.put(*range(200, 232)) == [OK] * 32, 10)


@pytest.mark.slow
def test_four_threads_meet_a_node_that_stands_still(tmp_path: Path) -> None:
    """As many as a porter has: they share the connections to it."""
    with hurt(tmp_path) as (servers, tier, _):
        crowd = [Slots(tier, len(NUMBERS)) for _ in range(4)]
        told: list[list[Status]] = []

        def meet(slots: Slots) -> None:
            told.append(slots.get(*NUMBERS))

        servers.nodes[0].stop()
        try:
            threads = [threading.Thread(target=meet, args=(one,)) for one in crowd]
            begun = time.monotonic()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(CROWD_LIMIT_S)
            took = time.monotonic() - begun
        finally:
            servers.nodes[0].go_on()
        print(f"all four ended after {took:.1f} s")
        assert not any(thread.is_alive() for thread in threads)
        assert len(told) == 4
        assert all(ERROR in one for one in told)


@pytest.mark.slow
def test_the_master_is_killed(tmp_path: Path) -> None:
    with hurt(tmp_path) as (servers, tier, slots):
        servers.master.kill()
        assert timed("get", lambda: slots.get(*NUMBERS)) == [ERROR] * len(NUMBERS)
        assert timed("put", lambda: slots.put(*NUMBERS)) == [ERROR] * len(NUMBERS)
        assert timed("exists", lambda: unanswered(tier))
        assert not timed("health", tier.health).ok
        servers.master.start()
        took = until(lambda: slots.put(*NUMBERS) == [OK] * len(NUMBERS), 30)
        print(f"puts go on {took:.1f} s after the master started again")
        assert timed("get", lambda: slots.get(*NUMBERS)) == [OK] * len(NUMBERS)
        assert timed("health", tier.health).ok


@pytest.mark.slow
def test_the_master_stands_still_and_goes_on(tmp_path: Path) -> None:
    with hurt(tmp_path) as (servers, tier, slots):
        servers.master.stop()
        try:
            assert timed("get", lambda: slots.get(*NUMBERS)) == [ERROR] * len(NUMBERS)
            assert timed("put", lambda: slots.put(100)) == [ERROR]
            assert timed("exists", lambda: unanswered(tier))
            assert not timed("health", tier.health).ok
        finally:
            servers.master.go_on()
        took = until(lambda: slots.put(*range(200, 232)) == [OK] * 32, 30)
        print(f"puts go on {took:.1f} s after the master went on")
        assert set(timed("get", lambda: slots.get(*NUMBERS))) <= {OK, ABSENT}
        assert timed("health", tier.health).ok


CHILD = """
    import sys
    from server.porter.engines import open_tier
    from server.tiers import mooncakewatch
    from server.tierspec import parse
    from tests.stores.mooncake import Slots
    mooncakewatch.Watch.__init__.__defaults__ = (1.5, mooncakewatch.end_process)
    tier = open_tier(parse(sys.argv[1]))
    slots = Slots(tier, 32)
    print("opened", flush=True)
    sys.stdin.readline()
    slots.get(*range(32))
    print("answered", flush=True)
"""


@pytest.mark.slow
def test_who_meets_a_node_for_the_first_time_while_it_stands_still_ends(tmp_path: Path) -> None:
    """The library would wait a minute for each of its values, whatever it was told."""
    command = [sys.executable, "-c", textwrap.dedent(CHILD)]
    pipe = subprocess.PIPE
    with (
        hurt(tmp_path) as (servers, _, _),
        subprocess.Popen(
            [*command, f"mooncake://{servers.address}"], stdin=pipe, stdout=pipe, text=True
        ) as child,
    ):
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "opened\n"
            servers.nodes[0].stop()
            begun = time.monotonic()
            rest, _ = child.communicate("go on\n", timeout=60)
            print(f"ended after {time.monotonic() - begun:.1f} s")
        finally:
            child.kill()
            servers.nodes[0].go_on()
        assert (child.returncode, rest) == (-signal.SIGKILL, "")
