"""Sums of a shared folder: exact for one server, whatever it does while a walk recounts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.core.tiers.parts import Share
from server.tiers.disk.holdings import At, Holdings, Sums, Value, grouped
from server.tiers.disk.shares import Whose

A, B = b"a" * 16, b"b" * 16
SPACES = [b"\x01" * 16, b"\x02" * 16]
SALTS = frozenset([A])
Folder = dict[At, Value]

values = st.builds(
    lambda space, salt, blocks: Value(Whose(space, salt), blocks * 4096, blocks * 4096, len(salt)),
    st.sampled_from(SPACES),
    st.sampled_from([b"", A]),
    st.integers(1, 5),
)
changes = st.tuples(
    st.sampled_from(["put", "put", "remove", "clear"]),
    values,
    st.sampled_from(["00", "01"]),
    st.sampled_from(["x", "y", "z"]),
)


def sums_of(folder: Folder) -> dict[Whose, tuple[int, int]]:
    sums = Sums()
    for value in folder.values():
        sums.add(value)
    return sums.groups


def change(holdings: Holdings, folder: Folder, one: tuple[str, Value, str, str]) -> None:
    what, value, fan, name = one
    at = At(value.whose.space.hex(), fan, name)
    if what == "clear":
        for other in [other for other in folder if other.space == at.space]:
            del folder[other]
        holdings.clear(value.whose.space)
        return
    before = folder.pop(at, None)
    after = value if what == "put" else None
    if after is not None:
        folder[at] = after
    holdings.change(at, before, after)


def walk(holdings: Holdings, folder: Folder, meanwhile: st.DataObject | None) -> None:
    def others() -> None:
        for one in meanwhile.draw(st.lists(changes, max_size=4)) if meanwhile else ():
            change(holdings, folder, one)

    def listed(depth: int, above: tuple[str, ...]) -> list[str]:
        others()
        names = sorted({at[depth] for at in folder if at[:depth] == above})
        others()
        return names

    holdings.begin()
    spaces = listed(0, ())
    holdings.list_spaces(spaces)
    for space in spaces:
        others()
        holdings.enter_space(space)
        fans = listed(1, (space,))
        holdings.list_fans(fans)
        for fan in fans:
            others()
            holdings.enter_fan(fan)
            names = listed(2, (space, fan))
            seen = {
                name: folder[At(space, fan, name)]
                for name in names
                if At(space, fan, name) in folder
            }
            others()
            holdings.leave_fan(seen)
    others()
    holdings.end()


@given(st.data())
def test_a_walk_ends_with_what_is_there_whatever_changes_meanwhile(data: st.DataObject) -> None:
    holdings, folder = Holdings(), Folder()
    for one in data.draw(st.lists(changes, max_size=12)):
        change(holdings, folder, one)
        assert holdings.live.groups == sums_of(folder)
    for _ in range(2):
        walk(holdings, folder, data)
        assert holdings.live.groups == sums_of(folder)
    walk(holdings, folder, None)  # what was cleared takes room until it is removed
    assert holdings.live.size_bytes == sum(one.size_bytes for one in folder.values())
    told = dict(holdings.shares.spaces())
    assert told == {
        space: total
        for space in SPACES
        if (total := sum(v.length_bytes for v in folder.values() if v.whose.space == space))
    }


def value(salt: bytes = b"", blocks: int = 1) -> Value:
    return Value(Whose(SPACES[0], salt), blocks * 4096, blocks * 4096, 7 if salt else 0)


AT = At(SPACES[0].hex(), "00", "x")


def test_what_was_never_counted_takes_nothing_below_nothing() -> None:
    holdings = Holdings()
    holdings.change(AT, value(), None)
    assert holdings.live.groups == {}
    assert holdings.live.size_bytes == 0
    assert holdings.shares.spaces() == ()


def test_what_others_did_is_known_after_a_walk() -> None:
    holdings = Holdings()
    holdings.change(AT, None, value(A))
    holdings.begin()
    holdings.list_spaces([AT.space])
    holdings.enter_space(AT.space)
    holdings.list_fans(["00"])
    holdings.enter_fan("00")
    holdings.count_other(100)
    holdings.leave_fan({"theirs": value(b"", 2)})
    holdings.end()
    assert holdings.live.groups == {Whose(SPACES[0]): (1, 8192)}
    assert holdings.live.size_bytes == 8292
    assert holdings.live.tags == {}


@pytest.mark.parametrize("at", range(4))
def test_what_is_cleared_amid_a_walk_takes_room_until_it_is_removed(at: int) -> None:
    holdings = Holdings()
    holdings.change(AT, None, value(A))
    holdings.change(AT._replace(fan="01"), None, value())
    files = {"00": {"x": value(A)}, "01": {"x": value()}}

    def step(number: int) -> None:
        if number == at:
            holdings.clear(SPACES[0])
            files.update({"00": {}, "01": {}})

    holdings.begin()
    holdings.list_spaces([AT.space])
    step(0)
    holdings.enter_space(AT.space)
    holdings.list_fans(["00", "01"])
    for number, fan in enumerate(("00", "01"), start=1):
        step(number)
        holdings.enter_fan(fan)
        holdings.leave_fan(files[fan])
    step(3)
    holdings.end()
    assert holdings.live.size_bytes == 2 * 4096
    assert holdings.live.groups == {}


def test_a_walk_that_came_to_nothing_changes_nothing() -> None:
    holdings = Holdings()
    holdings.change(AT, None, value(A))
    holdings.begin()
    holdings.abandon()
    holdings.change(AT._replace(name="y"), None, value(A))
    assert holdings.live.groups == {Whose(SPACES[0], A): (2, 8192)}


def test_a_salt_without_a_quota_counts_for_none() -> None:
    holdings = Holdings()
    holdings.set_quotas([Share(True, A, 1, 0)], SALTS)
    holdings.change(AT, None, value(A))
    holdings.change(AT._replace(name="y"), None, value())
    assert holdings.shares.salts() == ((A, 4096),)
    holdings.set_quotas([], frozenset())
    assert holdings.live.groups == {Whose(SPACES[0]): (2, 8192)}
    assert holdings.shares.salts() == ()
    assert dict(holdings.shares.bytes_of) == {(False, SPACES[0]): 8192}
    assert grouped(Whose(SPACES[0], B), SALTS) == Whose(SPACES[0])
    assert grouped(Whose(SPACES[0], A), SALTS) == Whose(SPACES[0], A)
