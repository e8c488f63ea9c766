"""Who may touch the arena's extents: a file for each process, written before it is given access.

Purpose: a server that takes the arena over overwrites nothing that a process of a former
incarnation may still read or write. A file names the process so that no later one is taken for it:
number, start, boot and pid namespace. Must not know: how a process is watched, what it was given.
Runs in: the side socket's thread for engines, the keepers' for copiers and porters, the main thread
at start and end; each file is its writer's alone.
"""

from __future__ import annotations

import errno
import os
import re
import select
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from protocol import limits
from protocol.ids import ID_BYTES, Epoch, Fingerprint, InstanceId, Token
from server.shell.namespacefiles import SHORTAGES, read_whole, write_whole

FOLDER = "parties"
MAX_FILE_BYTES = 64 << 10
_NAME = re.compile(r"[0-9a-f]{32}(\.new)?")
_MAX_PID = 1 << 31
_NO_PROCESS = frozenset({errno.ESRCH, errno.EINVAL, errno.ENOENT})
"""Nobody has the number, or a thread of another process has it (EINVAL before Linux 6.9)."""

Hex = Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?$")]


class Party(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One process, as its file says.

    Attributes:
        role: what it may do: a server writes records, copiers and porters slots, an engine reads.
        pid: its number in ``space``, or 0 where the server cannot see its number.
        start_ticks: when it started, in clock ticks since boot.
        boot: of the kernel, a text.
        space: in which namespaces its number and its start are told.
        epoch: the incarnation that gave it access, hexadecimal.
        instance: the engine it belongs to, hexadecimal, or empty.
        token: digest of its token, hexadecimal, or empty.
        namespaces: fingerprints it may read, hexadecimal; None for all.
        version: of this format.
    """

    role: Literal["server", "copier", "porter", "engine"]
    pid: Annotated[int, Meta(ge=0, lt=_MAX_PID)]
    start_ticks: Annotated[int, Meta(ge=0, le=limits.MAX_U63)]
    boot: Annotated[str, Meta(max_length=64)]
    space: Annotated[str, Meta(max_length=64)]
    epoch: Hex
    instance: Hex = ""
    token: Hex = ""
    namespaces: tuple[Hex, ...] | None = None
    version: Literal[1] = 1

    @property
    def fingerprints(self) -> frozenset[Fingerprint] | None:
        """Namespaces it may read, or None for all."""
        if self.namespaces is None:
            return None
        return frozenset(Fingerprint(bytes.fromhex(name)) for name in self.namespaces)


@dataclass(frozen=True)
class Surroundings:
    """Where process numbers of this process mean what they mean.

    Attributes:
        boot: of the kernel.
        space: pid and time namespace.
    """

    boot: str
    space: str

    @classmethod
    def here(cls) -> Surroundings:
        """Those of this process.

        Raises:
            OSError: /proc is not mounted.
        """
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        names = []
        for kind in ("pid", "time"):
            try:
                names.append(os.readlink(f"/proc/self/ns/{kind}"))
            except FileNotFoundError:  # a kernel before 5.6 has no time namespaces
                names.append(f"{kind}:none")
        return cls(boot, " ".join(names))


def start_ticks(pid: int) -> int:
    """When a process started.

    Args:
        pid: its number here.

    Returns:
        Clock ticks since boot.

    Raises:
        OSError: there is none, or it is hidden from this user.
    """
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[19])


def digest(token: Token) -> str:
    """What a file says of a token: enough to know it again, not enough to use it."""
    return sha256(b"kvkeep party" + token).hexdigest()[: 2 * ID_BYTES]


class Parties:
    """Files of the processes that this incarnation gives access to.

    Args:
        directory: the arena's; its folder of parties exists.
        epoch: of this server.
        here: its surroundings.
        stand: makes the directory again if somebody removed it; OSError when it cannot.
    """

    def __init__(
        self,
        directory: str,
        epoch: Epoch,
        here: Surroundings,
        stand: Callable[[], None] = lambda: None,
    ) -> None:
        self._stand = stand
        self._folder = f"{directory}/{FOLDER}"
        self._epoch = epoch
        self.here = here

    def own(self, role: Literal["server", "copier", "porter"], pid: int) -> str:
        """Writes the file of a process of the server's own.

        Args:
            role: which one.
            pid: a process that is not waited for yet.

        Returns:
            Path of its file, for ``drop``.

        Raises:
            OSError: it cannot be written; the process must not be given access then.
        """
        return self.write(self.party(role, pid, start_ticks(pid)), None)

    def engine(self, pid: int, pidfd: int, instance: InstanceId, token: Token) -> EngineParty:
        """Begins to keep account of an engine's process; no file is written yet.

        Args:
            pid: its number here, or 0 when it lies where its number cannot be seen.
            pidfd: of the same process.
            instance: the engine it belongs to.
            token: what it was given.

        Returns:
            Its account.
        """
        ticks = 0
        try:
            ticks = start_ticks(pid) if pid else 0
        except OSError:  # it is hidden from this user, or gone
            pid = 0
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        if poller.poll(0):  # the number may have passed on before its start was read
            pid = ticks = 0
        return EngineParty(self, pid, ticks, instance, token)

    def party(
        self, role: Literal["server", "copier", "porter", "engine"], pid: int, ticks: int
    ) -> Party:
        """What is said of a process of this incarnation."""
        return Party(
            role=role,
            pid=pid,
            start_ticks=ticks,
            boot=self.here.boot,
            space=self.here.space,
            epoch=self._epoch.hex(),
        )

    def write(self, party: Party, path: str | None) -> str:
        """Writes a file, or writes it again; returns its path. OSError when that cannot be done."""
        self._stand()
        path = path or f"{self._folder}/{os.urandom(ID_BYTES).hex()}"
        write_whole(path, msgspec.json.encode(party))
        return path


class EngineParty:
    """What one process of an engine was given.

    Attributes:
        pid: its number here, or 0.
        start_ticks: its start, or 0.
    """

    def __init__(
        self, parties: Parties, pid: int, ticks: int, instance: InstanceId, token: Token
    ) -> None:
        self.pid = pid
        self.start_ticks = ticks
        self._parties = parties
        self._instance = instance
        self._token = token
        self._path: str | None = None
        self._given: frozenset[Fingerprint] = frozenset()

    def give(self, fingerprint: Fingerprint) -> None:
        """Notes that it may read a namespace's extents from now on, before the first is passed.

        Args:
            fingerprint: of the namespace.

        Raises:
            OSError: the file cannot be written; the process must not be given access then.
        """
        if fingerprint in self._given:
            return
        given = self._given | {fingerprint}
        party = msgspec.structs.replace(
            self._parties.party("engine", self.pid, self.start_ticks),
            instance=self._instance.hex(),
            token=digest(self._token),
            namespaces=tuple(sorted(name.hex() for name in given)),
        )
        self._path = self._parties.write(party, self._path)
        self._given = given

    def end(self) -> None:
        """Removes its file: it has exited, or has nothing of the arena mapped any more."""
        if self._path is not None:
            drop(self._path)
            self._path = None
            self._given = frozenset()


def drop(path: str) -> None:
    """Removes a party's file; one that is gone already is fine, one that stays is looked at anew.

    Args:
        path: of the file.
    """
    try:
        os.unlink(path)
    except OSError:  # the next server finds that the process is gone
        pass


def read(directory: str) -> dict[str, Party | str]:
    """Reads what former incarnations left.

    Args:
        directory: the arena's; its folder of parties exists.

    Returns:
        By path, the party, or why the file is none. What is not named like one is not looked at;
        files that a killed server had not finished are removed, since nobody got access by them.
    """
    found: dict[str, Party | str] = {}
    folder = f"{directory}/{FOLDER}"
    for entry in sorted(os.listdir(folder)):
        path = f"{folder}/{entry}"
        if _NAME.fullmatch(entry) is None:
            continue
        if entry.endswith(".new"):
            drop(path)
            continue
        try:
            found[path] = msgspec.json.decode(read_whole(path, MAX_FILE_BYTES), type=Party)
        except FileNotFoundError:
            continue
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            found[path] = f"no party: {error}"
    return found


def watch(party: Party, here: Surroundings) -> int | None:
    """Looks whether a party is still there.

    The number is opened first and its start compared after: had the number passed on to another
    process, that one would have started later.

    Args:
        party: from its file.
        here: surroundings of this process.

    Returns:
        A pidfd, readable once it has exited, which the caller closes; -1 when it is gone; None
        when that cannot be told from here.

    Raises:
        OSError: out of descriptors or memory.
    """
    if party.boot != here.boot:
        return -1
    if party.pid == 0 or party.space != here.space:
        return None
    try:
        pidfd = os.pidfd_open(party.pid)
    except OSError as error:
        if error.errno in SHORTAGES:
            raise
        return -1 if error.errno in _NO_PROCESS else None
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    try:
        is_other = start_ticks(party.pid) != party.start_ticks
    except OSError:  # just gone, or hidden from this user: the pidfd tells which
        is_other = False
    if is_other or poller.poll(0):
        os.close(pidfd)
        return -1
    return pidfd
