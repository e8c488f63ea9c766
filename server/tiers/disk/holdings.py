"""Who has how much of a shared folder: exact for what this server does, also while it recounts.

Purpose: sums by namespace and salt change with each file that this server writes or removes. A walk
counts everything anew, others' files included, while that goes on: what changes where the walk has
been is added to its count, what changes ahead of it is left to it, and what changes where it is now
is noted and settled when it leaves. Must not know: files, which value is older. Runs in: the
porter; the keeper's lock guards it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from server.core.tiers.parts import Share
from server.tiers.disk.shares import Shares, Whose

Region = tuple[str, ...]
"""Where a walk is: ``()`` while it lists namespaces, one's name while it lists its folders, and
that with one folder's name while it looks at its files."""


class At(NamedTuple):
    """Where a file is, in the names of its folders."""

    space: str
    fan: str
    name: str


class Value(NamedTuple):
    """A file, as it counts.

    Attributes:
        whose: it is; its salt only where that has a quota.
        length_bytes: header and value in whole blocks, the same on any file system.
        size_bytes: it takes on the disk.
        tag: see ``server.tiers.disk.marks``.
    """

    whose: Whose
    length_bytes: int
    size_bytes: int
    tag: int = 0


class Room(NamedTuple):
    """Room that was made for a file.

    Attributes:
        group: for which it counts.
        num_bytes: of the file.
    """

    group: int
    num_bytes: int


class Sums:
    """Sums of values.

    Attributes:
        groups: values and their bytes, of each namespace and salt.
        tags: values by tag.
        size_bytes: on the disk.
    """

    def __init__(self) -> None:
        self.groups: dict[Whose, tuple[int, int]] = {}
        self.tags: dict[int, int] = {}
        self.size_bytes = 0

    def add(self, value: Value) -> None:
        """A value came."""
        number, length_bytes = self.groups.get(value.whose, (0, 0))
        self.groups[value.whose] = number + 1, length_bytes + value.length_bytes
        if value.tag:
            self.tags[value.tag] = self.tags.get(value.tag, 0) + 1
        self.size_bytes += value.size_bytes

    def remove(self, value: Value) -> None:
        """A value went; one that was never counted, of another server, takes nothing below 0."""
        number, length_bytes = self.groups.get(value.whose, (0, 0))
        if number > 1:
            left = max(0, length_bytes - value.length_bytes)
            self.groups[value.whose] = number - 1, left
        else:
            self.groups.pop(value.whose, None)
        # Of a tag too many may be counted, which costs a walk, but never too few: it stays.
        self.size_bytes = max(0, self.size_bytes - value.size_bytes)

    def clear(self, space: bytes) -> int:
        """A namespace went; its files still take room on the disk.

        Returns:
            Their bytes.
        """
        gone = [one for one in self.groups if one.space == space]
        return sum(self.groups.pop(one)[1] for one in gone)


