"""B37: an arena that the machine's real limits do not hold is refused at the start, by name.

Control groups of version 1 and 2 (a real one where this process may make it), the file system of
the arena, the process's own limits; and limits that are reached later.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from protocol.errors import ErrorCode, ReplyError
from protocol.messages import Done, Ping
from server.process import MIN_OPEN_FILES
from tests.faults.bystander import Bystander, fill, stats
from tests.faults.starting import launch, places, refused
from tests.wire.asuser import needs_root
from tests.wire.client import Engine, make_keys, make_namespace
from tests.wire.process import ServerProcess, wait_until

GIB, MIB = 1 << 30, 1 << 20


def write(folder: Path, **values: int | str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / name.replace("_DOT_", ".")).write_text(f"{value}\n")


GROUPS = {
    "v2 limit": {"memory_DOT_max": GIB, "memory_DOT_current": 0},
    "v2 throttle": {"memory_DOT_max": "max", "memory_DOT_high": GIB, "memory_DOT_current": 0},
    "v2 mostly used": {"memory_DOT_max": 16 * GIB, "memory_DOT_current": 15 * GIB},
}


@pytest.mark.parametrize("values", GROUPS.values(), ids=GROUPS)
def test_a_control_groups_limit_is_named(
    short_dir: Path, shm_dir: Path, values: dict[str, int | str]
) -> None:
    root = short_dir / "cgroup"
    write(root, **values)
    arguments = (*places(short_dir, shm_dir), "--cgroup-root", str(root))
    line = refused(*arguments, "--l1-size", "8G")
    assert "l1-size=8 GiB does not fit" in line
    assert "control group's memory limit" in line
    assert "leaves 1 GiB" in line
    assert list(shm_dir.iterdir()) == []
    with ServerProcess(short_dir, shm_dir / "s", "--cgroup-root", str(root)) as server:
        assert re.search(r"arena 512 MiB in", server.line)  # half of what is left


def own_group() -> Path | None:
    """This process's own group of the memory controller, if it is one that may be divided."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/")
        if number == "0" and not controllers:
            group = Path("/sys/fs/cgroup") / path.lstrip("/")
            if (group / "memory.max").exists():
                return group
    return None


@contextmanager
def limited_group(limit_bytes: int) -> Iterator[Path]:
    """A real control group with a limit; skips where none can be made."""
    parent = own_group()
    if parent is None or not os.access(parent, os.W_OK):
        pytest.skip("this process cannot make a control group of its own")
    group = parent / f"kvkeep-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error.strerror}")
    try:
        for name in ("memory.limit_in_bytes", "memory.max"):
            if (group / name).exists():
                (group / name).write_text(str(limit_bytes))
                yield group
                return
        pytest.skip("the control group has no memory limit")
    finally:
        assert wait_until(lambda: is_removed(group), 20)


def is_removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # a process in it is not reaped yet
        return False
    return True


def inside(group: Path) -> tuple[str, ...]:
    """A command that becomes another one inside a group."""
    return ("/bin/sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")


def test_a_real_control_group_bounds_the_arena(short_dir: Path, shm_dir: Path) -> None:
    with limited_group(300 * MIB) as group:
        line = refused(*places(short_dir, shm_dir), "--l1-size", "512M", prefix=inside(group))
        assert "l1-size=512 MiB does not fit" in line
        assert f"({group}/memory." in line
        with ServerProcess(
            short_dir, shm_dir / "s", "--log-level", "INFO", prefix=inside(group)
        ) as server:
            sized = re.search(r"arena ([0-9.]+) MiB in", server.line)
            assert sized is not None
            assert 60 <= float(sized[1]) <= 150  # half of what the group leaves


def test_a_full_arena_stays_below_a_real_control_groups_limit(
    short_dir: Path, shm_dir: Path
) -> None:
    """Not the size alone: server, copier and arena together live within what was checked."""
    limit_bytes = 400 * MIB
    with limited_group(limit_bytes) as group:
        arguments = ("--l1-size", "128M", "--extent-size", "4M")
        with ServerProcess(short_dir, shm_dir / "s", *arguments, prefix=inside(group)) as server:
            with Engine(server.url, server.side_path, num_pages=1024) as engine:
                engine.register()
                engine.pump_while_waiting()
                for number in range(12):
                    fill(engine, number)
                    engine.save(make_keys(number, 1024), list(range(1024)))
                assert stats(engine)["arena_used_bytes"] > 120 * MIB
            assert server.process.poll() is None
            assert len(server.children()) == 1
            events = group / "memory.events"
            if events.exists():
                assert "oom_kill 0" in events.read_text()
            else:
                assert "oom_kill 0" in (group / "memory.oom_control").read_text()


