"""Jobs from outside: no process outlives them, and what is asked of a dead one fails at once."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from adapter.conformance.host.llm_args import LlmArgs
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.ranks.job import Job, JobDiedError
from adapter.conformance.host.ranks.spec import JobSpec
from tests.adapter.conformance.host.ranks import jobs
from tests.wire.process import is_alive, wait_until

pytestmark = pytest.mark.torch


def pids(job: Job) -> list[int]:
    return [
        job.ask(rank, "call", target="tests.adapter.conformance.host.ranks.test_job:pid").result(20)
        for rank in range(job.size)
    ]


def pid(engine: object) -> int:
    import os

    return os.getpid()


def make(model: Path) -> Job:
    args = jobs.llm_args(model, tensor_parallel_size=2)
    return Job(JobSpec(args, 32, 2, (HostOptions(), HostOptions()), dict(os.environ)))


def test_nothing_outlives_a_job_that_is_closed(tmp_path: Path) -> None:
    job = make(jobs.model_dir(tmp_path / "m"))
    found = pids(job)
    assert len(set(found)) == 2
    assert all(is_alive(pid) for pid in found)
    job.close()
    job.close()
    assert not any(is_alive(pid) for pid in found)
    with pytest.raises(JobDiedError):
        job.ask(0, "stats").result(5)


def test_the_end_of_one_is_the_end_of_all(tmp_path: Path) -> None:
    job = make(jobs.model_dir(tmp_path / "m"))
    found = pids(job)
    job.signal(1, 15)
    assert job.wait(10) == 1
    assert wait_until(lambda: job.exit_codes.keys() == {0, 1}, 5)
    assert job.exit_codes[1] == -15
    assert not any(is_alive(pid) for pid in found)
    began_s = time.monotonic()
    with pytest.raises(JobDiedError, match="is gone"):
        job.ask(0, "stats").result(5)
    assert time.monotonic() - began_s < 1
    job.signal(0, 15)  # nobody there: nothing happens
    job.close()


def test_a_job_that_cannot_start_says_why(tmp_path: Path) -> None:
    spec = JobSpec(LlmArgs(model=str(tmp_path / "none")), 32, 1, (HostOptions(),))
    with pytest.raises(JobDiedError, match="No such file"):
        Job(spec)
