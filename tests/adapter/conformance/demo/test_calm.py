import threading
import time
from collections.abc import Iterator

import pytest

from adapter.conformance.demo.calm import Calm
from adapter.conformance.demo.cast import Server
from adapter.conformance.demo.processes import stage
from adapter.mapper import Mapper
from tests.adapter.linking import joined_link, open_link


@pytest.fixture
def server() -> Iterator[Server]:
    with stage(1 << 20) as on:
        yield Server(on, "server")


def test_it_waits_until_what_was_given_is_mapped(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, mapped = threading.Event(), Mapper._populate

    def held_up(self: Mapper, *arguments: object) -> bool:
        assert gate.wait(30)
        return mapped(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Mapper, "_populate", held_up)
    with joined_link(server.url) as link:
        calm = Calm(link)
        try:
            with pytest.raises(TimeoutError, match="not mapped after 0 s"):
                calm.wait(0.1)
            gate.set()
            assert calm.wait(30)
            assert len(link.extents) == 1
        finally:
            gate.set()
            calm.close()


def test_without_a_server_there_is_nothing_to_wait_for(server: Server) -> None:
    with joined_link(server.url) as link:
        calm = Calm(link)
        assert calm.wait(30)
        assert server.kill_9()
        begun_s = time.monotonic()
        assert not calm.wait(30)
        assert time.monotonic() - begun_s < 10
        calm.close()
    with open_link(server.url) as stranger:
        assert not Calm(stranger).wait(30)
