"""Reports: in order, never lost, and never mistaken for an outsider's."""

from __future__ import annotations

import threading
from collections import deque

import zmq

from server.core.effects import CopierId, ProcessId
from server.shell.loop import make_socket
from server.shell.reports import CopierLost, ProcessQuiet, Reporter, ReportQueue
from tests.server.shell.reporting import Reports


def test_a_report_wakes_the_socket_under_the_reporters_name() -> None:
    with Reports() as reports:
        reports.reporter.post(CopierLost(CopierId(3)))
        assert reports.router.poll(10_000)
        assert reports.router.recv_multipart() == [reports.reporter.routing_id, b""]
        assert reports.wait_for(CopierLost).copier == 3


def test_nobody_can_know_a_reporters_name_and_take_its_place() -> None:
    with Reports() as one, Reports() as other:
        names = [one.reporter.routing_id, other.reporter.routing_id]
        assert names[0] != names[1]
        for name in names:
            assert name.startswith(b"kvkeep-test-")
            assert len(name) == len(b"kvkeep-test-") + 16


def test_nothing_is_lost_when_nobody_reads_the_wake_ups() -> None:
    with Reports() as reports:
        for number in range(20_000):
            reports.reporter.post(ProcessQuiet(ProcessId(number)))
        assert [reports.queue.popleft() for _ in range(20_000)] == [
            ProcessQuiet(ProcessId(number)) for number in range(20_000)
        ]
        wakes = 0
        while reports.router.poll(0):
            reports.router.recv_multipart()
            wakes += 1
        assert 0 < wakes < 20_000
        reports.reporter.post(CopierLost(CopierId(1)))  # and there is room again
        assert reports.router.poll(10_000)


def test_several_threads_post_to_one_queue() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = make_socket(context)
    queue: ReportQueue = deque()
    reporters = [Reporter(context, f"r{number}", queue) for number in range(4)]

    def post(reporter: Reporter, base: int) -> None:
        for number in range(500):
            reporter.post(ProcessQuiet(ProcessId(base + number)))

    threads = [
        threading.Thread(target=post, args=(reporter, 1000 * n))
        for n, reporter in enumerate(reporters)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = [report.process for report in queue if isinstance(report, ProcessQuiet)]
    for base in range(4):
        own = [process for process in seen if process // 1000 == base]
        assert own == list(range(1000 * base, 1000 * base + 500))
    for reporter in reporters:
        reporter.close()
    router.close()
    context.destroy(linger=0)
