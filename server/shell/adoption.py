"""What a predecessor left in the arena's folder, opened and looked through.

Purpose: sort whole extents from what is torn, foreign or of another format, find out which
processes may still touch them, and hand the core what it decides about. Nothing that lies there
can stop the start. Must not know: what records mean, which extents fit the budget. Runs in: the
main thread, at start.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from protocol.errors import KvkeepError
from protocol.extents import HEADER_DTYPE, ExtentGeometry, unpack_header
from protocol.ids import ArenaId, ExtentId, Fingerprint
from protocol.namespace import Namespace
from server.core.adoption import (
    HOLDS_NOTHING,
    Adoption,
    FoundExtent,
    FoundParty,
    Heritage,
    PartyId,
)
from server.shell import extents, namespacefiles, parties
from server.shell.awaited import AwaitedParty
from server.shell.descriptors import Descriptor
from server.shell.extents import ExtentFile, extent_path
from server.shell.parties import Party, Surroundings

_EXTENT_NAME = re.compile(r"([0-9]{8,10})" + re.escape(extents.EXTENT_SUFFIX))
MAX_REASONS = 8
"""Named in the log; the rest is counted together."""

_MAX_EXTENT = 1 << 31
"""Names beyond are none that a server gave; one must not make the next ids overflow."""


class Use(Enum):
    """What other processes have an extent open or mapped for."""

    NONE = 0
    READ = 1
    WRITTEN = 2


class NotAdoptableError(Exception):
    """A file of the arena's folder is no extent that can be taken over; the text says why."""


@dataclass
class Found:
    """What lies in the folder.

    Attributes:
        files: whole extents, open.
        namespaces: by fingerprint.
        awaited: processes that may still touch the extents.
        touched: for each of them, namespaces with an extent that somebody has open.
        next_extent: no file of the folder has this id or a higher one.
        dropped: what was removed or left aside, by reason, and how often.
    """

    files: dict[ExtentId, ExtentFile] = field(default_factory=dict)
    namespaces: dict[Fingerprint, Namespace] = field(default_factory=dict)
    awaited: list[AwaitedParty] = field(default_factory=list)
    touched: dict[PartyId, frozenset[Fingerprint]] = field(default_factory=dict)
    next_extent: int = 1
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def held_bytes(self) -> int:
        """Memory that the extents take already."""
        return sum(file.geometry.file_bytes for file in self.files.values())

    def heritage(self) -> Heritage:
        """What the core decides about."""
        return Heritage(
            namespaces=self.namespaces,
            extents=[FoundExtent(file.geometry, file.records) for file in self.files.values()],
            parties=[FoundParty(party, names) for party, names in self.touched.items()],
            next_extent=self.next_extent,
        )

    def close(self) -> None:
        """Gives everything back; what lies in the folder stays."""
        for file in self.files.values():
            file.close()
        for one in self.awaited:
            one.close()


def look(
    directory: str, arena: ArenaId, here: Surroundings, outdated: ArenaId | None = None
) -> Found:
    """Opens what can be taken over and removes what cannot.

    Args:
        directory: the arena's, locked.
        arena: its id.
        here: surroundings of this process.
        outdated: id that the arena had before the machine's last start, if that put an end to it.

    Returns:
        What was found; the caller closes it.

    Raises:
        OSError: out of descriptors or memory; whatever is whole is left for a start that has them.
    """
    found = Found()
    try:
        with _leases_broken_in_silence():
            uses = _open_extents(found, directory, arena, outdated)
        found.namespaces, bad = namespacefiles.read(directory)
        for path, why in bad.items():
            _remove(found, path, why)
        _judge_parties(found, directory, here, uses)
    except BaseException:
        found.close()
        raise
    return found


@dataclass
class _Uses:
    """Namespaces with an extent that another process has open, or may have."""

    read: set[Fingerprint] = field(default_factory=set)
    written: set[Fingerprint] = field(default_factory=set)

    def touched_by(self, party: Party | None) -> frozenset[Fingerprint]:
        """Those of which a party may have something open; None for one that is not known."""
        if party is None:
            return frozenset(self.read)
        if party.fingerprints is None:  # the server's own, which map files to write in them
            return frozenset(self.written)
        return frozenset(self.read) & party.fingerprints


