"""Placing memory: this machine's kernel is asked for real, also as if there were two nodes."""

from __future__ import annotations

import mmap
import os
import platform
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from server import numa
from server.numa import Placed

CPUS = frozenset(os.sched_getaffinity(0))
ELSEWHERE = frozenset({max(CPUS) + 1000})
TWO = {0: frozenset({min(CPUS)}), 1: ELSEWHERE}
"""Node 0 is really there; the other one is not."""

GIVEN = Placed(has_policy=True, has_cpus=True, before_cpus=CPUS if len(CPUS) > 1 else frozenset())


def in_thread(work: Callable[[], object]) -> None:
    """Policy and CPUs are a thread's own: the others of this process must not get them."""
    faults: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as fault:  # noqa: BLE001 - raised below
            faults.append(fault)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    if faults:
        raise faults[0]


def tree(sysfs: Path, memory: str, **cpus: str) -> Path:
    home = sysfs / "devices/system/node"
    home.mkdir(parents=True)
    (home / "has_memory").write_text(memory)
    for node, said in cpus.items():
        (home / node).mkdir()
        (home / node / "cpulist").write_text(said)
    return sysfs


def test_nodes_are_those_with_memory_and_cpus(tmp_path: Path) -> None:
    sysfs = tree(tmp_path, "0-2,9\n", node0="0-2,8\n", node1="3\n", node2="\n", node3="4\n")
    assert numa.nodes_of(sysfs) == {0: frozenset({0, 1, 2, 8}), 1: frozenset({3})}


@pytest.mark.parametrize("memory", ["", "all\n", "0-x\n"])
def test_a_kernel_that_says_nothing_has_no_nodes(tmp_path: Path, memory: str) -> None:
    assert numa.nodes_of(tree(tmp_path, memory, node0="0\n")) == {}
    assert numa.nodes_of(tmp_path / "none") == {}


def test_the_nodes_of_this_machine_have_the_cpus_we_run_on() -> None:
    nodes = numa.nodes_of()
    if nodes:
        assert not CPUS - frozenset().union(*nodes.values())


@pytest.mark.parametrize(
    ("node", "nodes"),
    [(None, TWO), (7, TWO), (0, {0: CPUS}), (0, {}), (None, {})],
)
def test_nothing_is_done_without_a_choice(
    node: int | None, nodes: dict[int, frozenset[int]]
) -> None:
    with numa.near(node, nodes) as placed:
        assert not placed
        assert frozenset(os.sched_getaffinity(0)) == CPUS
        assert numa.policy() in (None, 0)


def test_a_thread_is_placed_and_is_as_before_afterwards() -> None:
    if numa.policy() is None:
        pytest.skip("memory policies are forbidden here")

    def work() -> None:
        with numa.near(0, TWO) as placed:
            assert placed == GIVEN
            assert numa.policy() == 1
            assert os.sched_getaffinity(0) == TWO[0]
            inherited: list[int | None] = []
            thread = threading.Thread(target=lambda: inherited.append(numa.policy()))
            thread.start()
            thread.join(30)
            assert inherited == [1]
        assert numa.policy() == 0
        assert os.sched_getaffinity(0) == CPUS

    in_thread(work)
    assert numa.policy() == 0
    assert os.sched_getaffinity(0) == CPUS


def test_a_node_that_the_kernel_refuses_changes_nothing() -> None:
    def work() -> None:
        with numa.near(1, TWO) as placed:
            assert not placed
            assert os.sched_getaffinity(0) == CPUS
            assert numa.policy() in (None, 0)

    in_thread(work)


def test_without_the_right_to_a_policy_cpus_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that forbids the calls; here the kernel has no such call at all."""
    monkeypatch.setattr(numa, "_POLICY_CALLS", {platform.machine(): (9999, 9999)})

    def work() -> None:
        with numa.near(0, TWO) as placed:
            assert placed
            assert (placed.has_policy, placed.has_cpus) == (False, True)
            assert os.sched_getaffinity(0) == TWO[0]
        assert os.sched_getaffinity(0) == CPUS
        with numa.near(1, TWO) as placed:
            assert not placed

    in_thread(work)


def test_on_another_kind_of_machine_cpus_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "_POLICY_CALLS", {})
    assert numa.policy() is None
    in_thread(placed_by_cpus_alone)


def placed_by_cpus_alone() -> None:
    with numa.near(0, TWO) as placed:
        assert (placed.has_policy, placed.has_cpus) == (False, True)


def test_a_policy_that_somebody_chose_stays() -> None:
    if numa.policy() is None:
        pytest.skip("memory policies are forbidden here")

    def work() -> None:
        assert numa._set_policy(3, 0)  # MPOL_INTERLEAVE, as `numactl --interleave` sets it
        with numa.near(0, TWO) as placed:
            assert not placed
            assert numa.policy() == 3
        assert numa.policy() == 3

    in_thread(work)


def test_a_files_node_is_told(shm_dir: Path) -> None:
    """Node 0 is where everything lies on a machine of one node."""
    nodes = numa.nodes_of()
    with (shm_dir / "file").open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, 3 << 20)
        found = numa.node_of_file(file.fileno(), 3 << 20)
    assert found in (nodes or {None})


def test_a_files_node_is_where_most_of_its_pages_are(tmp_path: Path, shm_dir: Path) -> None:
    maps = tmp_path / "numa_maps"
    with (shm_dir / "file").open("w+b") as file:
        file.truncate(mmap.PAGESIZE)
        assert numa.node_of_file(file.fileno(), mmap.PAGESIZE, maps) is None
        maps.write_text("7f00 default anon=1 N0=9\n")
        assert numa.node_of_file(file.fileno(), mmap.PAGESIZE, maps) is None


def test_a_file_that_cannot_be_mapped_has_no_node_and_that_is_all() -> None:
    read_end, write_end = os.pipe()
    assert numa.node_of_file(read_end, mmap.PAGESIZE) is None
    os.close(read_end)
    os.close(write_end)


def test_of_two_nodes_the_one_with_more_pages_is_told() -> None:
    view = np.zeros(4, dtype=np.uint8)
    address = int(view.ctypes.data)
    lines = ["1000 default N3=99", f"{address:x} prefer:1 file=/a\\040N0=77 mapped=9 N0=4 N1=5 x"]
    assert numa.most_pages(lines, address) == 1
    assert numa.most_pages(lines[:1], address) is None
