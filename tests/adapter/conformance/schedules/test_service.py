"""A server child: ready, reachable, gone with its folders."""

from __future__ import annotations

from pathlib import Path

from adapter.conformance.schedules.service import serving


def test_a_server_of_its_own() -> None:
    with serving() as service:
        path = Path(service.url.removeprefix("ipc://"))
        assert path.exists()
        assert service.child.process.poll() is None
    assert service.child.process.poll() == 0
    assert not path.parent.exists()
