"""A store with a ledger when something is full, slow or ends badly: what counts stays right."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from server.core.tiers.parts import Share, Status
from server.tiers.disk.files import Files
from server.tiers.interface import TierError
from server.tiers.ledger import ledger as ledgers
from server.tiers.ledger.book import BookUnusableError
from server.tiers.ledger.pages import LedgerError
from tests.server.tiers.ledger.rig import (
    VALUE,
    A,
    Clock,
    Open,
    Shelf,
    book_of,
    kill,
    name,
    part,
    put,
    rows,
)
from tests.wire.process import wait_until

OK, ABSENT, CORRUPT, NO_ROOM, ERROR, LOCKED, OVER = Status


def test_a_full_store_does_not_cost_a_tenant_what_it_has(begun: Open, shelf: Shelf) -> None:
    tier, store = begun()
    tier.set_quotas([Share(True, A, 0, 9 * VALUE)])
    put(tier, A, *range(9))
    store.refuses = True
    for number in range(100, 150):
        assert put(tier, A, number) == [NO_ROOM]
    assert len(shelf.kept) == 8, "one made room, and that room is still there"
    assert set(rows(tier)) == set(shelf.kept)
    store.refuses = False
    assert put(tier, A, 200) == [OK]
    assert len(shelf.kept) == 9


def test_what_a_full_store_refused_counts_on_if_it_may_have_been_there_before(
    begun: Open, shelf: Shelf, clock: Clock
) -> None:
    tier, store = begun()
    put(tier, A, 1)
    store.refuses = True
    assert put(tier, A, 1) == [NO_ROOM]
    store.refuses, store.fails = False, True
    put(tier, A, 2)
    store.refuses, store.fails = True, False
    assert put(tier, A, 2, 3) == [NO_ROOM] * 2
    assert set(rows(tier)) == {name(1), name(2)}
    tier.health()
    shelf.come()
    clock.now_s += 61
    tier.health()
    assert set(rows(tier)) == set(shelf.kept) == {name(1), name(2)}


def test_what_was_being_written_at_a_kill_is_no_victim_though_it_was_written_again(
    begun: Open, shelf: Shelf, clock: Clock
) -> None:
    tier, store = begun()
    store.fails = True
    put(tier, A, 1)
    kill(tier)
    tier, store = begun()
    tier.set_quotas([Share(True, A, 0, 2 * VALUE)])
    assert put(tier, A, 1, 2) == [OK] * 2
    assert put(tier, A, 3) == [OK]
    shelf.come()  # what the killed porter had sent
    assert set(shelf.kept) == set(rows(tier)) == {name(1), name(3)}
    tier.health()
    clock.now_s += 61
    tier.health()
    assert put(tier, A, 4, 5) == [OK] * 2
    assert set(shelf.kept) == {name(4), name(5)}


def test_quotas_that_change_amid_a_write_hold_for_the_next(begun: Open, shelf: Shelf) -> None:
    tier, _ = begun()
    tier.set_quotas([Share(True, A, 0, 9 * VALUE)])
    put(tier, A, *range(9))
    held = book_of(tier).held

    def meanwhile(tenant: tuple[bool, bytes]) -> int:
        tier.set_quotas([])
        return held(tenant)

    book_of(tier).held = meanwhile  # type: ignore[method-assign]
    assert put(tier, A, 100) == [OK]
    assert len(shelf.kept) == 9, "without a limit all would have had to go"


def test_what_could_not_be_entered_of_a_check_up_is_asked_again(
    begun: Open, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    tier, store = begun()
    store.fails = True
    put(tier, A, 1, 2, 3)
    tier.health()
    clock.now_s += 61
    with monkeypatch.context() as patch:
        patch.setattr(tier._ledger, "answered", _unwritable)
        assert "nothing is written to the store" in tier.health().warning
    tier.health()
    clock.now_s += 61
    tier.health()
    assert rows(tier) == {}


def _unwritable(*words: object) -> None:
    raise LedgerError("no room on the disk")


def test_a_full_disk_is_warned_of_as_long_as_it_is_full(
    begun: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tier, _ = begun()
    put(tier, A, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Files, "pwritev", _no_room)
        assert put(tier, A, 2) == [OVER]
        for _ in range(3):  # nobody writes meanwhile
            health = tier.health()
            assert health.ok
            assert FULL in health.warning
        assert tier.batch_get_into([part(1)]) == [OK]
    assert FULL in caplog.messages[0], "the log has it in one line, and with the first write"
    assert not tier.health().warning
    assert put(tier, A, 2) == [OK]
    assert set(rows(tier)) == {name(1), name(2)}


FULL = (
    "cannot be written: No space left on device: make room on its file system; "
    "nothing is written to the store until then"
)


def test_a_folder_that_was_moved_stops_writes_until_it_is_back(begun: Open, tmp_path: Path) -> None:
    tier, store = begun()
    put(tier, A, 1)
    folder = tmp_path / "ledger"
    folder.rename(tmp_path / "away")
    assert wait_until(lambda: "moved or removed" in tier.health().warning, 20.0, 0.05)
    assert "put it back, or restart the server" in tier.health().warning
    assert put(tier, A, 2) == [OVER]
    assert tier.batch_get_into([part(1)]) == [OK]
    assert len(store.put) == 1, "what the next porter would not find"
    (tmp_path / "away").rename(folder)
    assert wait_until(lambda: not tier.health().warning, 20.0, 0.05)
    assert put(tier, A, 3) == [OK]
    assert set(rows(tier)) == {name(1), name(3)}


def _no_room(*words: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_stands_still_holds_up_nobody_for_long(
    begun: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, _ = begun()
    put(tier, A, 1)
    made = tier._ledger
    monkeypatch.setattr(ledgers, "_WAIT_S", 0.01)
    made.ask_wait_s = 0.01
    with made._lock:
        assert put(tier, A, 2) == [OVER]
        assert tier.batch_get_into([part(1)]) == [OK]
        assert tier.batch_exists([name(1)]) == [True]
        assert not tier.health().warning, "as any commit"
        made._committing_since_s = -1e9
        assert "its disk is slow: writes to the store wait" in tier.health().warning
        with pytest.raises(TierError, match="slow"):
            tier.delete([name(1)])
        with pytest.raises(OSError, match="slow"):
            tier.of_salt(A, 9)
    made.ask_wait_s = 20.0
    monkeypatch.setattr(ledgers, "_WAIT_S", 20.0)
    assert put(tier, A, 2) == [OK]
    assert not tier.health().warning


def test_an_engine_that_raises_or_answers_too_little_leaves_its_puts_in_doubt(
    begun: Open, clock: Clock
) -> None:
    tier, store = begun()
    store.batch_put = lambda parts: [OK]  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="1 answers for 2 parts"):
        put(tier, A, 1, 2)
    assert len(rows(tier)) == 2
    tier.health()
    clock.now_s += 61
    tier.health()
    assert rows(tier) == {}


def test_a_ledger_that_cannot_be_written_stops_writes_and_nothing_else(
    begun: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, store = begun()
    put(tier, A, 1)
    monkeypatch.setattr(book_of(tier), "apply", _broken)
    assert put(tier, A, 2) == [OVER]
    assert put(tier, A, 3) == [OVER]
    assert len(store.put) == 1, "nothing reached the store"
    assert tier.batch_get_into([part(1)]) == [OK]
    with pytest.raises(OSError, match="cannot be written"):
        tier.of_salt(A, 9)
    with pytest.raises(TierError, match="cannot be written"):
        tier.delete([name(1)])
    health = tier.health()  # opens it again
    assert health.ok
    assert not health.warning
    assert put(tier, A, 4) == [OK]
    assert {name(1), name(4)} <= set(rows(tier))


def _broken(changes: object) -> None:
    raise BookUnusableError("no room on the disk")