class Holdings:
    """The sums, those of a walk that is under way, and what quotas say of them.

    Attributes:
        live: all that is known.
        shares: the same by tenant, with quotas, and what is being written.
    """

    def __init__(self) -> None:
        self.live = Sums()
        self.shares = Shares()
        self._found: Sums | None = None
        self._region: Region | None = None
        self._spaces: set[str] = set()
        self._space = ""
        self._fans: set[str] = set()
        #: Changes where the walk is; a change without a place is a clear of where it is.
        self._noted: list[tuple[At | None, Value | None, Value | None]] = []
        #: What the shares were told of each group.
        self._told: dict[Whose, tuple[int, int]] = {}

    # --- what this server does ------------------------------------------------------------

    def change(self, at: At, before: Value | None, after: Value | None) -> None:
        """A file was written, replaced or removed by this server.

        Args:
            at: where.
            before: what was there.
            after: what is there now.
        """
        _apply(self.live, before, after)
        self._sync({one.whose for one in (before, after) if one is not None})
        if self._found is None:
            return
        if self._region is not None and at[: len(self._region)] == self._region:
            self._noted.append((at, before, after))
        elif not self._is_ahead(at):
            _apply(self._found, before, after)

    def clear(self, space: bytes) -> None:
        """A namespace was moved away by this server."""
        gone = [one for one in self.live.groups if one.space == space]
        num_bytes = self.live.clear(space)
        self._sync(gone)
        if self._found is None:
            return
        unseen = num_bytes - self._found.clear(space)
        if self._region != ():
            # They are where the walk does not look for them any more, until they are removed.
            self._found.size_bytes += max(0, unseen)
        name = space.hex()
        self._noted = [one for one in self._noted if one[0] is None or one[0].space != name]
        if self._region and self._region[0] == name:
            self._noted = [(None, None, None)]

    # --- a walk ---------------------------------------------------------------------------

    def begin(self) -> None:
        """A walk begins, and lists the namespaces."""
        self._found, self._region = Sums(), ()
        self._spaces, self._fans, self._space, self._noted = set(), set(), "", []

    def list_spaces(self, names: Iterable[str]) -> None:
        """The namespaces that it will look at."""
        self._spaces = set(names)
        self._settle()

    def enter_space(self, name: str) -> None:
        """It lists the folders of a namespace."""
        self._spaces.discard(name)
        self._space, self._fans, self._region = name, set(), (name,)

    def list_fans(self, names: Iterable[str]) -> None:
        """The folders there that it will look at."""
        self._fans = set(names)
        self._settle()

    def enter_fan(self, name: str) -> None:
        """It looks at the files of a folder."""
        self._fans.discard(name)
        self._region = self._space, name

    def leave_fan(self, values: Mapping[str, Value]) -> None:
        """It saw these there, by name."""
        assert self._found is not None
        there = dict(values)
        for at, _, after in self._noted:
            if at is None:
                there.clear()
            elif after is None:
                there.pop(at.name, None)
            else:
                there[at.name] = after
        for value in there.values():
            self._found.add(value)
        self._noted, self._region = [], None

    def count_other(self, num_bytes: int) -> None:
        """It saw what is no value: a folder, or what others are writing."""
        assert self._found is not None
        self._found.size_bytes += num_bytes

    def abandon(self) -> None:
        """It came to nothing."""
        self._found = self._region = None
        self._noted = []

    def end(self) -> None:
        """It is over: what it counted holds."""
        assert self._found is not None
        former, self.live = self.live, self._found
        self._found = self._region = None
        self._sync({*former.groups, *self.live.groups})

    # --- tenants --------------------------------------------------------------------------

    def set_quotas(self, quotas: Iterable[Share], salts: frozenset[bytes]) -> None:
        """Sets all quotas anew; values of salts that have none any more count for no salt.

        Args:
            quotas: of each tenant one.
            salts: digests of those that have one.
        """
        self.shares.set_quotas(quotas)
        former, self.live.groups = self.live.groups, {}
        for whose, (number, num_bytes) in former.items():
            now = grouped(whose, salts)
            others, other_bytes = self.live.groups.get(now, (0, 0))
            self.live.groups[now] = number + others, num_bytes + other_bytes
        self._sync({*former, *self.live.groups})

    def _sync(self, groups: Iterable[Whose]) -> None:
        """Tells the shares what some groups have now."""
        for whose in groups:
            number = self.shares.number(whose)
            now = self.live.groups.get(whose, (0, 0))
            then = self._told.get(whose, (0, 0))
            self.shares.count(number, now[0] - then[0], now[1] - then[1])
            if now == (0, 0):
                self._told.pop(whose, None)
            else:
                self._told[whose] = now

    def _settle(self) -> None:
        """What changed while something was listed: what is in no list is not looked at later."""
        assert self._found is not None
        noted, self._noted, self._region = self._noted, [], None
        for at, before, after in noted:
            if at is not None and not self._is_ahead(at):
                _apply(self._found, before, after)

    def _is_ahead(self, at: At) -> bool:
        return at.space in self._spaces or (at.space == self._space and at.fan in self._fans)


def grouped(whose: Whose, salts: frozenset[bytes]) -> Whose:
    """Whose a value is, its salt only where that is one of some."""
    return whose if not whose.salt or whose.salt in salts else Whose(whose.space)


def _apply(sums: Sums, before: Value | None, after: Value | None) -> None:
    if before is not None:
        sums.remove(before)
    if after is not None:
        sums.add(after)