def _open_extents(found: Found, directory: str, arena: ArenaId, outdated: ArenaId | None) -> _Uses:
    uses = _Uses()
    for name in sorted(os.listdir(directory)):
        match = _EXTENT_NAME.fullmatch(name)
        if match is None:  # whatever else lies there is not ours
            continue
        path, extent = f"{directory}/{name}", ExtentId(int(match[1]))
        if extent < _MAX_EXTENT:
            found.next_extent = max(found.next_extent, extent + 1)
        try:
            if path != extent_path(directory, extent) or extent >= _MAX_EXTENT:
                raise NotAdoptableError("not a name that a server gives")
            file, use = reopen(directory, extent, arena, outdated)
        except NotAdoptableError as error:
            _remove(found, path, str(error))
            continue
        found.files[extent] = file
        if use is not Use.NONE:
            uses.read.add(file.geometry.fingerprint)
        if use is Use.WRITTEN:
            uses.written.add(file.geometry.fingerprint)
    return uses


def _remove(found: Found, path: str, why: str) -> None:
    try:
        os.unlink(path)
    except OSError as error:  # a folder, for instance
        is_folder = error.errno == errno.EISDIR  # which the reason says already
        why = f"{why} (left there" + (")" if is_folder else f": {error.strerror})")
    found.dropped[why] += 1


def reopen(
    directory: str, extent: ExtentId, arena: ArenaId, outdated: ArenaId | None = None
) -> tuple[ExtentFile, Use]:
    """Opens an extent file that a predecessor left.

    Args:
        directory: the arena's.
        extent: its id, as its name says.
        arena: whose it must be.
        outdated: whose it may have been before the machine's last start, for the reason.

    Returns:
        The file, which the caller closes, and what others have it open or mapped for.

    Raises:
        NotAdoptableError: it is torn, foreign, of another format, or cannot be opened.
        OSError: out of descriptors or memory.
    """
    path = extent_path(directory, extent)
    fds: list[int] = []
    try:
        # Without O_NONBLOCK a pipe would keep the start waiting.
        fds.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW))
        geometry = _check_whole(fds[0], extent, arena, outdated)
        use = _use(fds[0])
        os.fchmod(fds[0], 0o600)
        # This very file, whatever its name stands for by now.
        fds.append(os.open(f"/proc/self/fd/{fds[0]}", os.O_RDWR | os.O_CLOEXEC))
        os.fchmod(fds[0], 0o400)
        if os.fstat(fds[1]).st_blocks * 512 < geometry.file_bytes:
            os.posix_fallocate(fds[1], 0, geometry.file_bytes)  # or a write could be a SIGBUS
        records = extents.map_records(fds[1], geometry)
    except (OSError, ValueError, KvkeepError, NotAdoptableError) as error:
        for fd in fds:
            os.close(fd)
        is_short = isinstance(error, OSError) and error.errno in namespacefiles.SHORTAGES
        if is_short or isinstance(error, NotAdoptableError):
            raise
        text = error.strerror if isinstance(error, OSError) else None
        if isinstance(error, OSError) and error.errno == errno.ELOOP:
            text = "a symbolic link"
        text = error.message if isinstance(error, KvkeepError) else text
        raise NotAdoptableError(text or str(error)) from error
    readable, writable = map(Descriptor, fds)
    return ExtentFile(geometry, path, writable, readable, records), use


def _check_whole(
    fd: int, extent: ExtentId, arena: ArenaId, outdated: ArenaId | None
) -> ExtentGeometry:
    found = os.fstat(fd)
    if stat.S_ISDIR(found.st_mode):
        raise NotAdoptableError("a folder")
    if not stat.S_ISREG(found.st_mode):
        raise NotAdoptableError("not a regular file")
    if found.st_uid != os.geteuid():
        raise NotAdoptableError("the file belongs to another user")
    geometry, whose = unpack_header(os.pread(fd, HEADER_DTYPE.itemsize, 0))
    if outdated is not None and whose == outdated:
        raise NotAdoptableError("written before the machine's last start, going by the file boot")
    if whose != arena:
        raise NotAdoptableError("of another arena")
    if geometry.extent != extent:
        raise NotAdoptableError("the header is another extent's")
    if found.st_size != geometry.file_bytes:
        raise NotAdoptableError("not as long as its header says")
    return geometry


