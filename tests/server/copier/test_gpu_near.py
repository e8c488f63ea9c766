"""A device's copier goes near to its device: real calls, as if this machine had a second node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from protocol.device.simulated import settings
from server import numa
from server.copier.wire import Answer, Kind
from tests.server.copier.gpuchild import GpuChild, Pool, pages

MIB = 1 << 20
PAGE = 128 * 1024

pytestmark = pytest.mark.usefixtures("gpu_folder")


def as_if_there_were_two_nodes(first: int) -> tuple[str, str]:
    """The copier on this machine, whose CPUs are those of node 0 and of none other."""
    nodes = f"{{0: frozenset({{{first}}}), 1: frozenset({{{first + 1000}}})}}"
    return "-c", (
        "import sys\n"
        "from server import numa\n"
        f"numa.nodes_of = lambda: {nodes}\n"
        "from server.copier.gpu import main\n"
        "main(sys.argv[1:])\n"
    )


def test_it_goes_near_its_device_with_threads_that_it_starts_and_says_so(gpu_folder: Path) -> None:
    settings.write_machine(gpu_folder, settings.Machine(numa_nodes=(0, 1)))
    first = min(os.sched_getaffinity(0))
    with GpuChild(MIB, as_if_there_were_two_nodes(first)) as child:
        assert child.numa_node == 0
        pid = child.process.pid
        if numa.policy() is not None:
            assert " prefer" in Path(f"/proc/{pid}/numa_maps").read_text()
        pool = Pool(MIB)
        assert child.open(pool.opening(1)) is None
        child.copy(1, 1, pages(PAGE, [0, 1]))
        assert child.answer() == Answer(Kind.COPY, 1, None)
        threads = [
            (thread / "status").read_text() for thread in Path(f"/proc/{pid}/task").iterdir()
        ]
        # But for numpy's own, which are there before and do nothing: main, stream, pools, writer.
        assert sum(f"Cpus_allowed_list:\t{first}\n" in status for status in threads) >= 4
        main = Path(f"/proc/{pid}/status").read_text()
        assert f"Cpus_allowed_list:\t{first}\n" in main


def test_a_node_it_may_not_use_costs_it_one_line(gpu_folder: Path) -> None:
    settings.write_machine(gpu_folder, settings.Machine(numa_nodes=(1,)))
    first = min(os.sched_getaffinity(0))
    child = GpuChild(MIB, as_if_there_were_two_nodes(first))
    assert child.numa_node == -1
    child.channel.close()
    assert child.process.wait(10) == 0
    assert child.errors().count("not placed on NUMA node 1") == 1
    child.close()


def test_on_a_machine_of_one_node_nothing_is_placed(gpu_folder: Path) -> None:
    settings.write_machine(gpu_folder, settings.Machine(numa_nodes=(0,)))
    one = as_if_there_were_two_nodes(0)[1].replace(", 1: frozenset({1000})", "")
    child = GpuChild(MIB, ("-c", one))
    assert child.numa_node == -1
    allowed = Path(f"/proc/{child.process.pid}/status").read_text()
    own = Path("/proc/self/status").read_text()
    assert [one for one in allowed.splitlines() if one.startswith("Cpus_allowed")] == [
        one for one in own.splitlines() if one.startswith("Cpus_allowed")
    ]
    child.channel.close()
    assert child.process.wait(10) == 0
    assert child.errors() == ""
    child.close()
