"""Who may connect: this process's user, root, and the members of one group if the settings name it.

Purpose: the modes of sockets and of the folders they lie in, and the second look at a peer that
the kernel let through. Must not know: what peers may ask for, the arena (which is for this user
alone, whatever is set here). Runs in: the main thread at start; ``admits`` in the side socket's
thread.
"""

from __future__ import annotations

import errno
import grp
import os
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import ConfigError, ErrorCode
from server.shell.folders import make_private_directory

_OVERFLOW_GID = "/proc/sys/kernel/overflowgid"
_MAX_GID = (1 << 32) - 2


@dataclass(frozen=True)
class Access:
    """Who may connect.

    Attributes:
        uid: the server's user.
        gid: the group whose members may connect as well, or None.
    """

    uid: int
    gid: int | None = None

    @classmethod
    def own(cls) -> Access:
        """This process's user alone (and root, whom nothing keeps out)."""
        return cls(os.geteuid())

    @property
    def socket_mode(self) -> int:
        """Permission bits of sockets: whoever may write to one may connect."""
        return 0o600 if self.gid is None else 0o660

    @property
    def folder_mode(self) -> int:
        """Permission bits of a folder made for sockets: the group may pass, not write."""
        return 0o700 if self.gid is None else 0o750

    def admits(self, uid: int, gids: Collection[int] | None) -> bool:
        """Whether a peer may come in.

        Args:
            uid: of the peer, as the kernel says.
            gids: its groups, supplementary ones included; None when the kernel would not tell
                (it is in too many), so that the socket's mode, which let it connect, decides.
        """
        if uid in (self.uid, 0):
            return True
        return self.gid is not None and (gids is None or self.gid in gids)

    def share(self, path: str) -> None:
        """Gives a socket its group and mode.

        Args:
            path: of a socket that this process made.

        Raises:
            OSError: it is gone, or the group is not one that this process may give.
        """
        # By descriptor: where others may write they could have put a link in its place.
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                raise FileNotFoundError(errno.ENOENT, "it was replaced by something else", path)
            real = f"/proc/self/fd/{fd}"
            os.chmod(real, 0o600)  # first: the old group's bits are not for the new one
            if self.gid is not None:
                os.chown(real, -1, self.gid)
                os.chmod(real, self.socket_mode)
        finally:
            os.close(fd)

    def make_folder(self, path: str) -> None:
        """Makes a folder for sockets, or checks the one that is there.

        One that is ours, but not of the group, is given to it. Others may not write there: they
        could put their own socket in our socket's place.

        Args:
            path: absolute; its parent exists.

        Raises:
            ConfigError: INVALID_CONFIG when it is no folder, is somebody else's, or others may
                write in it.
            OSError: it cannot be made.
        """
        make_private_directory(path)
        if self.gid is None:
            return
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if found.st_gid != self.gid:
                os.fchown(fd, -1, self.gid)
            os.fchmod(fd, stat.S_IMODE(found.st_mode) | self.folder_mode)
        finally:
            os.close(fd)

    def check_reach(self, folder: str) -> None:
        """Checks that the group's members can get to a folder at all.

        Args:
            folder: absolute, of the sockets; it exists.

        Raises:
            ConfigError: INVALID_CONFIG naming the first folder on the way that keeps them out.
        """
        if self.gid is None:
            return
        real = Path(folder).resolve()
        for step in (*reversed(real.parents), real):
            found = step.stat()
            bit = stat.S_IXGRP if found.st_gid == self.gid else stat.S_IXOTH
            if not found.st_mode & bit:
                raise _invalid(
                    str(self.gid),
                    f"its members cannot pass {step} (group {found.st_gid}, mode "
                    f"{stat.S_IMODE(found.st_mode):04o}) on the way to the socket",
                )


def resolve(group: str) -> Access:
    """Who may connect by the setting ``group``.

    Args:
        group: name or number, or empty for nobody else.

    Returns:
        The rule.

    Raises:
        ConfigError: INVALID_CONFIG: there is no such group, this user cannot give files to it, or
            it is the one that stands for users the kernel cannot name.
    """
    if not group:
        return Access.own()
    gid = _number(group)
    if gid == _overflow_gid():
        raise _invalid(group, "this group stands for users whom the kernel cannot name")
    if os.geteuid() != 0 and gid not in {os.getegid(), *os.getgroups()}:
        raise _invalid(group, f"user {os.geteuid()} is no member of it")
    return Access(os.geteuid(), gid)


def _number(group: str) -> int:
    if group.isascii() and group.isdecimal() and len(group) <= 10:
        gid = int(group)
        if gid <= _MAX_GID:
            return gid
    try:
        return grp.getgrnam(group).gr_gid
    except (KeyError, ValueError) as error:
        raise _invalid(group, "there is no group of this name or number") from error


def _overflow_gid() -> int:
    try:
        return int(Path(_OVERFLOW_GID).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 65534


def _invalid(group: str, why: str) -> ConfigError:
    return ConfigError(ErrorCode.INVALID_CONFIG, f"group={group!r}: {why}", key="group")
