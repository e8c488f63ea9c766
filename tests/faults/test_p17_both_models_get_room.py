"""P17: extents move between models by age; a registration that finds none is told what it needs.

Two models that alternate at speed are in ``tests/wire/test_roundtrip.py`` and, as engines, in
``tests/e2e/test_two_models.py``.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from protocol.errors import ErrorCode, ReplyError
from protocol.messages import Done, Unregister
from tests.adapter.enginerig import EngineRig, write_model
from tests.adapter.hostlike import tokens
from tests.faults.bystander import engaged, fill, read_all
from tests.wire.client import make_keys, make_namespace
from tests.wire.process import ServerProcess


def test_p17_a_registration_without_room_is_told_the_size(short_dir: Path, shm_dir: Path) -> None:
    """Live engines keep one extent each; one engine too many is told how much it would need."""
    sizes = ("--l1-size", "4M", "--extent-size", "2M")
    with (
        ServerProcess(short_dir, shm_dir / "a", *sizes) as server,
        engaged(server, make_namespace(model="p17/a")) as a,
        engaged(server, make_namespace(model="p17/b")) as b,
        engaged(server, make_namespace(model="p17/c"), register=False) as crowded,
    ):
        with pytest.raises(ReplyError) as caught:
            crowded.register()
        error = caught.value
        assert error.code == ErrorCode.NO_ROOM
        assert error.retryable
        assert int(error.detail["needed_bytes"]) > 0
        assert error.detail["arena_bytes"] == 4 << 20
        for engine, seed in ((a, 1), (b, 2)):
            fill(engine, seed)
            keys = make_keys(seed, 64)
            assert engine.save(keys, list(range(64))) == 64
            assert np.array_equal(read_all(engine, keys), engine.pages)
        b.wire.call(Unregister(session=b.session), Done)
        b.session = 0
        crowded.register()  # now there is room, on the same connections
        assert crowded.save(make_keys(3, 8), list(range(8))) == 8


def test_p17_a_model_whose_one_chunk_exceeds_the_arena(short_dir: Path, shm_dir: Path) -> None:
    sizes = ("--l1-size", "1M", "--extent-size", "1M")
    with (
        ServerProcess(short_dir, shm_dir / "a", *sizes) as server,
        engaged(server, make_namespace(model="p17/small")) as small,
        engaged(server, make_namespace(4 << 20, model="p17/large"), 2, register=False) as large,
    ):
        with pytest.raises(ReplyError) as caught:
            large.register()
        assert caught.value.code == ErrorCode.NO_ROOM
        assert int(caught.value.detail["needed_bytes"]) >= 4 << 20
        assert small.save(make_keys(1, 4), [0, 1, 2, 3]) == 4


def test_p17_an_engine_without_room_says_so_and_runs_uncached(
    short_dir: Path, shm_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The operator of the engine sees how large the arena would have to be."""
    caplog.set_level(logging.WARNING)
    sizes = ("--l1-size", "1M", "--extent-size", "1M")
    with (
        ServerProcess(short_dir, shm_dir / "a", *sizes) as server,
        engaged(server, make_namespace(model="p17/there")),
    ):
        rig = EngineRig(server.url, write_model(tmp_path / "m")).register()
        for seed in range(3):
            assert rig.run(tokens(22, seed=seed % 2)).offered == 0
        said = " ".join(record.getMessage() for record in caplog.records)
        assert "NO_ROOM" in said
        assert "larger than 1048576 bytes" in said
        rig.close()
