import mmap
import os
import subprocess
import sys
from pathlib import Path

from server.bench import footprint
from server.bench.footprint import Weight, family, heavy_libraries, weigh, weight_of

SMAPS = """\
55f0c0000000-55f0c0100000 r-xp 00000000 08:01 131 /usr/bin/python3.11
Size:               1024 kB
Rss:                 800 kB
Pss:                 400 kB
Private_Clean:       100 kB
Private_Dirty:         0 kB
VmFlags: rd ex mr mw me
7f0000000000-7f0004000000 rw-s 00000000 00:19 7 /dev/shm/arena/extent-1
Rss:               65536 kB
Private_Dirty:     65536 kB
7f0005000000-7f0009000000 r--s 00000000 00:01 9 /memfd:kvkeep-pool (deleted)
Rss:               32768 kB
Private_Clean:         0 kB
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0 [stack]
Rss:                  16 kB
Private_Dirty:        16 kB
7f0010000000-7f0010001000 r--s 00000000 00:19 8 /dev/shm/arena-of-others/extent-1
Rss:                   4 kB
"""


def test_arena_and_pools_are_left_out() -> None:
    assert weigh(SMAPS, "/dev/shm/arena") == Weight(
        rss_bytes=820 * 1024, private_bytes=116 * 1024, shared_kv_bytes=98304 * 1024
    )


def test_sums() -> None:
    one = Weight(1, 2, 3)
    assert footprint.total([one, one]) == Weight(2, 4, 6)
    assert footprint.mib(3 << 19) == 1.5


def test_a_mapping_in_the_arena_is_left_out_for_real(shm_dir: Path) -> None:
    num_bytes = 8 << 20
    before = weight_of(os.getpid(), shm_dir)
    with (shm_dir / "extent").open("w+b") as file:
        file.truncate(num_bytes)
        with mmap.mmap(file.fileno(), num_bytes) as mapping:
            mapping[:] = b"x" * num_bytes
            after = weight_of(os.getpid(), shm_dir)
            elsewhere = weight_of(os.getpid(), Path("/nowhere"))
    assert after.shared_kv_bytes - before.shared_kv_bytes == num_bytes
    assert elsewhere.rss_bytes >= after.rss_bytes + num_bytes // 2


def test_heavy_libraries_are_named() -> None:
    maps = (
        "7f00-7f01 r-xp 00000000 08:01 1   /usr/lib/libc.so.6\n"
        "7f02-7f03 r-xp 00000000 08:01 2   /x/torch/lib/libtorch_cpu.so\n"
        "7f04-7f05 r--p 00000000 08:01 2   /x/torch/lib/libtorch_cpu.so\n"
        "7f06-7f07 r-xp 00000000 08:01 3   /usr/lib/x86_64-linux-gnu/libcuda.so.1\n"
        "7f08-7f09 rw-p 00000000 00:00 0 \n"
        "7f0a-7f0b rw-p 00000000 00:00 0   [heap]\n"
    )
    assert heavy_libraries(maps) == ["libcuda.so.1", "libtorch_cpu.so"]


def test_a_folder_named_so_is_no_library() -> None:
    assert heavy_libraries("7f00-7f01 r-xp 0 08:01 1   /home/you/torch/libfoo.so\n") == []


def test_family_finds_children_of_children() -> None:
    child = "print(1, flush=True); input()"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"1\n"
        found = family(parent.pid)
        assert found[0] == parent.pid
        assert len(found) == 2
        parent.communicate(b"\n", timeout=20)
