"""Any order of writes, reads, losses, removals, failures and kills: all that is there is counted.

After each step: whatever this server wrote and the store has is in the ledger under its salt; sums
are those of a recount; no tenant has more in the store than its limit. And once nothing can come
any more, and the store was asked, the ledger is the store.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from server.core.tiers.parts import Share, Status
from server.tiers.interface import TierError
from server.tiers.ledger.tier import LedgerTier
from tests.server.tiers.ledger.rig import (
    VALUE,
    A,
    B,
    Clock,
    Countdown,
    F,
    G,
    Killed,
    ModelStore,
    Shelf,
    book_of,
    kill,
    name,
    opened,
    part,
    rows,
)

LIMITS = {(True, A): 3 * VALUE, (False, G): 4 * VALUE}
NUMBERS = st.integers(0, 5)
SPACES = st.sampled_from([F, G])
SOME = st.lists(NUMBERS, min_size=1, max_size=4, unique=True)
SALT_OF = {F: (A, B, b"", A, A, B), G: (A, b"", B, A, B, b"")}
"""A salt is in the key of its chunk: nobody else stores it."""

NOT_SOON = 1 << 20


class Model(RuleBasedStateMachine):
    """One store, and one porter after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(dir="/dev/shm")
        self.shelf, self.clock, self.countdown = Shelf(), Clock(), Countdown()
        self.tier, self.store = self.begun()

    def begun(self) -> tuple[LedgerTier, ModelStore]:
        self.countdown.set(-1)
        store = ModelStore(self.shelf, self.countdown)
        folder = Path(self.folder, "ledger")
        tier = opened(folder, store, self.countdown, self.clock)
        tier.set_quotas([Share(*tenant, 0, most) for tenant, most in LIMITS.items()])
        return tier, store

    def teardown(self) -> None:
        self.tier.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def after_a_kill(self) -> None:
        kill(self.tier)
        self.tier, self.store = self.begun()

    @rule(space=SPACES, numbers=SOME, point=st.integers(-20, 25))
    def puts(self, space: bytes, numbers: list[int], point: int) -> None:
        self.countdown.set(point)
        parts = [part(number, SALT_OF[space][number], space) for number in numbers]
        try:
            statuses = self.tier.batch_put(parts)
        except Killed:
            self.after_a_kill()
            return
        self.countdown.set(-1)
        for one, status in zip(parts, statuses, strict=True):
            if status is Status.OK:
                assert one.name in self.shelf.kept

    @rule(space=SPACES, numbers=SOME, point=st.integers(-20, 12))
    def deletes(self, space: bytes, numbers: list[int], point: int) -> None:
        self.countdown.set(point)
        names = [name(number, space) for number in numbers]
        try:
            self.tier.delete(names)
        except Killed:
            self.after_a_kill()
            return
        except TierError:
            self.countdown.set(-1)
            return
        self.countdown.set(-1)
        assert not {*names} & {*self.shelf.kept, *rows(self.tier)}
        for one in names:  # the engine would have raised, or nothing of them is on its way
            assert one not in self.shelf.coming

    @rule(space=SPACES, point=st.integers(-20, 12))
    def clears(self, space: bytes, point: int) -> None:
        self.countdown.set(point)
        try:
            self.tier.clear(space)
        except Killed:
            self.after_a_kill()
            return
        except TierError:
            pass
        self.countdown.set(-1)

    @rule(space=SPACES, numbers=SOME, is_touch=st.booleans())
    def reads(self, space: bytes, numbers: list[int], is_touch: bool) -> None:
        if is_touch:
            self.tier.touch([name(number, space) for number in numbers])
        else:
            self.tier.batch_get_into([part(number, b"", space) for number in numbers])

    @rule(space=SPACES, numbers=SOME)
    def asks(self, space: bytes, numbers: list[int]) -> None:
        self.tier.batch_exists([name(number, space) for number in numbers])

    @rule(space=SPACES, number=NUMBERS)
    def the_store_evicts(self, space: bytes, number: int) -> None:
        self.shelf.kept.pop(name(number, space), None)

    @rule(fails=st.booleans(), refuses=st.booleans())
    def the_store_changes(self, fails: bool, refuses: bool) -> None:
        self.store.fails, self.store.refuses = fails, refuses

    @precondition(lambda self: self.shelf.coming)
    @rule(arrives=st.booleans())
    def a_late_put_arrives_or_is_lost(self, arrives: bool) -> None:
        late, value = self.shelf.coming.popitem()
        if arrives:
            self.shelf.kept[late] = value

    @rule(point=st.integers(-5, 6))
    def is_looked_at(self, point: int) -> None:
        self.countdown.set(point)
        try:
            self.tier.health()
        except Killed:
            self.after_a_kill()
            return
        self.countdown.set(-1)

    @rule()
    def is_committed(self) -> None:
        self.tier._ledger._step()

    @rule(is_kill=st.booleans())
    def begins_anew(self, is_kill: bool) -> None:
        if is_kill:
            self.after_a_kill()
        else:
            self.tier.close()
            self.tier, self.store = self.begun()

    @rule()
    def nothing_comes_any_more_and_all_is_asked_for(self) -> None:
        self.tier.health()
        self.shelf.come()
        self.clock.now_s += 61
        for space in (F, G):
            for number in range(6):
                self.tier.touch([name(number, space)])
        self.tier.health()
        self.tier.health()
        assert set(rows(self.tier)) == set(self.shelf.kept)

    @invariant()
    def all_that_is_there_is_counted(self) -> None:
        self.tier._ledger.open_names()  # takes over what was noted
        entered = rows(self.tier)
        for one in {*self.shelf.kept, *self.shelf.coming}:
            salt = SALT_OF[one.fingerprint][int.from_bytes(one.key, "big")]
            assert entered.get(one) == salt
        book = book_of(self.tier)
        for tenant, most in (*LIMITS.items(), ((True, B), NOT_SOON), ((False, F), NOT_SOON)):
            is_salt, whose = tenant
            mine = [one for one, salt in entered.items() if whose in (salt, one.fingerprint)]
            assert book.held(tenant) == len(mine) * VALUE <= most
            if is_salt:
                assert sorted(self.tier.of_salt(whose, 99)) == sorted(mine)
        assert book.count == len(entered)


Model.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestAnyOrder = Model.TestCase


@pytest.mark.slow
@pytest.mark.timeout(1800)
class TestForLong(Model.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(
        max_examples=1000,
        stateful_step_count=50,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
