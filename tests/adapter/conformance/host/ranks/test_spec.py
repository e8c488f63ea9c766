"""What crosses between the processes of a job can be pickled and comes out equal."""

from __future__ import annotations

import pickle

import pytest

pytest.importorskip("torch")

from adapter.conformance.host.llm_args import LlmArgs
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.ranks.spec import (
    Answer,
    Ask,
    Dying,
    Ended,
    JobSpec,
    Started,
)

pytestmark = pytest.mark.torch


def test_everything_goes_through_a_socket() -> None:
    options = (HostOptions(epoch="E3"), HostOptions(load_skew=3))
    spec = JobSpec(LlmArgs(model="m", tensor_parallel_size=2), 8, 2, options, {"A": "b"}, ("m:f",))
    said = [
        spec,
        Ask(3, "stats", {"x": 1}),
        Answer(0, None),
        Dying("why"),
        Started(5),
        Ended(1, -9),
    ]
    assert pickle.loads(pickle.dumps(said)) == said  # noqa: S301 - what was just dumped