@contextmanager
def small_tmpfs(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "kvkeep", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@needs_root
def test_the_file_system_of_the_arena_bounds_it(short_dir: Path) -> None:
    """Containers often get 64 MiB of /dev/shm."""
    with small_tmpfs(short_dir / "shm", "64M") as mounted:
        line = refused(*places(short_dir, mounted), "--l1-size", "8G")
        assert "l1-size=8 GiB does not fit" in line
        assert re.search(r"file system leaves 6[34](\.[0-9])? MiB", line)
        assert list(mounted.iterdir()) == []
        with ServerProcess(short_dir, mounted / "s", "--log-level", "WARNING") as server:
            sized = re.search(r"arena ([0-9.]+) MiB in", server.line)
            assert sized is not None
            assert float(sized[1]) <= 64 * 0.9


@needs_root
def test_a_file_system_that_fills_up_later_is_an_error_and_no_fault(short_dir: Path) -> None:
    """A full tmpfs would be SIGBUS for whoever touches the pages: extents are allocated first."""
    with small_tmpfs(short_dir / "shm", "64M") as mounted:
        arguments = ("--l1-size", "48M", "--extent-size", "8M")
        with ServerProcess(short_dir, mounted / "s", *arguments) as server:
            bystander = Bystander(server)
            with open(mounted / "hog", "wb") as hog:
                os.posix_fallocate(hog.fileno(), 0, 52 * MIB)
            other = make_namespace(model="b37/late")
            with Engine(server.url, server.side_path, other) as late:
                with pytest.raises(ReplyError) as caught:
                    late.register()
                assert caught.value.code == ErrorCode.NO_ROOM
                assert caught.value.retryable
                assert "No space left" in caught.value.message
                late.wire.call(Ping(), Done)
            assert wait_until(lambda: "No space left" in server.log())
            bystander.check()
            (mounted / "hog").unlink()
            with Engine(server.url, server.side_path, other) as late:
                assert wait_until(lambda: registers(late), 10, every_s=0.2)
                assert late.extents
            bystander.check()
            bystander.close()


def registers(engine: Engine) -> bool:
    """Whether a registration gets through; one that does not is answered at once."""
    begun_s = time.monotonic()
    try:
        engine.register()
    except ReplyError as error:
        if error.code != ErrorCode.NO_ROOM:
            raise
    assert time.monotonic() - begun_s < 5
    return bool(engine.extents)


LIMITS = {
    "address space": (f"ulimit -v {2 << 20}", "RLIMIT_AS", ("--l1-size", "4G")),
    "file size": (
        "ulimit -f 4096",
        "RLIMIT_FSIZE",
        ("--l1-size", "64M", "--extent-size", "64M"),
    ),
}


@pytest.mark.parametrize(("command", "name", "sizes"), LIMITS.values(), ids=LIMITS)
def test_the_processes_own_limits_are_named(
    short_dir: Path, shm_dir: Path, command: str, name: str, sizes: tuple[str, ...]
) -> None:
    prefix = ("/bin/sh", "-c", f'{command}; exec "$@"', "sh")
    line = refused(*places(short_dir, shm_dir), *sizes, prefix=prefix)
    assert "does not fit" in line
    assert name in line


def test_no_page_is_locked_so_that_limit_does_not_matter(short_dir: Path, shm_dir: Path) -> None:
    prefix = ("/bin/sh", "-c", 'ulimit -l 0; exec "$@"', "sh")
    with ServerProcess(short_dir, shm_dir / "s", "--l1-size", "64M", prefix=prefix) as server:
        bystander = Bystander(server)
        bystander.check()
        locked = re.search(r"VmLck:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text())
        assert locked is not None
        assert int(locked[1]) == 0
        bystander.close()


def test_an_arena_larger_than_the_machine_is_one_line(short_dir: Path, shm_dir: Path) -> None:
    code, out, err = launch(*places(short_dir, shm_dir), "--l1-size", "12T")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "does not fit" in err


def test_too_few_open_files_are_one_line(short_dir: Path, shm_dir: Path) -> None:
    prefix = ("/bin/sh", "-c", 'ulimit -n 512; exec "$@"', "sh")
    code, out, err = launch(*places(short_dir, shm_dir), prefix=prefix)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "512" in err
    assert str(MIN_OPEN_FILES) in err


def test_the_soft_limit_of_open_files_is_lifted(short_dir: Path, shm_dir: Path) -> None:
    """Two descriptors an extent: 256 files would end a large arena early."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    prefix = ("/bin/sh", "-c", 'ulimit -S -n 256; exec "$@"', "sh")
    arguments = ("--l1-size", "64M", "--extent-size", "128K")
    with ServerProcess(short_dir, shm_dir / "s", *arguments, prefix=prefix) as server:
        limits = Path(f"/proc/{server.pid}/limits").read_text()
        found = re.search(r"Max open files\s+(\d+)\s+(\d+)", limits)
        assert found is not None
        assert int(found[1]) == int(found[2]) == hard
        with Engine(server.url, server.side_path, num_pages=1024) as engine:
            engine.register()
            engine.pump_while_waiting()
            fill(engine, 1)
            saved = sum(
                engine.save(make_keys(number, 1024), list(range(1024))) for number in range(2)
            )
            assert saved == 2048
            assert stats(engine)["extents"] > 250
