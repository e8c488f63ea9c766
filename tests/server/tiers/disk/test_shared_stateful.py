"""Anything is done to a shared folder, with errors and restarts, beside a model of it."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.core.tiers.parts import Share, Status
from server.tiers.disk.shared import SharedTier
from server.tiers.interface import Name
from tests.server.tiers.disk.rig import (
    FINGERPRINT,
    OTHER,
    FaultyFiles,
    name_of,
)
from tests.server.tiers.disk.tenants import (
    LENGTH,
    SIZE,
    A,
    B,
    C,
    put,
    recounted,
    told,
)
from tests.wire.process import wait_until


class Model:
    """One server after the other in a folder, and what must be there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.quotas: list[Share] = []
        self.files = FaultyFiles()
        self.tier = self._open()
        self.there: dict[Name, bytes] = {}

    def _open(self) -> SharedTier:
        tier = SharedTier(str(self.folder), SIZE, "disk", self.files, 60.0, touch_s=0.0)
        tier.set_quotas(self.quotas)
        assert wait_until(lambda: told(tier) == recounted(tier, self.folder, *self.salts))
        return tier

    @property
    def salts(self) -> list[bytes]:
        return [one.tenant for one in self.quotas if one.is_salt]

    def put(self, number: int, fault: str) -> None:
        salt, space = ((A, FINGERPRINT), (B, OTHER), (b"", OTHER), (C, FINGERPRINT))[number % 4]
        if fault:
            self.files.fail(fault, errno.EIO, times=1)
        (status,) = put(self.tier, salt, range(number, number + 1), fingerprint=space)
        self.files.heal()
        assert status in (Status.OK, Status.OVER, Status.ERROR)
        assert fault or status is not Status.ERROR
        name = name_of(number, space)
        if status is Status.OK:
            self.there.setdefault(name, salt)
        self._after()

    def delete(self, number: int) -> None:
        names = [name_of(number, space) for space in (FINGERPRINT, OTHER)]
        self.tier.delete(names)
        for name in names:
            self.there.pop(name, None)
        self._after()

    def clear(self) -> None:
        self.tier.clear(OTHER)
        self.there = {n: salt for n, salt in self.there.items() if n.fingerprint != OTHER}
        self._after()

    def quota(self, quotas: list[Share]) -> None:
        self.quotas = quotas
        self.tier.set_quotas(quotas)
        self.tier.trim()
        assert wait_until(lambda: told(self.tier) == recounted(self.tier, self.folder, *self.salts))
        self._after()

    def again(self) -> None:
        self.tier.close()
        self.tier = self._open()
        self._after()

    def _after(self) -> None:
        now = told(self.tier)
        assert now == recounted(self.tier, self.folder, *self.salts)
        for one in self.quotas:
            assert not one.limit_bytes or now.get(one.tenant, 0) <= one.limit_bytes
        left = [name for name in self.there if self.tier.batch_exists([name]) == [True]]
        gone = [salt for name, salt in self.there.items() if name not in left]
        limited = {one.tenant for one in self.quotas if one.limit_bytes}
        assert all(salt in limited for salt in gone), "only limits take anything here"
        self.there = {name: self.there[name] for name in left}
        for salt in (A, B, C):
            mine = {name for name, other in self.there.items() if other == salt}
            assert set(self.tier.of_salt(salt, 1000)) == mine


shares = st.builds(
    lambda salt, floor, limit: Share(True, salt, floor * LENGTH, (floor + limit) * LENGTH),
    st.sampled_from([A, B, C]),
    st.integers(0, 2),
    st.integers(1, 3),
)
steps = st.one_of(
    st.tuples(
        st.just("put"),
        st.integers(0, 15),
        st.sampled_from(["", "", "", "pwritev", "set_length", "sync", "rename", "open"]),
    ),
    st.tuples(st.just("delete"), st.integers(0, 15)),
    st.tuples(st.just("clear")),
    st.tuples(st.just("again")),
    st.tuples(st.just("quota"), st.lists(shares, max_size=2, unique_by=lambda one: one.tenant)),
)


@settings(max_examples=12)
@given(what=st.lists(steps, min_size=5, max_size=25))
def test_whatever_is_done_sums_and_salts_are_those_of_what_is_there(
    tmp_path_factory: pytest.TempPathFactory, what: list[tuple[str, ...]]
) -> None:
    folder = tmp_path_factory.mktemp("model") / "l2"
    model = Model(folder)
    try:
        for step, *args in what:
            getattr(model, step)(*args)
    finally:
        model.tier.close()
        shutil.rmtree(folder)
