"""P12, the server's half: the end of a socket, silence, or a busy interpreter is no death.

The adapter's half is in ``test_p12_an_engine_deleted_in_a_living_process.py``; processes of other
pid namespaces are in B36.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from protocol.errors import ErrorCode, ReplyError
from protocol.messages import Done, StoreReply, Unregister
from tests.faults.bystander import (
    engaged,
    fill,
    read_all,
    read_slots,
    retrieve,
    stats,
    submit_store,
)
from tests.faults.copierfaults import faulty_server
from tests.faults.inflight import NUM_CHUNKS, InFlight, content
from tests.wire.client import expect, make_keys, make_namespace
from tests.wire.process import ServerProcess, wait_until


def test_p12_the_end_of_the_side_socket_frees_nothing(short_dir: Path, shm_dir: Path) -> None:
    """It ends amid a save and a load: no new work, the copy ends well, the load's bytes stay."""
    sizes = ("--l1-size", "8M", "--extent-size", "1M")
    with (
        faulty_server(short_dir, shm_dir / "a", *sizes) as (server, faults),
        engaged(server, make_namespace(model="p12/other")) as other,
        engaged(server, make_namespace(model="p12/quiet")) as quiet,
    ):
        fill(quiet, 1)
        keys, more = make_keys(1, 32), make_keys(2, 64)
        assert quiet.save(keys, list(range(32))) == 32
        found = quiet.lookup(keys)
        slots = retrieve(quiet, found.lease, 32)
        expected = quiet.pages[:32].copy()
        with faults.pace(0.005):
            stored = submit_store(quiet, more, list(range(64)), 700)
            assert wait_until(lambda: stats(other)["copies_in_flight"] > 0, every_s=0)
            quiet.wire.on_wait = None
            quiet.side.close()
            assert expect(quiet.wire.reply(stored), StoreReply).copied > 0
        fill(other, 2)
        for seed in range(50, 70):  # the arena over and over
            other.save(make_keys(seed, 64), list(range(64)))
        assert np.array_equal(read_slots(quiet, slots), expected)
        values = stats(other)
        assert (values["sessions"], values["pinned_slots"]) == (2, 32)
        with pytest.raises(ReplyError) as caught:
            quiet.lookup(keys)
        assert caught.value.code == ErrorCode.UNAUTHENTICATED
        assert quiet.release(found.lease) == 32  # what ends work is served
        quiet.wire.call(Unregister(session=quiet.session), Done)
        quiet.session = 0
        assert wait_until(lambda: stats(other)["sessions"] == 1)
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("how", ["stopped", "holds_the_interpreter"])
def test_p12_an_engine_that_says_nothing_for_long_is_alive(
    short_dir: Path, shm_dir: Path, how: str
) -> None:
    """Longer than every time of the server: it is stopped, or loads weights with the GIL held."""
    sizes = ("--l1-size", "8M", "--extent-size", "1M", "--incomplete-timeout", "0.5")
    model = f"p12/{how}"
    with (
        faulty_server(short_dir, shm_dir / "a", *sizes, commit_s=0.5) as (server, _),
        engaged(server, make_namespace(model=model)) as engine,
    ):
        engine.pages[:] = content(1, engine.page_bytes)
        assert engine.save(make_keys(1, NUM_CHUNKS), list(range(NUM_CHUNKS))) == NUM_CHUNKS
        with InFlight(server, model, "load", 1) as busy:
            before = stats(engine)
            if how == "stopped":
                busy.signal(signal.SIGSTOP)
            else:
                busy.say("hold")
            until_s = time.monotonic() + 5.0
            fill(engine, 2)
            while time.monotonic() < until_s:
                engine.save(make_keys(int.from_bytes(os.urandom(4), "little"), 64), list(range(64)))
                engine.pump()
                now = stats(engine)
                for name in ("sessions", "leases", "pinned_slots", "processes"):
                    assert now[name] == before[name], name
            if how == "stopped":
                busy.signal(signal.SIGCONT)
            else:
                assert busy.hear() == "held"
            assert busy.tell("finish") == "right"
            assert busy.tell("saves") == "saved"
        keys = make_keys(9001, NUM_CHUNKS)
        assert len(read_all(engine, keys)) == NUM_CHUNKS
    assert "Traceback" not in server.log()


def test_p12_a_process_that_exits_is_gone_though_its_socket_lives_on(
    own_server: ServerProcess,
) -> None:
    """A child of the engine holds the side connection open: only the engine's exit counts."""
    with (
        engaged(own_server, make_namespace(model="p12/heir")) as engine,
        InFlight(own_server, "p12/heir", "save", 1) as parent,
    ):
        assert parent.tell("settle") == f"copied {NUM_CHUNKS}"
        heir = int(parent.tell("fork"))
        try:
            parent.kill()
            assert wait_until(lambda: stats(engine)["sessions"] == 1, 2)
            assert wait_until(lambda: stats(engine)["slots_reserved"] == 0, 2)
        finally:
            os.kill(heir, signal.SIGKILL)
