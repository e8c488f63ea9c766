"""Who may connect: modes of sockets and folders, groups by name, the second look at a peer."""

from __future__ import annotations

import grp
import os
import socket
import stat
from pathlib import Path

import pytest

from protocol.errors import ConfigError, ErrorCode
from server.shell import access
from server.shell.access import Access
from tests.wire.asuser import needs_root, run_as

GID, OTHER = 42_042, 42_043


def listening(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.bind(str(path))
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_by_default_only_the_own_user_and_root_come_in(short_dir: Path) -> None:
    own = access.resolve("")
    assert own == Access.own() == Access(os.geteuid())
    assert own.admits(os.geteuid(), [])
    assert own.admits(0, [])
    assert not own.admits(os.geteuid() + 1, [os.getegid(), 0])
    assert not own.admits(os.geteuid() + 1, None)
    own.make_folder(f"{short_dir}/f")
    assert mode(short_dir / "f") == 0o700
    with listening(short_dir / "f" / "s"):
        own.share(f"{short_dir}/f/s")
        assert mode(short_dir / "f" / "s") == 0o600
    own.check_reach(f"{short_dir}/f")  # nobody else is meant to get there


def test_with_a_group_its_members_come_in_and_nobody_else() -> None:
    shared = Access(1000, GID)
    assert shared.admits(1000, [])
    assert shared.admits(0, [])
    assert shared.admits(1001, [5, GID])
    assert not shared.admits(1001, [5, GID + 1])
    assert not shared.admits(1001, [])
    # In too many groups for the kernel to list: the socket's mode has let it connect.
    assert shared.admits(1001, None)


@needs_root
def test_socket_and_folder_are_given_to_the_group(short_dir: Path) -> None:
    short_dir.chmod(0o755)
    shared = Access(os.geteuid(), GID)
    folder = short_dir / "f"
    shared.make_folder(str(folder))
    assert (mode(folder), folder.stat().st_gid) == (0o750, GID)
    shared.check_reach(str(folder))
    with listening(folder / "s") as door:
        shared.share(f"{folder}/s")
        assert (mode(folder / "s"), (folder / "s").stat().st_gid) == (0o660, GID)
        door.listen(8)

        def connect() -> str:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                try:
                    client.connect(f"{folder}/s")
                except PermissionError:
                    return "refused"
            return "connected"

        assert run_as(connect, 60_001, GID) == "connected"
        assert run_as(connect, 60_001, OTHER, [GID]) == "connected"
        assert run_as(connect, 60_001, OTHER) == "refused"

        def replace() -> str:
            try:
                os.unlink(f"{folder}/s")
            except PermissionError:
                return "refused"
            return "removed"

        assert run_as(replace, 60_001, GID) == "refused"


def test_a_link_in_the_sockets_place_is_not_followed(short_dir: Path) -> None:
    (short_dir / "precious").write_text("data")
    (short_dir / "precious").chmod(0o644)
    (short_dir / "s").symlink_to(short_dir / "precious")
    with pytest.raises(OSError, match="replaced"):
        Access.own().share(f"{short_dir}/s")
    with pytest.raises(OSError, match="replaced"):
        Access.own().share(f"{short_dir}/precious")
    assert mode(short_dir / "precious") == 0o644


@needs_root
def test_a_folder_that_is_there_already_is_opened_for_the_group(short_dir: Path) -> None:
    folder = short_dir / "f"
    folder.mkdir(mode=0o700)
    Access(os.geteuid(), GID).make_folder(str(folder))
    assert (mode(folder), folder.stat().st_gid) == (0o750, GID)


@needs_root
@pytest.mark.parametrize("case", ["another's", "writable", "link", "file"])
def test_a_folder_that_others_may_use_for_their_sockets_is_refused(
    short_dir: Path, case: str
) -> None:
    folder = short_dir / "f"
    if case == "file":
        folder.write_text("")
    else:
        folder.mkdir(mode=0o755)
    if case == "another's":
        os.chown(folder, 60_001, 60_001)
    elif case == "writable":
        folder.chmod(0o777)
    elif case == "link":
        folder.rename(short_dir / "real")
        folder.symlink_to(short_dir / "real")
    before = folder.stat()
    with pytest.raises(ConfigError) as caught:
        Access(os.geteuid(), GID).make_folder(str(folder))
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert (folder.stat().st_mode, folder.stat().st_gid) == (before.st_mode, before.st_gid)


def test_a_way_that_keeps_the_members_out_is_named(short_dir: Path) -> None:
    folder = short_dir / "closed" / "f"
    folder.mkdir(parents=True)
    short_dir.chmod(0o755)
    (short_dir / "closed").chmod(0o700)
    shared = Access(os.geteuid(), GID)
    with pytest.raises(ConfigError, match=rf"cannot pass {short_dir}/closed \(group") as caught:
        shared.check_reach(str(folder))
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    (short_dir / "closed").chmod(0o711)
    shared.check_reach(str(folder))
    (short_dir / "to").symlink_to(folder)
    folder.chmod(0o750)
    with pytest.raises(ConfigError, match=rf"{folder} "):
        shared.check_reach(f"{short_dir}/to")


def test_a_group_is_found_by_name_and_by_number() -> None:
    mine = os.getegid()
    assert access.resolve(str(mine)).gid == mine
    assert access.resolve(grp.getgrgid(mine).gr_name).gid == mine


@pytest.mark.parametrize("group", ["no-such-group", "-1", "4294967295", "99999999999", "1 2", "٣"])
def test_a_group_that_does_not_exist_is_refused_by_name(group: str) -> None:
    with pytest.raises(ConfigError, match="no group") as caught:
        access.resolve(group)
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert caught.value.detail["key"] == "group"


def test_the_group_of_unknown_users_is_refused() -> None:
    gid = int(Path("/proc/sys/kernel/overflowgid").read_text())
    with pytest.raises(ConfigError, match="cannot name"):
        access.resolve(str(gid))


@needs_root
def test_a_group_that_this_user_is_not_in_is_refused() -> None:
    def resolved(group: str) -> str:
        try:
            return str(access.resolve(group).gid)
        except ConfigError as error:
            return error.message

    assert run_as(lambda: resolved(str(GID)), 60_001, OTHER, [GID]) == str(GID)
    assert run_as(lambda: resolved(str(OTHER)), 60_001, OTHER) == str(OTHER)
    assert "no member" in run_as(lambda: resolved(str(GID)), 60_001, OTHER)
