"""Which processes there are beside the server follows from its settings."""

from __future__ import annotations

import pytest

from server import config
from server.shell.complaints import Complaints
from server.sidechildren import SideChildren, wants_traces

TO = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


def made(
    options: dict[str, str | None], environ: dict[str, str]
) -> tuple[SideChildren, dict[str, int]]:
    complaints = Complaints()
    settings = config.read({"endpoint": "ipc:///a/b", **options}, {})
    return SideChildren(settings, "/a/b.side", environ, complaints), complaints.counts()


@pytest.mark.parametrize(
    ("options", "environ", "num_children", "noted"),
    [
        ({}, TO, 0, {}),
        ({"traces": "0"}, TO, 0, {}),
        ({"http": "9177"}, {}, 1, {}),
        ({"traces": "0.1"}, {}, 0, {"traces_off": 1}),
        ({"traces": "0.1", "http": "9177"}, TO, 2, {}),
    ],
)
def test_they_are_the_ones_asked_for(
    options: dict[str, str | None],
    environ: dict[str, str],
    num_children: int,
    noted: dict[str, int],
) -> None:
    children, counts = made(options, environ)
    assert len(children._all) == num_children
    assert counts == noted
    assert (children.traces is not None) == ("traces" in options and num_children > 0)
    assert children.url == ""
    children.abandon()
    assert children.stop(1)


def test_traces_need_a_ratio_and_a_place() -> None:
    some = config.read({"endpoint": "ipc:///a/b", "traces": "0.5"}, {})
    none = config.read({"endpoint": "ipc:///a/b"}, {})
    assert wants_traces(some, TO)
    assert not wants_traces(some, {})
    assert not wants_traces(none, TO)
