"""B42: four ranks read one stored copy; the first reader's release leaves it to the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapter.enginerig import SIZE, write_model
from tests.adapter.hostlike import Output, Report, tokens
from tests.adapter.rankrig import RankRig
from tests.faults.pressing import press
from tests.wire.process import ServerProcess

ARENA = ("--l1-size", "1M", "--extent-size", "512K")
SLOTS = 256
"""An upper bound: 1 MiB, 4 KiB for each chunk."""

PROMPT = tokens(30)
UNHELD = tokens(30, seed=5)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m", kv_lora_rank=12, qk_rope_head_dim=4)


@pytest.fixture
def server(short_dir: Path, shm_dir: Path) -> Iterator[ServerProcess]:
    with ServerProcess(short_dir, shm_dir / "a", *ARENA) as process:
        yield process


@pytest.fixture
def engines(server: ServerProcess, model: Path) -> Iterator[tuple[RankRig, RankRig]]:
    rig = RankRig(server.url, model, 4, is_latent=True).register()
    presser = RankRig(server.url, model, 4, is_latent=True).register()
    yield rig, presser
    presser.close()
    rig.close()


def test_b42_each_rank_gets_the_bytes_though_the_first_gave_them_back(
    engines: tuple[RankRig, RankRig],
) -> None:
    rig, presser = engines
    rig.run_saved(UNHELD)
    before = rig.stats()["slots_held"]
    rig.run_saved(PROMPT)
    assert rig.stats()["slots_held"] == before + 7  # one copy for all ranks
    request, offered, pages = rig.begin(PROMPT)
    assert offered == 28
    pinned: list[int] = []

    def before_rank(rank: int) -> None:
        if rank:  # the ranks before have loaded and given back
            press(presser, SLOTS)
            pinned.append(rig.stats()["pinned_slots"])

    rig.before_rank = before_rank
    report = Report(request.request_id, PROMPT, pages, 0, len(PROMPT) - offered)
    rig.iterate(Output([report]), forward=lambda: rig.check(PROMPT, pages, offered // SIZE))
    assert pinned == [7, 7, 7]
    rig.before_rank = lambda rank: None
    rig.check_nothing_leased()
    assert rig.run(UNHELD).offered == 0  # what nobody had leased is gone
