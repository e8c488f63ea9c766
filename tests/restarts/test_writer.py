from __future__ import annotations

import threading
from pathlib import Path

from protocol.messages import Done, Unregister
from tests.restarts.content import LOG_DTYPE
from tests.restarts.writer import Writer
from tests.wire.client import Engine, make_namespace
from tests.wire.process import ServerProcess, wait_until

MORE_THAN_ITS_POOLS = 20


def test_a_writer_that_is_refused_again_and_again_names_one_pool(
    short_dir: Path, shm_dir: Path
) -> None:
    """A process may have 16 pools offered: a new one for each try would end the writer."""
    log = short_dir / "log"
    writer = Writer(1, str(log))
    with ServerProcess(
        short_dir, shm_dir / "a", "--l1-size", "4M", "--extent-size", "4M"
    ) as server:
        # Its extent is the only one there is room for.
        first = Engine(server.url, server.side_path, make_namespace(4096, "first"))
        first.register()
        ends: list[list[list[int]]] = []
        life = threading.Thread(
            target=lambda: ends.append(writer.live(server.url, server.side_path, 0, 0.0))
        )
        life.start()
        assert wait_until(lambda: writer.counts["refused"] > MORE_THAN_ITS_POOLS or ends)
        assert life.is_alive()
        first.extents.clear()
        first.wire.call(Unregister(session=first.session), Done)
        assert wait_until(lambda: writer.counts["committed"] > 0 or not life.is_alive())
        server.kill()
        life.join(20.0)
        first.close()
    assert len(ends) == 1
    assert log.stat().st_size >= LOG_DTYPE.itemsize
