"""kill -9 of a device's copier and of an engine amid a copy out of the device, and what is left.

A piece of a copy is held up inside the copier, so the moment is not left to chance. Nothing wrong
may be loaded afterwards, other engines go on, and the device has its memory back.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from adapter.conformance.coverage.dimensions import Combination
from adapter.conformance.host.ranks.job import JobDiedError
from adapter.conformance.host.simulated import simulating
from adapter.conformance.schedules.setups import opened, setup_of
from adapter.conformance.schedules.subject import RankedSubject
from adapter.conformance.schedules.sweep import join
from protocol.device.simulated.faults import Fault, plant
from protocol.device.simulated.ledger import Census, census
from protocol.device.simulated.settings import FOLDER
from tests.faults.ondevice import BLOCK, WAIT_S, Player, Stage, ask_anew, staged

pytestmark = pytest.mark.torch

GAUGES = ("slots_reserved", "copies_in_flight", "stores", "leases", "pinned_slots")


@pytest.fixture(scope="module")
def environ() -> Iterator[Mapping[str, str]]:
    with simulating(11) as made:
        yield made


@pytest.fixture(scope="module")
def stage(environ: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(environ, tmp_path_factory.mktemp("models")) as made:
        yield made


@contextmanager
def held_copies(environ: Mapping[str, str]) -> Iterator[None]:
    """Copies of all copiers stand still in this block, amid a piece."""
    folder = Path(environ[FOLDER])
    plant(folder, Fault("run", code="", hang_s=WAIT_S, command="server.copier.gpu"))
    try:
        yield
    finally:
        plant(folder)


def copiers(player: Player) -> dict[str, int]:
    """Process ids of the devices' copiers."""
    values = player.subject.look()[0].server
    return {name: pid for name, pid in values.items() if name.startswith("copier_pid_GPU")}


def is_clean(player: Player) -> bool:
    values = player.subject.look()[0].server
    return bool(values) and not any(values[name] for name in GAUGES)


def taken(environ: Mapping[str, str], device: int) -> Census:
    return census(Path(environ[FOLDER]), device)


def test_a_copier_killed_amid_a_copy_costs_that_save_and_nothing_else(
    environ: Mapping[str, str], stage: Stage
) -> None:
    with stage.engine("E2", "v1", "sync") as player:
        kept, lost = ask_anew(), ask_anew(max_new_tokens=8)
        player.store(kept)
        (old,) = copiers(player).values()
        with held_copies(environ):
            handle = player.submit(lost)
            assert player.awaits(lambda: player.gauge("copies_in_flight") > 0)
            os.kill(old, signal.SIGKILL)
            assert player.is_right(lost, handle.result(WAIT_S))
        assert player.awaits(lambda: old not in copiers(player).values())
        assert player.awaits(lambda: is_clean(player))
        player.subject.forget_reuse(WAIT_S)
        assert player.loads_rightly(kept, 3 * BLOCK)
        player.subject.forget_reuse(WAIT_S)
        again = player.submit(lost).result(WAIT_S)  # of what was not copied, nothing is there
        assert player.is_right(lost, again)
        assert again.num_loaded_tokens == 0
        player.subject.forget_reuse(WAIT_S)
        assert player.awaits(lambda: saves(player), WAIT_S)  # by the copier that took its place
        assert len(copiers(player)) == 1


def saves(player: Player) -> bool:
    """Asks for something new twice; whether it was loaded the second time."""
    ask = ask_anew()
    player.store(ask)
    answer = player.submit(ask).result(WAIT_S)
    assert player.is_right(ask, answer)
    player.subject.forget_reuse(WAIT_S)
    return bool(answer.num_loaded_tokens == 3 * BLOCK)


def test_an_engine_killed_amid_its_copies_leaves_nothing(
    environ: Mapping[str, str], stage: Stage, tmp_path: Path
) -> None:
    """Two ranks on two devices; another model's engine on one of them goes on."""
    setup = setup_of(Combination("E2", "plain", "v1", "sync", "tp2"), "simulated")
    setup = replace(setup, environ={**setup.environ, **environ})
    with stage.engine("E2", "v1_mla", "sync") as other, ExitStack() as stack:
        # Its own and its copier's: what an engine before had may be on its way out still.
        assert other.awaits(lambda: taken(environ, 0).num_contexts == 2)
        before = [taken(environ, device) for device in range(2)]
        ask = ask_anew()
        other.store(ask)
        doomed = stack.enter_context(ended_badly(stage, setup, tmp_path))
        join(doomed, setup, num_others=1)
        with held_copies(environ):
            doomed.submit(ask_anew(max_new_tokens=8))
            assert other.awaits(lambda: other.gauge("copies_in_flight") > 0)
            doomed.engine.kill(1)
            doomed.engine.wait_dead(WAIT_S)
            # It looks up, loads and computes, though its own device's copier stands still.
            assert other.loads_rightly(ask, 3 * BLOCK)
        other.subject.forget_reuse(WAIT_S)
        assert other.awaits(lambda: is_clean(other) and other.gauge("sessions") == 1)
        for device, own in enumerate(before):
            assert other.awaits(
                lambda device=device, own=own: _memory(taken(environ, device)) == _memory(own)  # type: ignore[misc]
            ), taken(environ, device)
        assert other.awaits(lambda: saves(other))


@contextmanager
def ended_badly(stage: Stage, setup: object, models: Path) -> Iterator[RankedSubject]:
    """An engine of several processes, which will not end in order."""
    try:
        with opened(setup, models, stage.service.url) as subject:  # type: ignore[arg-type]
            assert isinstance(subject, RankedSubject)
            yield subject
    except JobDiedError:
        pass


def _memory(one: Census) -> tuple[int, int]:
    return one.memory_bytes, one.freed_bytes