def _use(fd: int) -> Use:
    """What open files and mappings of it exist, in whatever process and container.

    The kernel grants a write lease only where there is none besides this read-only one, and a
    read lease only where none is writable. They are given back at once.
    """
    for lease, use in ((fcntl.F_WRLCK, Use.NONE), (fcntl.F_RDLCK, Use.READ)):
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, lease)
        except OSError:  # somebody has it, or such leases are not to be had here
            continue
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return use
    return Use.WRITTEN


def is_unused(paths: Iterable[str]) -> bool:
    """Whether no process has any of these files open or mapped, this one included.

    Args:
        paths: of extents of this user; one that is gone counts as unused.

    Returns:
        False also where that cannot be told.
    """
    try:
        with _leases_broken_in_silence():
            return all(_is_unused(path) for path in paths)
    except OSError:
        return False


def _is_unused(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    try:
        return _use(fd) is Use.NONE
    finally:
        os.close(fd)


@contextmanager
def _leases_broken_in_silence() -> Iterator[None]:
    """Ignores SIGIO, of which a process ends.

    The kernel sends it to who has the lease of a file that somebody opens in that moment.
    """
    old = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGIO, signal.SIG_DFL if old is None else old)


def _judge_parties(found: Found, directory: str, here: Surroundings, uses: _Uses) -> None:
    for path, party in parties.read(directory).items():
        touched = uses.touched_by(None if isinstance(party, str) else party)
        if not touched:  # whatever became of the process, it has nothing of it open
            parties.drop(path)
            continue
        if isinstance(party, str):
            found.dropped[f"{party}; extents wait for whoever it was"] += 1
            awaited = AwaitedParty(_next_party(found), path, None)
        else:
            pidfd = parties.watch(party, here)
            # A server that cannot be seen from here is gone all the same: its lock was free.
            if pidfd == -1 or (pidfd is None and party.role == "server"):
                parties.drop(path)
                continue
            awaited = AwaitedParty(_next_party(found), path, party, pidfd)
        found.awaited.append(awaited)
        found.touched[awaited.party] = touched


def _next_party(found: Found) -> PartyId:
    return PartyId(len(found.awaited) + 1)


def forget_namespaces(directory: str, found: Found, kept: set[Fingerprint]) -> None:
    """Removes the files of namespaces without extents.

    Args:
        directory: the arena's.
        found: what was there.
        kept: namespaces of the extents that were taken over.
    """
    for name in found.namespaces.keys() - kept:
        namespacefiles.drop(directory, name)


def summary(found: Found, adoption: Adoption) -> str:
    """One line for the log about what was taken over and what was not.

    Args:
        found: what was there.
        adoption: what the core made of it.

    Returns:
        Empty when the folder was.
    """
    if not (found.files or found.dropped):
        return ""
    parts = [f"adopted {adoption.num_chunks} chunks in {len(adoption.kept)} extents"]
    dropped = found.dropped + Counter(adoption.dropped.values())
    if dropped:
        parts.append("dropped files: " + _counted(dropped))
    if adoption.records_dropped:
        parts.append("dropped records: " + _counted(Counter(adoption.records_dropped)))
    if found.awaited:
        who = Counter(one.role for one in found.awaited)
        parts.append(
            f"{adoption.num_sealed} extents are not written to until former processes are gone: "
            + ", ".join(f"{role} {count}" for role, count in sorted(who.items()))
        )
    return "; ".join(parts)


def has_lost(found: Found, adoption: Adoption) -> bool:
    """Whether something that may have held chunks was not taken over."""
    return bool(found.dropped) or any(
        reason != HOLDS_NOTHING for reason in adoption.dropped.values()
    )


def _counted(reasons: Counter[str]) -> str:
    shown = sorted(reasons.most_common(MAX_REASONS))
    more = reasons.total() - sum(count for _, count in shown)
    parts = [f"{count} {reason}" for reason, count in shown]
    return ", ".join([*parts, f"{more} for other reasons"] if more else parts)
