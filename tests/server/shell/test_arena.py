"""The arena's directory: private, locked, kept for the next server or removed."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from protocol.errors import ConfigError, ErrorCode
from server.shell import arena as arenas
from server.shell import extents
from server.shell.arena import Arena
from tests.server.shell.geometry import make_geometry


def test_it_is_private_locked_and_gone_afterwards(shm_dir: Path) -> None:
    path = shm_dir / "a"
    arena = Arena(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert (path / "arena").read_text().strip() == arena.id.hex()
    with pytest.raises(ConfigError, match="in use by pid") as caught:
        Arena(str(path))
    assert caught.value.code == ErrorCode.ENDPOINT_IN_USE
    assert arena.free_bytes() > 0
    extents.create(str(path), make_geometry(), arena.id).close()
    (path / "parties" / ("0" * 32)).write_text("x")
    (path / "namespaces" / ("0" * 32)).write_text("x")
    arena.close(keep=False)
    assert not path.exists()


def test_the_next_server_finds_the_same_arena(shm_dir: Path) -> None:
    path = shm_dir / "a"
    first = Arena(str(path))
    extents.create(str(path), make_geometry(), first.id).close()
    (path / "note").write_text("somebody's")
    first.close(keep=True)
    assert not (path / "lock").exists()
    second = Arena(str(path))
    assert second.id == first.id
    assert (path / "00000001.extent").exists()
    second._lock.release()  # as the kernel does when its process is gone
    third = Arena(str(path))
    assert third.id == first.id
    third.close(keep=False)
    assert [left.name for left in path.iterdir()] == ["note"]


@pytest.mark.parametrize("keep", [True, False])
def test_what_tiers_are_still_to_forget_outlives_the_arena(shm_dir: Path, keep: bool) -> None:
    path = shm_dir / "a"
    first = Arena(str(path))
    extents.create(str(path), make_geometry(), first.id).close()
    (path / "owed" / "file").write_text("x")
    first.close(keep=keep)
    second = Arena(str(path))
    assert (second.id == first.id) == keep
    assert (path / "owed" / "file").read_text() == "x"
    (path / "owed" / "file").unlink()
    second.close(keep=False)
    assert not path.exists()


def test_what_is_kept_is_not_spoilt_by_a_thread_that_ends_too_late(shm_dir: Path) -> None:
    first = Arena(str(shm_dir / "a"))
    extents.create(str(shm_dir / "a"), make_geometry(), first.id).close()
    first.close(keep=True)
    with pytest.raises(OSError, match="let go"):
        first.foothold.stand()
    second = Arena(str(shm_dir / "a"))
    assert second.id == first.id
    second.close(keep=False)


@pytest.mark.parametrize("boot", [None, "another", "x" * 65])
def test_on_a_disk_nothing_is_known_again_after_the_machine_went_down(
    shm_dir: Path, tmp_path: Path, boot: str | None
) -> None:
    for path in (shm_dir / "a", tmp_path / "a"):
        first = Arena(str(path))
        extents.create(str(path), make_geometry(), first.id).close()
        written = (path / "boot").read_text()
        first.close(keep=True)
        (path / "boot").unlink()
        if boot is not None:
            (path / "boot").write_text(boot)
        second = Arena(str(path))
        assert (second.id == first.id) is first.is_in_memory
        assert second.outdated == (None if first.is_in_memory else first.id)
        assert (path / "arena").read_text().strip() == second.id.hex()
        assert (path / "boot").read_text() == written
        second.close(keep=True)
        third = Arena(str(path))
        assert third.id == second.id
        third.close(keep=False)
        assert not path.exists()


def test_an_arena_without_extents_is_not_kept(shm_dir: Path) -> None:
    Arena(str(shm_dir / "a")).close(keep=True)
    assert list(shm_dir.iterdir()) == []


def test_extents_that_hold_nothing_go_unless_somebody_has_one_mapped(shm_dir: Path) -> None:
    path = shm_dir / "a"
    first = Arena(str(path))
    mapped = extents.create(str(path), make_geometry(), first.id)
    first.close(keep=True, holds=False)
    assert (path / "00000001.extent").exists()
    mapped.close()
    second = Arena(str(path))
    assert second.id == first.id
    second.close(keep=True, holds=True)
    assert (path / "00000001.extent").exists()
    Arena(str(path)).close(keep=True, holds=False)
    assert list(shm_dir.iterdir()) == []


def test_quotas_outlive_an_arena_that_is_to_be_kept_and_no_other(
    shm_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path = shm_dir / "a"
    first = Arena(str(path))
    (path / "quotas").write_text("x")
    first.close(keep=True)
    assert [left.name for left in path.iterdir()] == ["quotas"]
    assert "quotas_kept" in caplog.text
    Arena(str(path)).close(keep=False)
    assert list(shm_dir.iterdir()) == []
    assert caplog.text.count("quotas_removed") == 1


@pytest.mark.parametrize("text", ["", "torn", "0" * 31, "0" * 32 + "\nmore", "G" * 32])
def test_an_identity_that_is_none_is_replaced(shm_dir: Path, text: str) -> None:
    path = shm_dir / "a"
    path.mkdir(mode=0o700)
    (path / "arena").write_text(text)
    (path / "namespaces").write_text("a file in the folder's place")
    (path / "parties").symlink_to(shm_dir)
    arena = Arena(str(path))
    assert (path / "arena").read_text().strip() == arena.id.hex()
    assert len(arena.id) == 16
    assert (path / "namespaces").is_dir()
    assert not (path / "parties").is_symlink()
    arena.close(keep=False)
    assert list(shm_dir.iterdir()) == []


def test_a_folder_in_shared_memory_is_known_as_such(shm_dir: Path) -> None:
    arena = Arena(str(shm_dir / "a"))
    assert arena.is_in_memory
    arena.close(keep=False)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722])
def test_a_directory_that_others_may_write_in_is_refused(shm_dir: Path, mode: int) -> None:
    path = shm_dir / "a"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(ConfigError, match="writable by nobody else"):
        Arena(str(path))


def test_a_file_or_a_link_in_its_place_is_refused(shm_dir: Path) -> None:
    (shm_dir / "file").write_text("")
    (shm_dir / "real").mkdir(mode=0o700)
    (shm_dir / "link").symlink_to(shm_dir / "real")
    for name, what in (("file", "no folder"), ("link", "a symbolic link")):
        with pytest.raises(ConfigError, match=f"arena-dir: {shm_dir}/{name} is {what}"):
            Arena(str(shm_dir / name))
    with pytest.raises(ConfigError, match=f"cannot be used: the folder {shm_dir}/missing"):
        Arena(str(shm_dir / "missing" / "a"))


def test_a_directory_that_others_may_read_is_kept(shm_dir: Path) -> None:
    path = shm_dir / "a"
    path.mkdir()
    path.chmod(0o755)
    arena = Arena(str(path))
    arena.close(keep=False)
    assert list(path.iterdir()) == []


def test_two_endpoints_of_one_user_have_two_arenas() -> None:
    one = arenas.default_directory("ipc:///a", 7)
    assert one.startswith("/dev/shm/kvkeep-7-")
    assert one != arenas.default_directory("ipc:///b", 7)
    assert one == arenas.default_directory("ipc:///a", 7)
