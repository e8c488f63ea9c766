"""Another user's server is trusted where an administrator put it, and nowhere else."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adapter.link import Link, LinkConfig
from adapter.side import SideConnection
from adapter.stranger import weak_step
from protocol.errors import ErrorCode, UnreachableError
from protocol.ids import InstanceId
from tests.adapter.linking import make_pool, register
from tests.adapter.responder import Responder, until
from tests.wire.asuser import needs_root

pytestmark = needs_root

SERVER, THIRD = 60_001, 60_002


@contextmanager
def listening(path: Path, uid: int) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        os.setegid(uid)
        os.seteuid(uid)  # the credentials that a client sees are those at listen()
        try:
            listener.bind(str(path))
            listener.listen(8)
        finally:
            os.seteuid(0)
            os.setegid(0)
        yield


@pytest.fixture
def folder(short_dir: Path) -> Path:
    """``<short>/kvkeep``, made by root for the server's user: what an administrator does."""
    short_dir.chmod(0o755)
    made = short_dir / "kvkeep"
    made.mkdir(mode=0o755)
    os.chown(made, SERVER, SERVER)
    return made


def test_what_an_administrator_made_for_another_user_is_trusted(folder: Path) -> None:
    assert weak_step(str(folder), SERVER) is None
    with listening(folder / "side", SERVER):
        SideConnection(f"{folder}/side").close()


def test_a_third_user_listening_there_is_not(folder: Path) -> None:
    folder.chmod(0o777)
    with listening(folder / "side", THIRD), pytest.raises(UnreachableError) as caught:
        SideConnection(f"{folder}/side")
    assert caught.value.code == ErrorCode.NOT_PERMITTED
    folder.chmod(0o755)
    assert weak_step(str(folder), THIRD) == str(folder)


def test_over_tcp_only_the_systems_folder_counts(folder: Path) -> None:
    with listening(folder / "side", SERVER):
        with pytest.raises(UnreachableError, match="over tcp") as caught:
            SideConnection(f"{folder}/side", is_told=True)
        assert caught.value.code == ErrorCode.NOT_PERMITTED
        assert f"user {SERVER}" in caught.value.message


def test_an_engine_gives_no_pool_to_whoever_names_a_folder_over_tcp(folder: Path) -> None:
    os.setegid(SERVER)
    os.seteuid(SERVER)
    try:
        server = Responder(folder, "tcp://127.0.0.1:*")
    finally:
        os.seteuid(0)
        os.setegid(0)
    with server:
        link = Link(LinkConfig(server.url, InstanceId(os.urandom(16)), "test"))
        link.start()
        pool = make_pool()
        register(link, pool)
        refusal = until(lambda: link.refusal or link.joined, 10)
        assert isinstance(refusal, UnreachableError)
        assert refusal.code == ErrorCode.NOT_PERMITTED
        assert server.pools == []
        assert link.close(5)


@pytest.mark.parametrize("is_told", [False, True])
def test_the_own_users_server_is_trusted_wherever_it_is(folder: Path, is_told: bool) -> None:
    folder.parent.chmod(0o777)
    with listening(folder / "side", os.geteuid()):
        SideConnection(f"{folder}/side", is_told).close()


@pytest.mark.parametrize("mode", [0o775, 0o777, 0o1777], ids=oct)
def test_a_folder_in_which_others_can_put_a_socket_is_refused(folder: Path, mode: int) -> None:
    with listening(folder / "side", SERVER):
        folder.chmod(mode)
        with pytest.raises(UnreachableError, match=f"could have made {folder}$") as caught:
            SideConnection(f"{folder}/side")
        assert caught.value.code == ErrorCode.NOT_PERMITTED


@pytest.mark.parametrize("mode", [0o775, 0o777, 0o1777], ids=oct)
def test_a_folder_that_the_server_may_have_made_itself_is_refused(folder: Path, mode: int) -> None:
    folder.parent.chmod(mode)  # as /tmp: anybody can make a folder "kvkeep" there first
    assert weak_step(str(folder), SERVER) == str(folder.parent)


def test_a_folder_below_a_strangers_own_is_refused(folder: Path) -> None:
    os.chown(folder.parent, SERVER, SERVER)
    assert weak_step(str(folder), SERVER) == str(folder.parent.parent)  # /tmp, where it is theirs
    os.chown(folder.parent, 0, 0)
    assert weak_step(str(folder), SERVER) is None


def test_links_are_looked_at_on_both_sides(folder: Path) -> None:
    link = folder.parent / "link"
    link.symlink_to(folder)
    with listening(folder / "side", SERVER):
        SideConnection(f"{link}/side").close()  # root made the link
        open_to_all = folder.parent / "open"
        open_to_all.mkdir()
        open_to_all.chmod(0o1777)
        theirs = open_to_all / "link"
        theirs.symlink_to(folder)
        os.chown(theirs, THIRD, THIRD, follow_symlinks=False)
        with pytest.raises(UnreachableError, match=f"could have made {open_to_all}"):
            SideConnection(f"{theirs}/side")
        # Here the first way is safe and the second is not.
        far = open_to_all / "far"
        far.mkdir()
        os.chown(far, SERVER, SERVER)
    mine = folder.parent / "mine"
    mine.symlink_to(far)
    with listening(far / "side", SERVER), pytest.raises(UnreachableError, match=str(open_to_all)):
        SideConnection(f"{mine}/side")
