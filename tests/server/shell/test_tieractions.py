"""Effects on tiers with real porters and extents; the core is a recorder."""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from protocol.ids import ArenaId, ExtentId, Fingerprint
from server.core import effects as fx
from server.core.dispatch import Core
from server.core.effects import JobId, TierId
from server.core.tiers.listed import Listed
from server.core.tiers.parts import MAX_PARTS, Status
from server.porter.wire import Answer, Kind
from server.shell import clock, porterlink
from server.shell.complaints import Complaints
from server.shell.extent_table import ExtentTable
from server.shell.extents import Allocator, ExtentFile
from server.shell.porters import Porters
from server.shell.reports import ExtentCreated, PorterAnswered
from server.shell.tieractions import TierActions, public
from server.tierspec import TierSpec
from tests.server.porter.process import MODULE, spec
from tests.server.porter.rows import key, rows
from tests.server.shell.geometry import make_geometry
from tests.server.shell.reporting import Reports
from tests.wire.process import is_alive, wait_until

ZERO = TierId(0)
SPACE = Fingerprint(b"f" * 16)


@dataclass
class Recorder:
    """Stands where the core stands and writes down what it is told."""

    told: list[tuple[Any, ...]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.told.append((name, *arguments))


@dataclass
class Rig:
    reports: Reports
    core: Recorder
    porters: Porters
    table: ExtentTable
    tiers: TierActions
    complaints: Complaints
    folder: Path

    def pump(self) -> None:
        while self.reports.queue:
            report, now_ns = self.reports.queue.popleft(), clock.now_ns()
            if isinstance(report, ExtentCreated):
                assert report.file is not None
                self.table.created(report.file, now_ns)
            else:
                self.tiers.appliers[type(report)](report, now_ns)

    def told(self, name: str, *arguments: object) -> tuple[Any, ...]:
        """Waits until the core was told this, and returns all arguments but the time."""

        def find() -> tuple[Any, ...] | None:
            self.pump()
            for entry in self.core.told:
                if entry[0] == name and entry[1 : 1 + len(arguments)] == arguments:
                    return entry
            return None

        assert wait_until(lambda: find() is not None, 20), (name, arguments, self.core.told)
        found = find()
        assert found is not None
        self.core.told.remove(found)
        return found[1:-1]

    def do(self, effect: fx.Effect) -> None:
        self.tiers.performers[type(effect)](effect)

    def extent(self, number: int) -> ExtentFile:
        self.table.create(make_geometry(number), clock.now_ns())

        def is_there() -> bool:
            self.pump()
            return (self.folder / f"{number:08d}.extent").exists() and number in self.table._files

        assert wait_until(is_there)
        return self.table[ExtentId(number)]

    def is_gone(self, file: ExtentFile) -> bool:
        self.pump()
        return not os.path.exists(file.path)

    def slots(self, numbers: list[int], extent: int) -> Any:
        """Parts of chunks in the extent's slots from the first on."""
        geometry = self.table[ExtentId(extent)].geometry
        made = rows(numbers, extent, geometry.slot_bytes, geometry.payload_bytes)
        made["offset"] = [geometry.slot_offset_bytes(at) for at in range(len(numbers))]
        return made


Start = Callable[..., Rig]


@pytest.fixture
def start(shm_dir: Path) -> Iterator[Start]:
    made: list[Rig] = []
    with Reports() as reports:
        allocator = Allocator(str(shm_dir), ArenaId(b"a" * 16), reports.reporter)
        allocator.start()

        def begin(*specs: TierSpec) -> Rig:
            porters = Porters(specs, reports.one_more, None, MODULE)
            core, complaints = Recorder(), Complaints()
            table = ExtentTable(allocator, {}, porters.links.values())
            tiers = TierActions(cast(Core, core), porters, table, complaints)
            porters.start()
            rig = Rig(reports, core, porters, table, tiers, complaints, shm_dir)
            made.append(rig)
            rig.told("porter_ready", ZERO)
            return rig

        yield begin
        for rig in made:
            assert rig.porters.stop(10)
            rig.pump()
            rig.tiers.close()
            rig.porters.close_reporters()
        assert allocator.stop(5)
        for rig in made:
            rig.table.close()


def test_values_go_down_and_come_back(start: Start) -> None:
    rig = start(spec("fine"))
    file = rig.extent(1)
    parts = rig.slots([1, 2], 1)
    with mmap.mmap(file.writable.fd, file.geometry.file_bytes) as view:
        offset = file.geometry.data_offset_bytes
        view[offset : offset + 5] = b"hello"
        rig.do(fx.TierPut(ZERO, JobId(7), SPACE, parts))
        assert rig.told("tier_done", 7) == (7, bytes(2))
        view[offset : offset + 5] = b"-----"
        rig.do(fx.TierProbe(ZERO, JobId(8), SPACE, key(1) + key(2) + key(3), 1))
        assert rig.told("tier_probed", 8) == (8, 2)
        rig.do(fx.TierGet(ZERO, JobId(9), SPACE, rig.slots([1, 2, 3], 1)))
        assert rig.told("tier_done", 9) == (9, bytes([0, 0, Status.ABSENT]))
        assert view[offset : offset + 5] == b"hello"
    rig.do(fx.TierDrop(ZERO, JobId(10), SPACE, key(1), 1))
    assert rig.told("tier_done", 10) == (10, b"")
    rig.do(fx.TierDrop(ZERO, JobId(11), SPACE, b"", 1))
    assert rig.told("tier_done", 11) == (11, b"")
    rig.do(fx.TierProbe(ZERO, JobId(12), SPACE, key(2), 1))
    assert rig.told("tier_probed", 12) == (12, 0)
    rig.do(fx.TierHealth(ZERO, JobId(13)))
    assert rig.told("tier_health", 13)[:4] == (13, True, 1, 2)
    assert rig.complaints.counts() == {}


def test_an_extent_goes_when_the_porter_has_unmapped_it(start: Start) -> None:
    rig = start(spec("fine"))
    file = rig.extent(1)
    pid = rig.porters.links[ZERO].pid
    maps = Path(f"/proc/{pid}/maps")
    assert wait_until(lambda: file.path in maps.read_text(encoding="utf-8"))
    rig.table.remove(ExtentId(1), clock.now_ns())
    assert wait_until(lambda: rig.is_gone(file))
    assert file.path not in maps.read_text(encoding="utf-8")


def test_an_extent_that_a_hanging_job_uses_goes_only_with_the_porter(start: Start) -> None:
    rig = start(spec("hangs"))
    file = rig.extent(1)
    rig.do(fx.TierGet(ZERO, JobId(1), SPACE, rig.slots([1], 1)))
    rig.table.remove(ExtentId(1), clock.now_ns())
    assert not wait_until(lambda: rig.is_gone(file), 1.0)
    link = rig.porters.links[ZERO]
    due_ns = rig.tiers.deadline_ns()
    assert due_ns is not None
    rig.tiers.check(due_ns - 1)
    assert rig.complaints.counts() == {}
    first = link.pid
    rig.tiers.check(due_ns)
    assert rig.told("porter_lost", ZERO) == (ZERO,)
    assert not is_alive(first)
    assert wait_until(lambda: rig.is_gone(file))
    assert rig.complaints.counts() == {"porter_wedged": 1, "porter_lost": 1}
    rig.told("porter_ready", ZERO)
    assert rig.porters.links[ZERO].pid != first


def test_a_killed_porter_owes_nothing_and_the_next_one_has_every_extent(start: Start) -> None:
    rig = start(spec("hangs"))
    file = rig.extent(1)
    for number in range(50):
        rig.do(fx.TierGet(ZERO, JobId(number), SPACE, rig.slots([1], 1)))
    os.kill(rig.porters.links[ZERO].pid, signal.SIGKILL)
    rig.told("porter_lost", ZERO)
    assert not [entry for entry in rig.core.told if entry[0] == "tier_done"]
    rig.told("porter_ready", ZERO)
    maps = Path(f"/proc/{rig.porters.links[ZERO].pid}/maps")
    assert wait_until(lambda: file.path in maps.read_text(encoding="utf-8"))


def test_what_no_porter_can_take_fails_at_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = start(spec("fine"))
    rig.extent(1)
    monkeypatch.setattr(porterlink, "MAX_OUTSTANDING", 0)
    rig.do(fx.TierGet(ZERO, JobId(1), SPACE, rig.slots([1], 1)))
    assert rig.told("tier_done", 1) == (1, None)
    rig.do(fx.TierProbe(ZERO, JobId(2), SPACE, key(1), 1))
    assert rig.told("tier_probed", 2) == (2, None)
    rig.do(fx.TierHealth(ZERO, JobId(3)))
    assert rig.told("tier_health", 3) == (3, False, 0, 0)


def test_errors_are_told_and_complained_of_with_the_tiers_name(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    rig = start(spec("fails", "&name=nvme"))
    rig.extent(1)
    rig.do(fx.TierDrop(ZERO, JobId(5), SPACE, b"", 1))
    assert rig.told("tier_done", 5) == (5, None)
    assert rig.complaints.counts()["tier_error"] == 1
    assert "nvme: CLEAR: OSError: Input/output error" in caplog.text
    rig.do(fx.TierGet(ZERO, JobId(6), SPACE, rig.slots([1], 1)))
    assert rig.told("tier_done", 6) == (6, bytes([Status.ERROR]))


def test_a_tier_of_a_kind_that_cannot_list_is_no_error(start: Start) -> None:
    rig = start(spec("fine"))
    rig.do(fx.TierList(ZERO, JobId(7), Listed.NAMESPACES, SPACE))
    assert rig.told("tier_done", 7) == (7, None)
    assert "tier_error" not in rig.complaints.counts()


def test_a_porter_that_gets_on_is_told_of_and_one_that_only_has_something_to_say_is_not(
    start: Start,
) -> None:
    rig = start(spec("fine"))
    link = rig.porters.links[ZERO]
    for text in ("it is slow today", None):
        report = PorterAnswered(ZERO, Answer(Kind.PROGRESS, 0, error=text))
        rig.tiers.appliers[PorterAnswered](report, clock.now_ns())
        moved = [entry[:2] for entry in rig.core.told if entry[0] == "tier_moves"]
        assert moved == [("tier_moves", ZERO)] * (text is None)
    assert [entry[2] for entry in rig.core.told if entry[0] == "porter_said"] == [
        "it is slow today"
    ]
    assert link.num_outstanding == 0


def test_what_a_tier_warns_of_is_passed_on_without_credentials(start: Start) -> None:
    rig = start(spec("fine"))
    text = "redis://me:secret@host:1 is full"
    report = PorterAnswered(ZERO, Answer(Kind.HEALTH, 3, statuses=b"shares", warning=text))
    rig.tiers.appliers[PorterAnswered](report, clock.now_ns())
    (told,) = [entry for entry in rig.core.told if entry[0] == "tier_health"]
    assert told[1:3] == (JobId(3), True)
    assert told[-2] == b"shares"
    assert told[-1].endswith("host:1 is full")
    assert "secret" not in told[-1]


def test_a_slow_read_of_many_parts_says_that_it_moves(start: Start) -> None:
    rig = start(spec("slow"))
    rig.extent(1)
    num_slots = rig.table[ExtentId(1)].geometry.num_slots
    parts = np.tile(rig.slots(list(range(1, num_slots + 1)), 1), MAX_PARTS // num_slots + 1)[
        :MAX_PARTS
    ]
    rig.do(fx.TierProbe(ZERO, JobId(1), SPACE, key(1), 1))
    rig.do(fx.TierGet(ZERO, JobId(2), SPACE, parts))
    assert rig.told("tier_done", 2)[1] == bytes([Status.ABSENT]) * MAX_PARTS
    assert ("tier_moves", ZERO) in [entry[:2] for entry in rig.core.told]


def test_a_tier_that_cannot_be_opened_is_complained_of(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    rig = start(spec("fine"), spec("refuses", "&name=cold"))

    def is_told() -> bool:
        rig.pump()
        return rig.porters.figures()["tier_cold_open_refused"] > 0

    assert wait_until(is_told)
    assert "tier_refused: the tier cold cannot be used: the tier is asleep" in caplog.text
    assert rig.complaints.counts()["tier_refused"] >= 1
    told = next(entry for entry in rig.core.told if entry[0] == "porter_refused")
    assert (told[1], told[3]) == (1, "the tier is asleep")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("no route to valkey://user:secret@host:1/0", "no route to valkey://host:1/0"),
        ("https://k@a and https://b", "https://a and https://b"),
        ("valkey://user:pa/ss@wo@host:1 is down", "valkey://host:1 is down"),
        ("two\nlines\tand \x1b[31mred", "two lines and ?[31mred"),
        ("mail to a@b", "mail to a@b"),
    ],
)
def test_status_shows_a_porters_words_in_one_line_without_credentials(
    said: str, shown: str
) -> None:
    assert public(said) == shown
